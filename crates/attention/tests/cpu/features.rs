//! Sinks, bias and key mask where random problems do not reach: whole tiles hidden, rows that see nothing, huge numbers.

use half::{bf16, f16};
use warptile::cpu::forward_cpu;
use warptile::kernels::{Elements, Kind};
use warptile::spec::{Call, DropoutState, HostInputs, HostOutputs, Operand, Scoring};
use warptile::{Attention, Backend, Element, Keys, Layout, Mask, Queries};
use warptile_check::Expectation;

use crate::common::verify_text;

const ROWS: usize = 3;
/// Three tiles of the CPU path.
const KEYS: usize = 600;
const HEAD_DIM: usize = 8;

/// Computes three rows of queries over 600 keys of one head with the operands of options, and requires the result to be right. Returns
/// output and lse.
fn attend(scoring: Scoring, query: f32, options: HostInputs<'_>) -> (Vec<f32>, Vec<f32>) {
    let q = Layout::bshd([1, ROWS, 1, HEAD_DIM]);
    let k = Layout::bshd([1, KEYS, 1, HEAD_DIM]);
    let mut builder = Call::builder(&q, &k, &k, f32::TYPE).scoring(scoring);
    for operand in Operand::of_scores() {
        if options.elements::<u8>(operand).unwrap().is_some() {
            builder = match operand.kind() {
                // A tensor per row has to step along the rows.
                Kind::Scores => builder.layout(operand, Layout::bshd([1, ROWS, 1, KEYS])),
                _ => builder.count(operand, 1),
            };
        }
    }
    let call = builder.build().unwrap();
    let wave = |i: usize, step: f32| (i as f32 * step).sin();
    let queries: Vec<f32> = (0..ROWS * HEAD_DIM).map(|i| query * wave(i, 0.7)).collect();
    let keys: Vec<f32> = (0..KEYS * HEAD_DIM).map(|i| wave(i, 1.3)).collect();
    let values: Vec<f32> = (0..KEYS * HEAD_DIM).map(|i| wave(i, 0.9)).collect();
    let inputs = { options.with(Operand::Q, &queries) }
        .with(Operand::K, &keys)
        .with(Operand::V, &values);
    let (mut out, mut lse) = (vec![f32::NAN; ROWS * HEAD_DIM], vec![f32::NAN; ROWS]);
    let outputs = HostOutputs::new(&mut out).lse(&mut lse);
    forward_cpu(&call, &inputs, outputs).unwrap();
    let expected = Expectation::new(&call, &inputs).unwrap();
    for verdict in [expected.judge_out(&out), expected.judge_lse(&lse)] {
        assert!(verdict.passed, "{}: {verdict}", call.scoring());
    }
    (out, lse)
}

fn none() -> HostInputs<'static> {
    HostInputs::default()
}

/// Row 0 does not see the first tile, row 1 sees nothing, row 2 only the first tile.
fn tiles_hidden() -> Vec<u8> {
    let mut mask = vec![0; ROWS * KEYS];
    mask[256..KEYS].fill(1);
    mask[2 * KEYS..2 * KEYS + 256].fill(7);
    mask
}

#[test]
fn tiles_that_the_key_mask_hides() {
    let mask = tiles_hidden();
    let masked = none().with(Operand::KeyMask, &mask);
    let sinks = [-2.5_f32];
    for (options, nothing) in [
        (masked, f32::NEG_INFINITY),
        (masked.with(Operand::Sinks, &sinks), -2.5),
    ] {
        let (out, lse) = attend(Scoring::new(), 1.0, options);
        assert!(out[HEAD_DIM..2 * HEAD_DIM].iter().all(|&x| x == 0.0));
        assert_eq!(lse[1], nothing);
    }
}

#[test]
fn tensors_of_scores_have_the_type_that_is_read() {
    let backend = Backend::cpu();
    let x = backend.tensor(&[f16::ONE; 8], [1, 1, 1, 8]).unwrap();
    let one = Layout::bhsd([1, 1, 1, 1]);
    let bias = backend.tensor_with_layout(&[bf16::ONE], one).unwrap();
    let mask = backend.tensor_with_layout(&[1.0_f32], one).unwrap();
    let error = |keys: Keys<'_, f16>| Attention::new().forward(&x, keys).unwrap_err().to_string();
    let keys = || Keys::new(&x, &x);
    assert_eq!(
        error(keys().scores(Operand::Bias, &bias)),
        "bias has elements of type bf16, but must have f16"
    );
    assert!(error(keys().scores(Operand::KeyMask, &mask)).starts_with("key_mask has numbers"));
    assert!(error(keys().scores(Operand::Q, &x)).starts_with("q is given as a tensor"));
    let lengths = error(keys().lengths(&[1]).scores(Operand::KeyLengths, &x));
    assert!(
        lengths.starts_with("key_lengths is given as a tensor"),
        "{lengths}"
    );
}

