//! Bugs that other implementations shipped, each as a test that would have caught it.
//!
//! Some cannot happen here and have their tests elsewhere. A tile counter that is null or not reset, a launch on the wrong
//! stream, TMA over a tensor without elements, NaN on a T4: only GPU kernels have them (tests/gpu, tests/fake).
//! Dispatch to an architecture without an image: the planner's (tests/plan). A driver that is absent or too old: the
//! driver crate's (tests/fake/loading.rs). The merge of two partial results is part of the tiles' loop here. NaN in unused rows of the
//! last page, a block table read past its end: pages.rs.

use half::bf16;
use warptile::cpu::{backward_cpu, forward_cpu};
use warptile::spec::{Backward, Call, HostInputs, HostOutputs, Operand, Scoring};
use warptile::{Attention, Backend, Diagonal, Element, Keys, Layout, Mask};
use warptile_check::{Case, reference};

use crate::common::{run, verify_text};

/// Runs `f32` tensors in BSHD; returns the output and the lse.
fn attend(call: &Call, q: &[f32], k: &[f32], v: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let mut out = vec![f32::NAN; call.out().required_len().unwrap()];
    let mut lse = vec![f32::NAN; call.lse_len()];
    let outputs = HostOutputs::new(&mut out).lse(&mut lse);
    forward_cpu(call, &HostInputs::new(q, k, v), outputs).unwrap();
    (out, lse)
}

fn dense(query: usize, key: usize, mask: Mask) -> Call {
    let q = Layout::bshd([1, query, 1, 8]);
    let k = Layout::bshd([1, key, 1, 8]);
    Call::builder(&q, &k, &k, f32::TYPE)
        .scoring(Scoring::new().mask(mask))
        .build()
        .unwrap()
}

/// Offsets beyond 2^32 elements: rows of one value repeated by a stride of 0, far apart in the batch by name only, would
/// need 16 GiB for real, so the far part of the buffer is reserved but never touched.
#[test]
fn offsets_are_64_bit() {
    const FAR: usize = (1 << 32) + 8;
    // Zeroed memory is not resident until it is touched.
    let mut keys = vec![0.0_f32; FAR + 8];
    keys[FAR..].fill(1.0);
    keys[..8].fill(-1.0);
    let q = Layout::bshd([1, 1, 1, 8]);
    let k = Layout::new([1, 2, 1, 8], [0, FAR, 8, 1]);
    let call = Call::builder(&q, &k, &k, f32::TYPE).build().unwrap();
    let (out, _) = attend(&call, &[100.0; 8], &keys, &keys);
    // The far key wins.
    assert!(out.iter().all(|&x| (x - 1.0).abs() < 1e-6), "{out:?}");
}

/// NaN in rows of K and V that belong to no sequence, times a probability of 0.
#[test]
fn nan_in_padding_never_reaches_the_output() {
    for element in ["f16", "bf16", "f32"] {
        for mask in ["none", "causal", "window,3,2"] {
            verify_text(&format!(
                "packed=5x9,1x1,17x3,0x4 h4/2 d40 {element} mask={mask} layout=gaps seed=1"
            ));
            verify_text(&format!(
                "b2 q70 k513 h2 d24 {element} mask={mask} layout=gaps unaligned seed=2"
            ));
        }
    }
}

/// A finite stand-in for minus infinity swallows rows whose scores are all below it.
#[test]
fn rows_of_very_low_scores_are_not_masked() {
    let call = dense(2, 3, Mask::causal());
    let keys: Vec<f32> = [1e30, 2e30, 1.5e30].iter().flat_map(|&x| [x; 8]).collect();
    let values: Vec<f32> = [1.0, 2.0, 3.0].iter().flat_map(|&x| [x; 8]).collect();
    let (out, lse) = attend(&call, &[-1.0; 16], &keys, &values);
    assert!(out.iter().all(|&x| x == 1.0), "{out:?}");
    assert!(lse.iter().all(|&x| x < -1e30 && x.is_finite()), "{lse:?}");
}

