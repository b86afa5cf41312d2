//! Shapes that have caught bugs in other implementations: lengths next to tile edges, long against short, odd head sizes.

use warptile::spec::Heads;
use warptile::{Attention, Backend, Lse, Tensor};
use warptile_check::{AWKWARD_HEAD_DIMS, AWKWARD_LENGTHS, Case};

use crate::common::{verify, verify_text};

const HEADS: [&str; 5] = ["h1", "h6", "h6/2", "h8/1", "h32/8"];

const MASKS: [&str; 6] = [
    "none",
    "causal",
    "causal diagonal=top-left",
    "causal diagonal=-7",
    "window,9,2 diagonal=3",
    "window,100,7",
];

const ELEMENTS: [&str; 3] = ["f16", "bf16", "f32"];

/// Every length with every mask; head sizes and element types take turns.
#[test]
fn lengths() {
    let mut turn = 0;
    for (query, key) in AWKWARD_LENGTHS {
        for mask in MASKS {
            // The largest lengths with the smallest head size: the reference is slow.
            let head_dim = match query * key > 1 << 22 {
                true => 8,
                false => AWKWARD_HEAD_DIMS[turn % AWKWARD_HEAD_DIMS.len()],
            };
            let element = ELEMENTS[turn % ELEMENTS.len()];
            verify_text(&format!(
                "b1 q{query} k{key} h1 d{head_dim} {element} mask={mask} seed={turn}"
            ));
            turn += 1;
        }
    }
}

#[test]
fn head_sizes_and_heads() {
    for (turn, head_dim) in AWKWARD_HEAD_DIMS.into_iter().enumerate() {
        for heads in HEADS {
            let element = ELEMENTS[turn % ELEMENTS.len()];
            verify_text(&format!(
                "b2 q37 k65 {heads} d{head_dim} {element} mask=causal layout=bhsd seed={turn}"
            ));
        }
    }
}

#[test]
fn every_multiple_of_8_is_a_head_size() {
    for head_dim in (8..=512).step_by(8) {
        verify(&Case::new(20, 33, Heads::new(1, head_dim))).unwrap();
    }
}

#[test]
fn nothing_to_do() {
    for text in [
        "b0 q5 k5",
        "b2 q0 k5",
        "b2 q5 k0",
        "packed=",
        "packed=0x0,0x5",
    ] {
        for element in ELEMENTS {
            verify_text(&format!("{text} h4/2 d16 {element} mask=causal"));
        }
    }
}

/// A batch that happens to be empty has parts like any other.
#[test]
fn a_part_of_a_tensor_without_elements_is_one() {
    let backend = Backend::cpu();
    let empty = backend.tensor::<f32>(&[], [0, 5, 2, 8]).unwrap();
    let part = empty.rows(2..4).unwrap().heads(1..2).unwrap();
    assert_eq!(part.shape(), [0, 2, 1, 8]);
    assert_eq!(part.as_slice(), Some(&[][..]));
    let output = Attention::new().forward(&part, (&part, &part)).unwrap();
    assert_eq!(output.out.shape(), [0, 2, 1, 8]);
}

#[test]
fn a_tensor_in_place_of_a_part_keeps_its_layout() {
    let backend = Backend::cpu();
    let mut q = backend.tensor(&[0.5_f32; 5 * 2 * 8], [1, 5, 2, 8]).unwrap();
    let part = { q.with_part(1..3, 0..1, |part| part.shape()) }.unwrap();
    assert_eq!((part, q.shape()), ([1, 2, 1, 8], [1, 5, 2, 8]));
    let other = backend.tensor(&[2.0_f32; 8], [1, 1, 1, 8]).unwrap();
    q.with_part(1..3, 0..1, |part| *part = other).unwrap();
    assert_eq!(q.shape(), [1, 1, 1, 8]);
    assert_eq!(q.as_slice(), Some(&[2.0; 8][..]));
    // Freed first, the old elements mostly leave their address to the new ones.
    for _ in 0..100 {
        let mut part = backend.tensor(&[0.5_f32; 5 * 2 * 8], [1, 5, 2, 8]).unwrap();
        let replace = |part: &mut Tensor<f32>| {
            *part = q.clone();
            *part = backend.tensor(&[2.0; 5 * 2 * 8], [5, 1, 2, 8]).unwrap();
        };
        part.with_part(1..3, 0..1, replace).unwrap();
        assert_eq!(part.shape(), [5, 1, 2, 8]);
    }
}

#[test]
fn launches_of_some_heads_write_an_lse_and_an_output_together() {
    let backend = Backend::cpu();
    let data: Vec<f32> = (0..2 * 5 * 4 * 8).map(|at| at as f32 * 0.01).collect();
    let q = backend.tensor(&data, [2, 5, 4, 8]).unwrap();
    let attention = Attention::new();
    let whole = attention.forward(&q, (&q, &q)).unwrap();
    let mut lse = Lse::zeros(&backend, q.shape()).unwrap();
    for entry in 0..2 {
        let of_entry = q.entries(entry..entry + 1).unwrap();
        let zeros = vec![0.0; data.len() / 2];
        let mut out = backend.tensor(&zeros, of_entry.shape()).unwrap();
        for heads in [0..1, 1..4] {
            let q = of_entry.heads(heads.clone()).unwrap();
            let of_heads = |out: &mut _| {
                lse.with_part(entry, heads.clone(), |lse| {
                    attention.forward_into(&q, (&q, &q), out, Some(lse))
                })
            };
            out.with_part(0..5, heads.clone(), of_heads)
                .unwrap()
                .unwrap()
                .unwrap();
        }
        let expected = whole.out.entries(entry..entry + 1).unwrap();
        assert_eq!(out.to_vec().unwrap(), expected.to_vec().unwrap());
    }
    assert_eq!(lse.to_vec().unwrap(), whole.lse.unwrap().to_vec().unwrap());
    assert!(lse.with_part(0, 3..5, |_| ()).is_err() && lse.with_part(2, 0..1, |_| ()).is_err());
}

#[test]
fn an_lse_of_another_shape_is_refused_by_the_dimension_that_differs() {
    let backend = Backend::cpu();
    let q = backend.tensor(&[0.5_f32; 5 * 2 * 8], [1, 5, 2, 8]).unwrap();
    let error = |shape: [usize; 4]| {
        let mut out = q.clone();
        let mut lse = Lse::zeros(&backend, shape).unwrap();
        let computed = Attention::new().forward_into(&q, (&q, &q), &mut out, Some(&mut lse));
        computed.unwrap_err().to_string()
    };
    // As many values as there should be.
    assert_eq!(error([1, 2, 5, 8]), "lse has heads 5, but q has 2");
    assert_eq!(error([1, 6, 2, 8]), "lse has length 6, but q has 5");
    assert_eq!(error([2, 5, 2, 8]), "lse has batch 2, but q has 1");
}

#[test]
fn slopes_of_a_wrong_number_are_counted_by_heads_or_by_batch_and_heads() {
    let backend = Backend::cpu();
    let q = backend.tensor(&[0.5_f32; 64], [2, 1, 4, 8]).unwrap();
    let error = |slopes: &[f32]| {
        let attention = Attention::new().alibi_slopes(slopes);
        attention.forward(&q, (&q, &q)).unwrap_err().to_string()
    };
    assert_eq!(error(&[0.5; 3]), "alibi_slopes has 3 values; 4 are needed");
    assert_eq!(error(&[0.5; 7]), "alibi_slopes has 7 values; 8 are needed");
}
