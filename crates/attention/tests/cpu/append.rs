//! Cache writes on the CPU.

use half::{bf16, f16};
use quickcheck::quickcheck;
use warptile::cpu::append_cpu;
use warptile::ops::CacheWrite;
use warptile::spec::{HostInputs, HostOutputs, Operand, Pairing, Rotary};
use warptile::{Backend, Element, Result};

use crate::append_cases::{AngleTables, AppendCase, Appends};

struct OnCpu;

impl<T: Element> Appends<T> for OnCpu {
    fn append(&mut self, case: &mut AppendCase<T>) {
        let append = case.describe(false, false);
        let (keys, values) = &mut case.caches;
        let keys = &mut keys.data[keys.offset..];
        let mut outputs = match case.together {
            Some(at) => HostOutputs::cache_in_one(keys, at),
            None => HostOutputs::cache(keys, &mut values.data[values.offset..]),
        };
        let mut inputs = HostInputs::default()
            .with(Operand::K, &case.k.data[case.k.offset..])
            .with(Operand::V, &case.v.data[case.v.offset..]);
        match &mut case.q {
            Some((q, Some(out))) => {
                inputs.set(Operand::Q, &q.data[q.offset..]);
                outputs = outputs.with(Operand::QOut, &mut out.data[out.offset..]);
            }
            Some((q, None)) => outputs = outputs.with(Operand::Q, &mut q.data[q.offset..]),
            None => {}
        }
        match &case.tables {
            Some(AngleTables::F32(cos, sin)) => {
                inputs.set(Operand::Cos, &cos.data[cos.offset..]);
                inputs.set(Operand::Sin, &sin.data[sin.offset..]);
            }
            Some(AngleTables::Elements(cos, sin)) => {
                inputs.set(Operand::Cos, &cos.data[cos.offset..]);
                inputs.set(Operand::Sin, &sin.data[sin.offset..]);
            }
            None => {}
        }
        append_cpu(&append, &inputs, outputs).unwrap();
    }
}

fn verify<T: Element>(seed: u64) -> bool {
    match AppendCase::<T>::random(seed, false).verify(&mut OnCpu) {
        Ok(()) => true,
        Err(failure) => panic!("seed {seed}: {failure}"),
    }
}

/// Rows of the tables, rows before the new ones, and a position if one is given.
fn write_with_tables(rows: usize, before: i32, position: Option<i32>) -> (Result<()>, Vec<f32>) {
    let backend = Backend::cpu();
    let table = |number| {
        backend
            .tensor(&vec![number; rows], [1, rows, 1, 1])
            .unwrap()
    };
    let (cos, sin) = (table(0.0_f32), table(1.0));
    let new = backend.tensor(&[1.0_f32, 2.0], [1, 1, 1, 2]).unwrap();
    let pages = || backend.tensor(&[9.0_f32; 32], [1, 16, 1, 2]).unwrap();
    let (mut keys, mut values) = (pages(), pages());
    let (lengths, positions) = ([before], position.map(|position| [position]));
    let mut write = CacheWrite::new(&new, &new, (&mut keys, &mut values))
        .after(&lengths)
        .rotary_f32(&cos, &sin, Pairing::Interleaved)
        .unwrap();
    if let Some(positions) = &positions {
        write = write.positions(positions);
    }
    let result = write.run();
    let all = [keys.to_vec().unwrap(), values.to_vec().unwrap()].concat();
    (result, all)
}

#[test]
fn tables_of_different_lengths_are_refused() {
    let backend = Backend::cpu();
    let table = backend.tensor(&[1.0_f32; 40], [1, 10, 1, 4]).unwrap();
    let mut pages = [0, 1].map(|_| backend.tensor(&[0.0_f32; 8], [1, 1, 1, 8]).unwrap());
    let [keys, values] = &mut pages;
    let new = backend.tensor(&[1.0_f32; 8], [1, 1, 1, 8]).unwrap();
    let short = table.rows(0..8).unwrap();
    let error = CacheWrite::new(&new, &new, (keys, values))
        .rotary_f32(&table, &short, Pairing::HalfSplit)
        .unwrap_err();
    assert_eq!(error.to_string(), "sin has length 8, but cos has 10");
}

/// The rotation that is given last counts.
#[test]
fn computed_angles_take_the_place_of_tables() {
    let backend = Backend::cpu();
    let table = backend.tensor(&[0.0_f32; 8], [1, 8, 1, 1]).unwrap();
    let new = backend.tensor(&[1.0_f32, 2.0], [1, 1, 1, 2]).unwrap();
    let computed = || Rotary::computed(2, 10_000.0, Pairing::Interleaved).unwrap();
    for (is_last, expected) in [(true, [1.0, 2.0]), (false, [0.0, 0.0])] {
        let pages = || backend.tensor(&[9.0_f32; 2], [1, 1, 1, 2]).unwrap();
        let (mut keys, mut values) = (pages(), pages());
        let write = CacheWrite::new(&new, &new, (&mut keys, &mut values)).after(&[0]);
        let write = match is_last {
            true => write,
            false => write.rotary(computed()),
        };
        let write = { write.rotary_f32(&table, &table, Pairing::Interleaved) }.unwrap();
        let write = match is_last {
            true => write.rotary(computed()),
            false => write,
        };
        write.run().unwrap();
        assert_eq!(keys.to_vec().unwrap(), expected);
    }
}

#[test]
fn a_position_beyond_the_tables_is_refused_before_anything_is_written() {
    for (rows, before, position, expected) in [
        (
            3,
            7,
            None,
            "key_lengths[0] is 7, and 1 row follows, but cos and sin have rows for 3 positions",
        ),
        (
            7,
            7,
            None,
            "key_lengths[0] is 7, and 1 row follows, but cos and sin have rows for 7 positions",
        ),
        (
            3,
            7,
            Some(3),
            "positions[0] is 3, but cos and sin have 3 rows",
        ),
        (
            8,
            7,
            Some(i32::MAX),
            "positions[0] is 2147483647, but cos and sin have 8 rows",
        ),
    ] {
        let (result, all) = write_with_tables(rows, before, position);
        assert_eq!(result.unwrap_err().to_string(), expected);
        assert_eq!(all, [9.0; 64]);
    }
    for (rows, position) in [(8, None), (3, Some(2)), (3, Some(-5))] {
        let (result, all) = write_with_tables(rows, 7, position);
        result.unwrap();
        assert_eq!(
            (&all[14..16], &all[46..48]),
            (&[-2.0, 1.0][..], &[1.0, 2.0][..])
        );
    }
}

quickcheck! {
    fn writes_equal_float64(seed: u64) -> bool {
        verify::<f16>(seed) && verify::<bf16>(seed) && verify::<f32>(seed)
    }
}

/// As of models that keep their values in the keys.
#[test]
fn values_without_elements_are_none_to_write() {
    let backend = Backend::cpu();
    let k = backend.tensor(&[1.0_f32, 2.0, 3.0], [1, 3, 1, 1]).unwrap();
    let v = backend.tensor(&[0.0_f32; 0], [1, 3, 1, 0]).unwrap();
    let mut keys = backend.tensor(&[9.0_f32; 4], [1, 4, 1, 1]).unwrap();
    let mut values = backend.tensor(&[0.0_f32; 0], [1, 4, 1, 0]).unwrap();
    let write = CacheWrite::new(&k, &v, (&mut keys, &mut values)).after(&[1]);
    write.run().unwrap();
    assert_eq!(keys.to_vec().unwrap(), [9.0, 1.0, 2.0, 3.0]);
}