/// 0 / 0 in rows that see nothing.
#[test]
fn fully_masked_rows_are_zero() {
    let call = dense(5, 2, Mask::causal());
    let (out, lse) = attend(&call, &[1.0; 40], &[1.0; 16], &[1.0; 16]);
    assert!(out[..24].iter().all(|&x| x == 0.0), "{out:?}");
    assert!(out[24..].iter().all(|&x| x == 1.0), "{out:?}");
    assert_eq!(lse[..3], [f32::NEG_INFINITY; 3]);
    assert!(lse[3..].iter().all(|x| x.is_finite()));
    // Whole blocks that see nothing, and windows that end before the first key.
    verify_text("b1 q700 k10 h2 d16 f16 mask=causal seed=1");
    verify_text("b1 q700 k600 h2 d16 f32 mask=window,0,0 seed=1");
}

/// Two tiles that a row does not see, merged: -inf - -inf.
#[test]
fn rows_that_see_nothing_in_several_tiles() {
    // Blocks are 128 rows and tiles 512 keys: the first rows of a block see nothing of the tile that the last ones need.
    verify_text("b1 q1600 k1600 h1 d8 f32 mask=window,2,1 seed=1");
    verify_text("b1 q1100 k40 h1 d8 f32 mask=window,1,0 seed=1");
}

/// Hang or crash on an empty tile, no keys at all, or a ragged causal batch.
#[test]
fn empty_and_ragged_sequences() {
    verify_text("b2 q5 k0 h2 d8 f32 seed=1");
    verify_text("packed=0x0,5x0,0x5,1x1,130x7,7x600,0x0 h2/1 d16 bf16 mask=causal seed=1");
}

/// Variable length that silently drops the mask.
#[test]
fn packed_sequences_keep_their_mask() {
    for mask in [
        "causal",
        "causal diagonal=top-left",
        "causal diagonal=-7",
        "window,9,2 diagonal=3",
        "window,4,0",
    ] {
        let packed: Case = format!("packed=9x9,6x12 h2 d8 f32 mask={mask} seed=5")
            .parse()
            .unwrap();
        let mut full = packed.clone();
        full.scoring.mask = Mask::none();
        verify_text(&packed.to_string());
        let ((_, masked), (_, unmasked)) = (run::<f32>(&packed), run::<f32>(&full));
        let first = masked.offset..masked.offset + 8;
        assert_ne!(masked.out[first.clone()], unmasked.out[first], "{mask}");
    }
}

/// An lse with its own idea of strides.
#[test]
fn lse_is_batch_heads_rows() {
    let case: Case = "b3 q7 k5 h4/2 d8 f32 layout=gaps seed=2".parse().unwrap();
    let (inputs, result) = run::<f32>(&case);
    assert_eq!(case.call().lse_shape(), [3, 4, 7]);
    assert!(case.check(&inputs, &result).is_ok());
    let packed: Case = "packed=3x5,4x2 h4/2 d8 f32 seed=2".parse().unwrap();
    verify_text(&packed.to_string());
    // Three rows of padding behind the seven.
    assert_eq!(packed.call().lse_shape(), [1, 4, 10]);
}

/// The first call right and the fiftieth wrong: memory that a call leaves behind.
#[test]
fn repeated_calls_give_the_same_bits() {
    let small: Case = "b1 q3 k5 h2 d8 f16 seed=1".parse().unwrap();
    let large: Case = "b2 q200 k700 h4/2 d64 f16 mask=causal seed=2"
        .parse()
        .unwrap();
    let (_, first) = run::<half::f16>(&large);
    for _ in 0..50 {
        run::<half::f16>(&small);
        let (_, again) = run::<half::f16>(&large);
        assert!(
            bytemuck::cast_slice::<_, u8>(&again.out) == bytemuck::cast_slice::<_, u8>(&first.out)
        );
        assert!(again.lse == first.lse);
    }
}

