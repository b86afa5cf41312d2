//! Dropout on the CPU path: which weights are kept, and what is refused.

use half::{bf16, f16};
use warptile::cpu::forward_cpu;
use warptile::spec::{
    Call, Dropout, DropoutState, HostInputs, HostOutputs, Invalid, Numbers, Operand, Scoring,
};
use warptile::{Attention, Backend, Element, Error, Layout, Mask, Queries, Tensor};
use warptile_check::Case;

use crate::common::verify;

/// With equal scores and the values of the unit matrix, the output is the mask divided by the number of keys.
fn masks<T: Element>(queries: usize, keys: usize, p: f32, state: DropoutState) -> Vec<bool> {
    let backend = Backend::cpu();
    let tensor = |rows: usize, dim: usize, number: &dyn Fn(usize, usize) -> f32| -> Tensor<T> {
        let elements = (0..rows * dim).map(|i| T::from_f32(number(i / dim, i % dim)));
        let elements: Vec<T> = elements.collect();
        backend.tensor(&elements, [1, rows, 1, dim]).unwrap()
    };
    let mut all = vec![false; queries * keys];
    let dim = keys.next_multiple_of(8).min(256);
    for first in (0..keys).step_by(dim) {
        let q = tensor(queries, dim, &|_, _| 0.0);
        let k = tensor(keys, dim, &|_, _| 0.0);
        let v = tensor(keys, dim, &|row, column| f32::from(row == first + column));
        let attention = Attention::new().dropout(p, state);
        let out = attention.forward(&q, (&k, &v)).unwrap();
        let out = out.out.to_vec().unwrap();
        for (i, x) in out.into_iter().enumerate() {
            let (row, key) = (i / dim, first + i % dim);
            if key < keys {
                all[row * keys + key] = x.to_f32() != 0.0;
                let whole = Dropout::factor(p) / keys as f32;
                assert!(x.to_f32() == 0.0 || (x.to_f32() / whole - 1.0).abs() < 0.01);
            }
        }
    }
    all
}

#[test]
fn every_path_drops_the_same_weights() {
    let state = DropoutState {
        sequence: 3,
        head: 5,
        query: 64,
        key: 96,
        ..DropoutState::new(99, 1 << 33)
    };
    // A handful of queries and many; keys that end within a group.
    for (queries, keys) in [(1, 300), (5, 77), (40, 64), (70, 300)] {
        let dropout = Dropout::new(0.3, state);
        let expected: Vec<bool> = (0..queries * keys)
            .map(|i| dropout.row(0, 0, i / keys).keeps(i % keys))
            .collect();
        assert!(masks::<f32>(queries, keys, 0.3, state) == expected);
        assert!(masks::<f16>(queries, keys, 0.3, state) == expected);
        assert!(masks::<bf16>(queries, keys, 0.3, state) == expected);
    }
}

#[test]
fn problems_with_dropout_match_the_reference() {
    for words in [
        "b2 q70 k150 h4/2 d64 bf16 mask=causal dropout=0.1",
        "b1 q5 k700 h2 d64 bf16 dropout=0.5",
        "b1 q3 k90 h2 d40 f16 dropout=0.9 softcap=2 sinks",
        "packed=60x60,0x3,9x40 h2 d32 f32 dropout=0.2 mask=window,20,3",
        "b2 q1 k100 h8/2 d128 bf16 cache=e4m3 pages=16 dropout=0.1",
        "b1 q40 k40 h1 d8 f32 dropout=0.999",
    ] {
        for seed in 0..8 {
            let case: Case = format!("{words} seed={seed}").parse().unwrap();
            verify(&case).unwrap_or_else(|failure| panic!("{case}: {failure}"));
        }
    }
}

/// Random numbers of three dimensions and a head size of 8.
fn random(backend: &Backend, shape: [usize; 3], seed: usize) -> Tensor<f32> {
    let [batch, rows, heads] = shape;
    let number = |i: usize| ((i * 31 + seed) * 7919 % 1009) as f32 / 252.0 - 2.0;
    let data: Vec<f32> = (0..batch * rows * heads * 8).map(number).collect();
    backend.tensor(&data, [batch, rows, heads, 8]).unwrap()
}

