//! Results merged on the CPU.

use half::{bf16, f16};
use quickcheck::quickcheck;
use warptile::cpu::{merge_cpu, sum_cpu};
use warptile::ops::{merge, merge_into};
use warptile::spec::{LseBase, Merge};
use warptile::{Attention, Backend, Element, Error, Keys, Layout, Lse};

use crate::draw::Memory;
use crate::merge_cases::{MergeCase, Merges, SumCase};

struct OnCpu;

impl<T: Element> Merges<T> for OnCpu {
    fn merge(&mut self, case: &MergeCase<T>, out: &mut Memory<T>, lse: Option<&mut Memory<f32>>) {
        let parts: Vec<(&[T], &[f32])> = case
            .parts
            .iter()
            .map(|(out, lse)| (&out.data[out.offset..], &lse.data[lse.offset..]))
            .collect();
        let lse = lse.map(|lse| &mut lse.data[lse.offset..]);
        merge_cpu(&case.merge, &parts, &mut out.data[out.offset..], lse).unwrap();
    }
}

fn verify<T: Element>(seed: u64) -> bool {
    let added = SumCase::<T>::random(seed).verify(|case, out| {
        let addends = { case.addends.iter() }.map(|memory| &memory.data[memory.offset..]);
        let addends: Vec<_> = addends.collect();
        sum_cpu(&case.merge, &addends, &mut out.data[out.offset..]).unwrap();
    });
    match { MergeCase::<T>::random(seed).verify(&mut OnCpu) }.and(added) {
        Ok(()) => true,
        Err(failure) => panic!("seed {seed}: {failure}"),
    }
}

quickcheck! {
    fn merges_and_sums_are_right(seed: u64) -> bool {
        verify::<f16>(seed) && verify::<bf16>(seed) && verify::<f32>(seed)
    }
}

/// Attention over parts of the keys, merged, is attention over all; one part has no key at all.
#[test]
fn merged_parts_are_attention_over_all_keys() {
    let backend = Backend::cpu();
    let data: Vec<f32> = (0..2 * 30 * 2 * 16)
        .map(|i| (i as f32 * 0.7).sin())
        .collect();
    let kv = backend.tensor(&data, [2, 30, 2, 16]).unwrap();
    let q = backend
        .tensor(&data[..2 * 5 * 4 * 16], [2, 5, 4, 16])
        .unwrap();
    let all = Attention::new().forward(&q, (&kv, &kv)).unwrap();
    let parts: Vec<_> = [0..7, 7..7, 7..30]
        .into_iter()
        .map(|range| {
            let kv = kv.rows(range).unwrap();
            Attention::new().forward(&q, Keys::new(&kv, &kv)).unwrap()
        })
        .collect();
    let list: Vec<_> = parts
        .iter()
        .map(|part| (&part.out, part.lse.as_ref().unwrap()))
        .collect();
    let (out, lse) = merge(&list, LseBase::Natural).unwrap();
    assert_eq!(out.shape(), all.out.shape());
    let pairs = |a: Vec<f32>, b: Vec<f32>| a.into_iter().zip(b).collect::<Vec<_>>();
    for (found, expected) in pairs(out.to_vec().unwrap(), all.out.to_vec().unwrap()) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    let expected = all.lse.unwrap().to_vec().unwrap();
    for (found, expected) in pairs(lse.to_vec().unwrap(), expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}

/// The part that alone saw keys is copied bit for bit.
#[test]
fn one_part_that_saw_keys_is_copied() {
    let backend = Backend::cpu();
    let shape = [1, 2, 1, 8];
    let values: Vec<f16> = (0..16).map(|i| f16::from_f32(i as f32 / 3.0)).collect();
    let seen = backend.tensor(&values, shape).unwrap();
    let nothing = backend.tensor(&[f16::NAN; 16], shape).unwrap();
    let lse = Lse::from_slice(&backend, &[3.25, -1e30], shape).unwrap();
    let none = Lse::from_slice(&backend, &[f32::NEG_INFINITY; 2], shape).unwrap();
    for base in [LseBase::Natural, LseBase::Two] {
        let (out, merged) = merge(&[(&nothing, &none), (&seen, &lse)], base).unwrap();
        assert_eq!(out.to_vec().unwrap(), values);
        assert_eq!(merged.to_vec().unwrap(), [3.25, -1e30]);
    }
    let (out, merged) = merge(&[(&nothing, &none), (&nothing, &none)], LseBase::Two).unwrap();
    assert_eq!(out.to_vec().unwrap(), [f16::ZERO; 16]);
    assert_eq!(merged.to_vec().unwrap(), [f32::NEG_INFINITY; 2]);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let backend = Backend::cpu();
    let shape = [1, 2, 3, 8];
    let part = backend.tensor(&[0.0_f32; 48], shape).unwrap();
    let other = backend.tensor(&[0.0_f32; 32], [1, 2, 2, 8]).unwrap();
    let lse = Lse::zeros(&backend, shape).unwrap();
    let short = Lse::zeros(&backend, [1, 2, 2, 8]).unwrap();
    let text = |parts: &[(&_, &Lse)]| merge(parts, LseBase::Natural).unwrap_err().to_string();
    assert_eq!(text(&[]), "parts has 0 values; 1 is needed");
    assert_eq!(
        text(&[(&part, &lse); 33]),
        "parts has count 33; the limit is 32"
    );
    assert_eq!(
        text(&[(&part, &lse), (&other, &short)]),
        "parts[1].out has heads 2, but parts[0].out has 3"
    );
    assert_eq!(
        text(&[(&part, &lse), (&part, &short)]),
        "parts[1].lse has heads 2, but parts[0].out has 3"
    );
    let empty = backend.tensor(&[0.0_f32; 0], [1, 2, 3, 0]).unwrap();
    assert_eq!(
        text(&[(&empty, &lse)]),
        "parts[0].out has head size 0, but must have at least one column for its lse"
    );
    let mut shared = part.clone();
    let error = merge_into(&[(&part, &lse)], LseBase::Natural, &mut shared, None).unwrap_err();
    assert!(
        matches!(error, Error::Shared { argument: "out" }),
        "{error}"
    );
    let overlapping = Layout::new(shape, [0, 8, 8, 1]);
    let error = Merge::builder(warptile::ElementType::F32, &[Layout::bshd(shape)])
        .out(overlapping)
        .build()
        .unwrap_err();
    assert!(
        error.to_string().starts_with("out overlaps itself"),
        "{error}"
    );
}