/// Results that depend on who computes what.
#[test]
fn the_number_of_threads_changes_nothing() {
    for text in [
        "b2 q300 k300 h8/2 d64 f32 mask=causal seed=3",
        // Few rows: how many heads share a task follows from the number of threads.
        "b1 q3 k1300 h8/1 d64 f32 mask=causal seed=4",
        "b2 q3 k700 h8/2 d64 f32 sinks bias keymask used=3x700,2x300 seed=5",
    ] {
        let case: Case = text.parse().unwrap();
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| run::<f32>(&case).1)
        };
        let (one, five) = (with(1), with(5));
        // By bits: rows that are not used keep their NaN.
        let bits = |lse: Vec<f32>| lse.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        assert!(bits(one.lse) == bits(five.lse));
        assert!(
            bytemuck::cast_slice::<_, u8>(&one.out) == bytemuck::cast_slice::<_, u8>(&five.out)
        );
    }
}

/// Query heads that share a key/value head, and the order in which they are worked on.
#[test]
fn grouped_heads_give_the_same_bits_every_time() {
    for text in [
        "b2 q3 k400 h32/8 d64 f16 mask=causal seed=6",
        "b1 q1 k3000 h8/1 d128 bf16 seed=7",
        "packed=1x300,40x7,3x900 h6/2 d40 f32 mask=causal seed=8",
    ] {
        let case: Case = text.parse().unwrap();
        let bits = |case: &Case| {
            let (_, result) = run::<f32>(&Case {
                element: f32::TYPE,
                ..case.clone()
            });
            let numbers = result.out.into_iter().chain(result.lse);
            numbers.map(f32::to_bits).collect::<Vec<u32>>()
        };
        let first = bits(&case);
        for _ in 0..10 {
            assert!(bits(&case) == first, "{text}");
        }
    }
}

/// A neighbour in the batch that decides how a sequence is cut into tiles.
#[test]
fn a_longer_neighbour_changes_no_bits() {
    let data = |len: usize, step: usize| -> Vec<f32> {
        (0..len)
            .map(|i| ((i * step % 997) as f32 / 498.5) - 1.0)
            .collect()
    };
    let (heads, kv_heads, head_dim) = (8, 2, 16);
    let (queries, keys) = (
        data(5 * heads * head_dim, 7),
        data(90 * kv_heads * head_dim, 11),
    );
    let alone = {
        let q = Layout::packed(5, heads, head_dim);
        let k = Layout::packed(90, kv_heads, head_dim);
        let call = Call::builder(&q, &k, &k, f32::TYPE)
            .packed(&[0, 5], &[0, 90])
            .scoring(Scoring::new().mask(Mask::causal()))
            .build()
            .unwrap();
        attend(&call, &queries, &keys, &keys)
    };
    for (other_queries, other_keys) in [(1, 1), (5, 2000), (700, 700)] {
        let q = Layout::packed(5 + other_queries, heads, head_dim);
        let k = Layout::packed(90 + other_keys, kv_heads, head_dim);
        let call = Call::builder(&q, &k, &k, f32::TYPE)
            .packed(
                &[0, 5, 5 + other_queries as i32],
                &[0, 90, 90 + other_keys as i32],
            )
            .scoring(Scoring::new().mask(Mask::causal()))
            .build()
            .unwrap();
        let mut queries = queries.clone();
        queries.extend(data(other_queries * heads * head_dim, 13));
        let mut keys = keys.clone();
        keys.extend(data(other_keys * kv_heads * head_dim, 17));
        let (out, lse) = attend(&call, &queries, &keys, &keys);
        assert!(
            out[..alone.0.len()] == alone.0,
            "{other_queries} x {other_keys}"
        );
        for head in 0..heads {
            let row = head * (5 + other_queries);
            assert!(lse[row..row + 5] == alone.1[head * 5..][..5]);
        }
    }
}

/// No driver, or one that is too old: a panic, or the end of the process.
#[test]
fn without_a_driver_the_cpu_is_used_and_asking_for_a_gpu_is_an_error() {
    // On a machine with a GPU both succeed; a panic is wrong on any.
    let backend = warptile::Backend::auto().unwrap();
    let tensor = backend.tensor(&[1.0_f32; 8], [1, 1, 1, 8]).unwrap();
    let output = warptile::Attention::new().forward(&tensor, (&tensor, &tensor));
    assert_eq!(output.unwrap().out.to_vec().unwrap(), [1.0; 8]);
    if let Err(error) = warptile::Backend::cuda(1000) {
        assert!(!error.to_string().is_empty());
    }
}

