use super::*;
use warptile::kernels::Kind;
use warptile::spec::Scoring;
use warptile::{Element, Mask};

/// The result of one query of size 8 with the given scores of its keys, with the operands of options; key `j` has the
/// value `j` in every place.
fn run(scores: &[f32], scoring: Scoring, options: HostInputs<'_>) -> (f64, f64) {
    let q = Layout::bshd([1, 1, 1, 8]);
    let k = Layout::bshd([1, scores.len(), 1, 8]);
    let mut query = [0.0_f32; 8];
    query[0] = 1.0;
    let mut keys = vec![0.0_f32; scores.len() * 8];
    let mut values = keys.clone();
    for (j, &score) in scores.iter().enumerate() {
        keys[j * 8] = score;
        values[j * 8..][..8].fill(j as f32);
    }
    let scoring = scoring.scale(scoring.scale.unwrap_or(1.0));
    let mut builder = Call::builder(&q, &k, &k, f32::TYPE).scoring(scoring);
    for operand in Operand::of_scores() {
        if options.elements::<u8>(operand).unwrap().is_some() {
            builder = match operand.kind() {
                Kind::Scores => builder.layout(operand, Layout::bshd([1, 1, 1, scores.len()])),
                _ => builder.count(operand, 1),
            };
        }
    }
    let inputs = { options.with(Operand::Q, &query) }
        .with(Operand::K, &keys)
        .with(Operand::V, &values);
    let output = reference(&builder.build().unwrap(), &inputs).unwrap();
    assert!(output.out.iter().all(|&x| x == output.out[0]));
    (output.out[0], output.lse[0])
}

fn none() -> HostInputs<'static> {
    HostInputs::default()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12
}

#[test]
fn softmax_by_hand() {
    let ln3 = 3.0_f32.ln();
    let (out, lse) = run(&[0.0, ln3], Scoring::new(), none());
    let e = f64::from(ln3).exp();
    assert!(close(out, e / (1.0 + e)));
    assert!((lse - 4.0_f64.ln()).abs() < 1e-7);
}

#[test]
fn softcap_is_before_alibi_and_both_before_the_mask() {
    // The query sits on key 2. Key 1 is at distance 1, key 0 out of the window.
    let scoring = Scoring::new().softcap(2.0).mask(Mask::window(1, 0));
    let slopes = none().with(Operand::Slopes, &[0.5_f32]);
    let (_, lse) = run(&[50.0, 3.0, 1.0], scoring, slopes);
    let expected = ((2.0 * 1.5_f64.tanh() - 0.5).exp() + (2.0 * 0.5_f64.tanh()).exp()).ln();
    assert!(close(lse, expected), "{lse} {expected}");
}

#[test]
fn a_bias_is_added_after_the_softcap() {
    let scoring = Scoring::new().softcap(2.0);
    let bias = none().with(Operand::Bias, &[5.0_f32, -1.0]);
    let (_, lse) = run(&[3.0, 1.0], scoring, bias);
    let expected = ((2.0 * 1.5_f64.tanh() + 5.0).exp() + (2.0 * 0.5_f64.tanh() - 1.0).exp()).ln();
    assert!(close(lse, expected), "{lse} {expected}");
}

#[test]
fn hidden_keys_do_not_count_whatever_they_hold() {
    let masked = |scores: &[f32], shown: &[u8]| {
        let options = none().with(Operand::KeyMask, shown);
        run(scores, Scoring::new(), options)
    };
    let biased = |scores: &[f32], bias: &[f32]| {
        let options = none().with(Operand::Bias, bias);
        run(scores, Scoring::new(), options)
    };
    let hidden = f32::NEG_INFINITY;
    for score in [7.0, f32::NAN] {
        let scores = [1.0, score, 2.0];
        let by_mask = masked(&scores, &[1, 0, 255]);
        let by_bias = biased(&scores, &[0.0, hidden, 0.0]);
        let expected = (1.0_f64.exp() + 2.0_f64.exp()).ln();
        assert!(
            close(by_mask.1, expected) && by_mask == by_bias,
            "{by_mask:?} {by_bias:?}"
        );
    }
    let nothing = (0.0, f64::NEG_INFINITY);
    assert_eq!(masked(&[1.0, 2.0], &[0, 0]), nothing);
    assert_eq!(biased(&[1.0], &[hidden]), nothing);
}