/// The lse is that without dropout; each head, sequence, packing and shard has the bits that it has in the whole.
#[test]
fn a_mask_depends_on_nothing_but_its_place() {
    let backend = Backend::cpu();
    let (batch, queries, keys, heads) = (3, 70, 90, 2);
    let (q, k) = (
        random(&backend, [batch, queries, heads], 1),
        random(&backend, [batch, keys, heads], 2),
    );
    let state = DropoutState::new(5, 6);
    let plain = Attention::new().mask(Mask::causal());
    let with = |state| plain.clone().dropout(0.25, state);
    let whole = with(state).forward(&q, (&k, &k)).unwrap();
    let lse = |output: &warptile::Output<f32>| output.lse.as_ref().unwrap().to_vec().unwrap();
    let without = plain.forward(&q, (&k, &k)).unwrap();
    assert_eq!(lse(&whole), lse(&without));
    let out = whole.out.to_vec().unwrap();
    assert_ne!(out, without.out.to_vec().unwrap());
    assert_eq!(
        out,
        with(state)
            .forward(&q, (&k, &k))
            .unwrap()
            .out
            .to_vec()
            .unwrap()
    );
    let other = DropoutState { offset: 7, ..state };
    assert_ne!(
        out,
        with(other)
            .forward(&q, (&k, &k))
            .unwrap()
            .out
            .to_vec()
            .unwrap()
    );

    // Packed.
    let packed = |tensor: &Tensor<f32>, rows: usize| {
        let data = tensor.to_vec().unwrap();
        backend.tensor(&data, [1, batch * rows, heads, 8]).unwrap()
    };
    let (packed_q, packed_k) = (packed(&q, queries), packed(&k, keys));
    let offsets = |rows: usize| -> Vec<i32> { (0..=batch).map(|i| (i * rows) as i32).collect() };
    let (of_q, of_k) = (offsets(queries), offsets(keys));
    let packed_out = with(state)
        .forward(
            Queries::new(&packed_q).packed(&of_q),
            warptile::Keys::new(&packed_k, &packed_k).packed(&of_k),
        )
        .unwrap();
    assert_eq!(packed_out.out.to_vec().unwrap(), out);

    // The last sequence by itself, and of it the queries from 64 on.
    let one = batch - 1;
    let part = |tensor: &Tensor<f32>, rows: usize, from: usize| {
        let row = heads * 8;
        let data = tensor.to_vec().unwrap();
        let data = &data[(one * rows + from) * row..(one + 1) * rows * row];
        backend.tensor(data, [1, rows - from, heads, 8]).unwrap()
    };
    let (alone, own) = (part(&q, queries, 64), part(&k, keys, 0));
    let shard = DropoutState {
        sequence: one as u32,
        query: 64,
        ..state
    };
    let found = with(shard).forward(&alone, (&own, &own)).unwrap().out;
    assert_eq!(
        found.to_vec().unwrap(),
        out[(one * queries + 64) * heads * 8..]
    );
}

#[test]
fn a_probability_of_0_is_no_dropout() {
    let backend = Backend::cpu();
    let q = random(&backend, [1, 9, 1], 3);
    let attention = Attention::new().dropout(0.5, DropoutState::default());
    let none = attention.dropout(0.0, DropoutState::default());
    assert!(!none.has_numbers());
    let (none, plain) = (
        none.forward(&q, (&q, &q)),
        Attention::new().forward(&q, (&q, &q)),
    );
    assert_eq!(
        none.unwrap().out.to_vec().unwrap(),
        plain.unwrap().out.to_vec().unwrap()
    );
}

#[test]
fn what_is_wrong_is_named() {
    let layout = Layout::bshd([1, 4, 1, 8]);
    let builder = |p: Option<f32>| {
        let mut scoring = Scoring::new();
        scoring.dropout = p;
        Call::builder(&layout, &layout, &layout, f32::TYPE).scoring(scoring)
    };
    let words = DropoutState::new(1, 2).words();
    let state = |words: &[i32]| {
        let given = builder(Some(0.5)).numbers(Operand::DropoutState, Numbers::Host(words));
        given
            .build()
            .map(|_| ())
            .map_err(|error: Invalid| error.to_string())
    };
    assert_eq!(state(&words), Ok(()));
    assert_eq!(
        state(&words[1..]).unwrap_err(),
        "dropout_state has 7 values; 8 are needed"
    );
    let odd = DropoutState {
        query: 40,
        ..DropoutState::new(1, 2)
    };
    assert_eq!(
        state(&odd.words()).unwrap_err(),
        "dropout_state[6] is 40, but the number of the first query must be a multiple of 32"
    );
    for p in [-0.1, 1.0, f32::NAN] {
        let given = builder(Some(p)).numbers(Operand::DropoutState, Numbers::Host(&words));
        let error = given.build().unwrap_err().to_string();
        assert_eq!(
            error,
            format!("dropout is {p}, but must be a probability from 0 to below 1")
        );
    }
    let missing = builder(Some(0.5)).build().unwrap_err().to_string();
    assert_eq!(
        missing,
        "dropout_state is missing, but the options ask for it"
    );
    let extra = builder(None).numbers(Operand::DropoutState, Numbers::Host(&words));
    let extra = extra.build().unwrap_err().to_string();
    assert_eq!(
        extra,
        "dropout_state is given, but the options do not ask for it"
    );

    // Words on a device are of no use on the host.
    let count = DropoutState::WORDS;
    let on_device = builder(Some(0.5)).numbers(Operand::DropoutState, Numbers::Device(count));
    let (call, data, mut out) = (on_device.build().unwrap(), [0.0_f32; 32], [0.0_f32; 32]);
    let inputs = HostInputs::new(&data, &data, &data);
    let error: Error = forward_cpu(&call, &inputs, HostOutputs::new(&mut out)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "dropout_state is on a GPU, but the tensors are in host memory"
    );
}