/// As many sequences and heads as there can be, and nothing to compute: no loop over all of them.
#[test]
fn nothing_to_compute_takes_no_time() {
    let q = Layout::bshd([1 << 30, 0, 1 << 30, 8]);
    let call = Call::builder(&q, &q, &q, f32::TYPE).build().unwrap();
    let (out, lse) = attend(&call, &[], &[], &[]);
    assert!(out.is_empty() && lse.is_empty());
    let none = HostInputs::default()
        .with::<f32>(Operand::Q, &[])
        .with::<f32>(Operand::K, &[])
        .with::<f32>(Operand::V, &[])
        .with::<f32>(Operand::Out, &[])
        .with::<f32>(Operand::DOut, &[])
        .with::<f32>(Operand::Lse, &[]);
    let backward = Backward::builder(call).build().unwrap();
    let [mut dq, mut dk, mut dv] = [[0.0_f32; 0]; 3];
    let outputs = HostOutputs::default()
        .with(Operand::DQ, &mut dq)
        .with(Operand::DK, &mut dk)
        .with(Operand::DV, &mut dv);
    backward_cpu(&backward, &none, outputs).unwrap();
    // The gradients of sinks, and of a bias for all, are sums of nothing.
    let q = Layout::bshd([1 << 30, 0, 2, 8]);
    let call = Call::builder(&q, &q, &q, f32::TYPE)
        .count(Operand::Sinks, 2)
        .layout(Operand::Bias, Layout::bshd([1, 1, 1, 1]));
    let backward = Backward::builder(call.build().unwrap());
    let backward = { [Operand::DQ, Operand::DK, Operand::DV].into_iter() }
        .fold(backward, |backward, operand| backward.want(operand, false))
        .want(Operand::DSinks, true)
        .want(Operand::DBias, true);
    let inputs = none
        .with(Operand::Sinks, &[0.0_f32; 2])
        .with(Operand::Bias, &[0.0_f32]);
    let (mut d_sinks, mut d_bias) = ([f32::NAN; 2], [f32::NAN]);
    let outputs = HostOutputs::default()
        .with(Operand::DSinks, &mut d_sinks)
        .with(Operand::DBias, &mut d_bias);
    backward_cpu(&backward.build().unwrap(), &inputs, outputs).unwrap();
    assert_eq!((d_sinks, d_bias), ([0.0; 2], [0.0]));
}

/// A row that sees no key, next to one that does: no element of a bias or a key mask belongs to it, and there may be none behind the last.
#[test]
fn a_bias_with_steps_ends_with_its_last_element() {
    for words in ["bias", "keymask", "bias=f32"] {
        for text in ["b1 q3 k2 h1 d8", "b2 q70 k60 h2 d16", "b1 q5 k4 h1 d64"] {
            verify_text(&format!(
                "{text} bf16 {words} mask=window,0,0 diagonal=top-left layout=gaps seed=1"
            ));
        }
    }
    // The only row sees none.
    for words in ["bias", "keymask", "bias=f32"] {
        for seed in 0..20 {
            let text = format!("q1 k3 h6 d192 {words} mask=window,2,25 diagonal=6 layout=gaps");
            let element = if words == "bias=f32" { "f16" } else { "f32" };
            verify_text(&format!("{text} {element} seed={seed}"));
        }
    }
    let backend = Backend::cpu();
    // As a panel, and as a handful of rows.
    for head_dim in [8, 64] {
        let ones = |rows: usize| vec![1.0_f32; rows * head_dim];
        let q = backend.tensor(&ones(3), [1, 3, 1, head_dim]).unwrap();
        let k = backend.tensor(&ones(2), [1, 2, 1, head_dim]).unwrap();
        let layout = Layout::new([1, 3, 1, 2], [12, 4, 4, 2]);
        let bias = backend.tensor_with_layout(&[0.0_f32; 11], layout).unwrap();
        let shown = backend.tensor_with_layout(&[1_u8; 11], layout).unwrap();
        let window = Mask::window(0, 0).diagonal(Diagonal::TopLeft);
        for keys in [
            Keys::new(&k, &k).bias(&bias),
            Keys::new(&k, &k).key_mask(&shown),
        ] {
            let output = Attention::new().mask(window).forward(&q, keys).unwrap();
            let out = output.out.to_vec().unwrap();
            assert_eq!(out[..2 * head_dim], ones(2));
            assert_eq!(out[2 * head_dim..], vec![0.0; head_dim]);
        }
    }
}