/// Numbers are given of lists that a call reads, in the type of their elements, and of nothing else.
#[test]
fn tensors_are_not_given_as_numbers() {
    let backend = Backend::cpu();
    let x = backend.tensor(&[f16::ONE; 8], [1, 1, 1, 8]).unwrap();
    let error = |attention: Attention, queries: Queries<'_, f16>, keys: Keys<'_, f16>| {
        let error = attention.forward(queries, keys).unwrap_err();
        error.to_string()
    };
    let (new, queries, keys) = (Attention::new, || Queries::new(&x), || Keys::new(&x, &x));
    for operand in Operand::ALL {
        let is_list = matches!(operand.kind(), Kind::List(_)) && !operand.is_written();
        let given_as = match is_list {
            true => "numbers of a different type",
            false => "a list of numbers",
        };
        let expected = format!("{} is given as {given_as}", operand.name());
        let refused = |found: String| assert!(found.starts_with(&expected), "{found}");
        if !is_list || operand.elements() != Elements::F32 {
            refused(error(new().numbers(operand, &[1.0; 4]), queries(), keys()));
        }
        if !is_list || operand.elements() != Elements::I32 {
            refused(error(new(), queries().numbers(operand, &[1; 4]), keys()));
            refused(error(new(), queries(), keys().numbers(operand, &[1; 4])));
        }
    }
    let state = new().dropout(0.5, DropoutState::new(1, 2));
    let found = error(
        state.numbers(Operand::DropoutState, &[1.0; 8]),
        queries(),
        keys(),
    );
    assert!(
        found.starts_with("dropout_state is given as numbers of a different type"),
        "{found}"
    );
}

#[test]
fn a_part_of_a_call_takes_a_state_without_words() {
    let backend = Backend::cpu();
    let x = backend.tensor(&[f16::ONE; 8], [1, 1, 1, 8]).unwrap();
    let none = Attention::new().numbers(Operand::DropoutState, &[]);
    let error = none.of_part([0; 4]).forward(&x, (&x, &x)).unwrap_err();
    assert!(error.to_string().starts_with("dropout_state"), "{error}");
}

#[test]
fn a_bias_of_minus_infinity_hides_like_a_mask() {
    let mask = tiles_hidden();
    let bias: Vec<f32> = mask
        .iter()
        .map(|&shown| if shown == 0 { f32::NEG_INFINITY } else { 0.0 })
        .collect();
    let with = |options| attend(Scoring::new(), 1.0, options);
    assert_eq!(
        with(none().with(Operand::Bias, &bias)),
        with(none().with(Operand::KeyMask, &mask))
    );
}

/// Products, biases and sums beyond the range of f32, next to hidden keys.
#[test]
fn huge_scores_and_biases_make_no_nan() {
    let mask = tiles_hidden();
    let bias: Vec<f32> = (0..ROWS * KEYS)
        .map(|i| [3e38, -3e38, 1.0][i % 3])
        .collect();
    let masked = none().with(Operand::KeyMask, &mask);
    for query in [1.0, 3e38] {
        for softcap in [None, Some(20.0)] {
            let mut scoring = Scoring::new().scale(1e3);
            scoring.softcap = softcap;
            for options in [masked, masked.with(Operand::Bias, &bias)] {
                let (out, _) = attend(scoring, query, options);
                assert!(out.iter().all(|x| x.is_finite()), "{out:?}");
            }
        }
    }
}

#[test]
fn sinks_far_above_and_below_the_scores() {
    let scoring = Scoring::new().mask(Mask::causal());
    for sink in [-3e38_f32, -100.0, 0.0, 100.0, 3e38] {
        let sinks = [sink];
        let (out, lse) = attend(scoring, 1.0, none().with(Operand::Sinks, &sinks));
        let largest = out.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        if sink >= 100.0 {
            // All weight is the sink's.
            assert!(largest < 1e-30 && lse.iter().all(|&x| x == sink));
        } else {
            assert!(largest > 1e-3);
        }
    }
}

/// For one row and several, over one tile and several, hidden or not.
#[test]
fn a_sink_of_minus_infinity_is_none() {
    let mask = tiles_hidden();
    let masked = none().with(Operand::KeyMask, &mask);
    let no_sink = [f32::NEG_INFINITY];
    for scoring in [
        Scoring::new(),
        Scoring::new().mask(Mask::causal()),
        Scoring::new().softcap(3.0),
    ] {
        let bits = |options| -> Vec<u32> {
            let (out, lse) = attend(scoring, 1.0, options);
            out.iter().chain(&lse).map(|x| x.to_bits()).collect()
        };
        let with = bits(masked.with(Operand::Sinks, &no_sink));
        assert_eq!(with, bits(masked), "{scoring}");
    }
    verify_text("b2 q9 k0 h4/2 d32 f16 sinks seed=4");
    verify_text("b2 q300 k260 h16/2 d32 bf16 mask=causal sinks seed=5");
}

/// A scale and queries so that their product is as usual, and where it is not.
#[test]
fn the_largest_scales_are_right() {
    for scale in [Scoring::MAX_SCALE, -Scoring::MAX_SCALE] {
        for softcap in [None, Some(2.0)] {
            let mut scoring = Scoring::new().scale(scale);
            scoring.softcap = softcap;
            let (usual, _) = attend(scoring, 1.0 / Scoring::MAX_SCALE, none());
            let (huge, _) = attend(scoring, 1.0, none());
            assert!(usual.iter().chain(&huge).all(|x| x.is_finite()));
        }
    }
}

#[test]
fn used_lengths_count_for_the_alignment_of_masks_and_alibi() {
    for text in [
        "b2 q300 k700 h4/2 d32 f16 mask=causal used=300x512,7x300 seed=1",
        "b3 q5 k600 h2 d64 bf16 mask=window,30,2 alibi=batch used=5x600,0x9,3x0 seed=2",
        "packed=300x700,20x30 h2 d40 f32 mask=causal diagonal=top-left sinks used=200x257,20x1 seed=3",
        "b2 q130 k600 h2 d16 f32 bias keymask used=130x300,7x600 layout=gaps seed=4",
    ] {
        verify_text(text);
    }
}