#[test]
fn a_sink_joins_the_denominator_only() {
    let sink = none().with(Operand::Sinks, &[3.0_f32]);
    let with_sink = |scores: &[f32], options| run(scores, Scoring::new(), options);
    let (out, lse) = with_sink(&[0.0, 1.0], sink);
    let sum = 1.0 + 1.0_f64.exp() + 3.0_f64.exp();
    assert!(close(out, 1.0_f64.exp() / sum) && close(lse, sum.ln()));
    // A row that sees no key.
    assert_eq!(with_sink(&[], sink), (0.0, 3.0));
    let masked = sink.with(Operand::KeyMask, &[0_u8]);
    assert_eq!(with_sink(&[5.0], masked), (0.0, 3.0));
}

#[test]
fn a_sink_of_minus_infinity_is_none() {
    let sink = none().with(Operand::Sinks, &[f32::NEG_INFINITY]);
    for keys in [&[0.0, 1.0][..], &[-3.0], &[]] {
        let without = run(keys, Scoring::new(), none());
        assert_eq!(run(keys, Scoring::new(), sink), without);
    }
}

#[test]
fn no_keys_give_zero_and_minus_infinity() {
    let nothing = run(&[], Scoring::new(), none());
    assert_eq!(nothing, (0.0, f64::NEG_INFINITY));
}

#[test]
fn scale_may_be_zero_or_negative() {
    let out = |scale| run(&[5.0, -5.0], Scoring::new().scale(scale), none()).0;
    assert!(close(out(0.0), 0.5));
    assert!(out(-1.0) > 0.99);
}

#[test]
fn rounding_to_f16_loses_what_f16_cannot_hold() {
    use half::f16;
    let q = Layout::bshd([1, 1, 1, 8]);
    let k = Layout::bshd([1, 2, 1, 8]);
    let call = Call::builder(&q, &k, &k, f16::TYPE)
        .scoring(Scoring::new().scale(1000.0))
        .build()
        .unwrap();
    let more_than_one = f16::from_f32(1.0 + 1.0 / 1024.0);
    let queries = [more_than_one; 8];
    let keys = [[more_than_one; 8], [f16::ONE; 8]];
    let values = [[f16::ZERO; 8], [f16::ONE; 8]];
    let inputs = HostInputs::new(&queries, keys.as_flattened(), values.as_flattened());
    let References { exact, rounded, .. } = compute::<f16>(&call, &inputs, true).unwrap();
    // Scores are 8015.6 and 8007.8, between numbers of f16 that are 4 apart.
    let product = |key: f64| 8.0 * (1.0 + 1.0 / 1024.0) * key * 1000.0;
    let difference = product(1.0 + 1.0 / 1024.0) - product(1.0);
    assert!(close(exact.out[0], 1.0 / (1.0 + difference.exp())));
    let stored = f16::from_f64(1.0 / (1.0 + 8.0_f64.exp()));
    assert_eq!(rounded.out[0], f64::from(stored));
    // The lse keeps what `f32` can hold.
    assert!((rounded.lse[0] - exact.lse[0]).abs() < 1e-3);
}

#[test]
fn what_would_take_forever_is_refused() {
    let q = Layout::bshd([1, 1 << 20, 64, 8]);
    let call = Call::builder(&q, &q, &q, f32::TYPE).build().unwrap();
    let data = vec![0.0_f32; 1 << 29];
    let error = reference(&call, &HostInputs::new(&data, &data, &data)).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let q = Layout::new([1, 1 << 20, 2, 8], [0, 0, 0, 1]);
    let out = Layout::bshd(q.shape);
    let call = Call::builder(&q, &q, &q, f32::TYPE)
        .out(out)
        .build()
        .unwrap();
    let row = &data[..8];
    let error = reference(&call, &HostInputs::new(row, row, row)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a float64 reference of 3.5e13 multiply-adds is too much; the limit is 2.7e11"
    );
}

#[test]
fn a_tensor_of_another_type_or_a_short_one_is_named() {
    let layout = Layout::bshd([1, 2, 1, 8]);
    let call = Call::builder(&layout, &layout, &layout, f32::TYPE)
        .build()
        .unwrap();
    let data = [0.0_f32; 16];
    let right = HostInputs::new(&data, &data, &data);
    assert!(reference(&call, &right).is_ok());
    let error = |inputs| reference(&call, &inputs).unwrap_err().to_string();
    assert_eq!(
        error(right.with(Operand::K, &[half::f16::ONE; 16])),
        "k has elements of type f16, but must have f32"
    );
    assert_eq!(
        error(right.with(Operand::K, &data[..15])),
        "k needs a buffer of 16 elements for its shape and strides, but has 15"
    );
}