/// Products beyond the range of `f32`: inf - inf.
#[test]
fn overflowing_scores_make_no_nan() {
    let huge = 3e38;
    for (query, keys) in [
        ([huge; 8], [[huge; 8], [-huge; 8]]),
        // Partial sums overflow to both sides.
        (
            [huge, -huge, huge, -huge, 1.0, 1.0, 1.0, 1.0],
            [[huge; 8], [1.0; 8]],
        ),
        ([-huge; 8], [[huge; 8], [huge; 8]]),
    ] {
        for (softcap, scale) in [(None, 1.0), (Some(20.0), 1.0), (None, -1e10)] {
            let q = Layout::bshd([1, 1, 1, 8]);
            let k = Layout::bshd([1, 2, 1, 8]);
            let mut scoring = Scoring::new().scale(scale);
            scoring.softcap = softcap;
            let builder = Call::builder(&q, &k, &k, f32::TYPE).scoring(scoring);
            let call = builder.build().unwrap();
            let values: Vec<f32> = (0..16).map(|i| i as f32).collect();
            let (out, lse) = attend(&call, &query, keys.as_flattened(), &values);
            let inputs = HostInputs::new(&query, keys.as_flattened(), &values);
            let expected = reference(&call, &inputs).unwrap();
            for (a, b) in out.iter().zip(&expected.out) {
                assert!(
                    (f64::from(*a) - b).abs() < 1e-5,
                    "{out:?} {:?}",
                    expected.out
                );
            }
            assert!(lse[0].is_finite());
        }
    }
}

/// A query times the scale beyond the range of `f32`, while its scores are within: inf - inf.
#[test]
fn queries_that_overflow_by_their_scale_make_no_nan() {
    for rows in [1, 9] {
        let q = Layout::bshd([1, rows, 1, 8]);
        let k = Layout::bshd([1, 2, 1, 8]);
        for scale in [Scoring::MAX_SCALE, -Scoring::MAX_SCALE] {
            let call = Call::builder(&q, &k, &k, f32::TYPE).scoring(Scoring::new().scale(scale));
            let mut keys = [1e-3_f32.copysign(scale); 16];
            keys[8..].fill(5e-4_f32.copysign(scale));
            let values: Vec<f32> = (0..16).map(|i| (i / 8) as f32).collect();
            let queries = vec![8.0; 8 * rows];
            let (out, lse) = attend(&call.build().unwrap(), &queries, &keys, &values);
            assert!(out.iter().all(|&x| x == 0.0), "{out:?}");
            assert!(lse.iter().all(|x| x.is_finite()), "{lse:?}");
        }
    }
}

/// A softcap bounds products, but not what ALiBi takes from them.
#[test]
fn slopes_are_not_bounded_by_a_softcap() {
    let (q, k) = (Layout::bshd([1, 1, 1, 8]), Layout::bshd([1, 2, 1, 8]));
    for (slope, expected) in [(3e38_f32, -3e38_f32), (-3e38, 3e38)] {
        let scoring = Scoring::new()
            .softcap(1.0)
            .mask(Mask::causal().diagonal(Diagonal::TopLeft));
        let call = Call::builder(&q, &k, &k, f32::TYPE)
            .scoring(scoring)
            .count(Operand::Slopes, 1)
            .build()
            .unwrap();
        let (mut out, mut lse) = ([f32::NAN; 8], [f32::NAN]);
        let inputs = HostInputs::new(&[1.0_f32; 8], &[1.0_f32; 16], &[3.0_f32; 16]);
        let inputs = inputs.with(Operand::Slopes, std::slice::from_ref(&slope));
        forward_cpu(&call, &inputs, HostOutputs::new(&mut out).lse(&mut lse)).unwrap();
        assert_eq!(out, [3.0; 8]);
        assert_eq!(lse, [expected]);
    }
}

/// A NaN in a row that is used must be seen, not healed.
#[test]
fn nan_in_real_inputs_reaches_the_rows_that_see_it() {
    let call = dense(2, 2, Mask::causal());
    let mut keys = [1.0; 16];
    keys[8] = f32::NAN;
    let (out, lse) = attend(&call, &[1.0; 16], &keys, &[1.0; 16]);
    assert!(out[8..].iter().all(|x| x.is_nan()));
    assert!(lse[1].is_nan());
    assert!(out[..8].iter().all(|&x| x == 1.0) && lse[0].is_finite());
}

/// Huge but finite logits in a narrow type.
#[test]
fn huge_logits_pick_the_largest() {
    // The other head sizes are those of products of pairs.
    for head_dim in [8, 32, 64, 128] {
        // More than a handful of rows, too.
        for rows in [1, 40] {
            let q = Layout::bshd([1, rows, 1, head_dim]);
            let k = Layout::bshd([1, 3, 1, head_dim]);
            let call = Call::builder(&q, &k, &k, bf16::TYPE).build().unwrap();
            for (query, key, next) in [(1e18, 1e18, 2e18), (1e5, 1e5, 1.1e5), (1e5, 1e5, 1e5)] {
                let [query, key, next] = [query, key, next].map(bf16::from_f32);
                let queries = vec![query; rows * head_dim];
                let mut keys = vec![key; 3 * head_dim];
                keys[head_dim..2 * head_dim].fill(next);
                let value = |i: usize| bf16::from_f32((i / head_dim) as f32);
                let values: Vec<bf16> = (0..3 * head_dim).map(value).collect();
                let mut out = vec![bf16::NAN; rows * head_dim];
                let inputs = HostInputs::new(&queries, &keys, &values);
                forward_cpu(&call, &inputs, HostOutputs::new(&mut out)).unwrap();
                // The second key wins, or all count alike.
                assert!(
                    out.iter().all(|&x| x == bf16::ONE),
                    "{head_dim} {rows}: {out:?}"
                );
            }
        }
    }
}

/// Operands that don't fit are errors that name the argument, before anything is written.
#[test]
fn arguments_that_do_not_fit_are_named() {
    let call = dense(2, 3, Mask::none());
    let data = [0.0_f32; 24];
    let right = HostInputs::new(&data[..16], &data, &data);
    let rejected = |inputs: HostInputs<'_>, out_len: usize, lse_len: usize| {
        let mut out = vec![7.0; out_len];
        let mut lse = vec![7.0; lse_len];
        let outputs = HostOutputs::new::<f32>(&mut out).lse(&mut lse);
        let error = forward_cpu(&call, &inputs, outputs).unwrap_err();
        assert!(out.iter().chain(&lse).all(|&x| x == 7.0));
        error.to_string()
    };
    for operand in [Operand::Q, Operand::K, Operand::V] {
        let needed = call.reach(operand);
        let short = rejected(right.with(operand, &data[..needed - 1]), 16, 2);
        let expected = format!("{} needs a buffer of {needed} elements", operand.name());
        assert!(short.starts_with(&expected), "{short}");
        let half = [half::f16::ONE; 24];
        assert_eq!(
            rejected(right.with(operand, &half[..needed]), 16, 2),
            format!(
                "{} has elements of type f16, but must have f32",
                operand.name()
            )
        );
    }
    assert!(rejected(right, 15, 2).starts_with("out needs a buffer of 16 elements"));
    assert!(rejected(right, 16, 1).starts_with("lse needs a buffer of 2 elements"));
    let missing = HostInputs::default().with(Operand::Q, &data);
    assert!(rejected(missing, 16, 2).starts_with("k is missing"));
    let unwanted = right.with(Operand::Sinks, &data[..1]);
    assert!(rejected(unwanted, 16, 2).starts_with("sinks is given, but"));
    let mut out = [half::f16::ZERO; 16];
    let error = forward_cpu(&call, &right, HostOutputs::new(&mut out)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "out has elements of type f16, but must have f32"
    );
    assert_eq!(out, [half::f16::ZERO; 16]);
}
