use super::*;
use warptile::{AlibiShape, Mask, Scoring};

/// What one query of size 8 with the given scores of its keys gives; key `j` has the value `j` in every place.
fn run(scores: &[f32], scoring: Scoring, operands: &Operands<'_, f32>) -> (f64, f64) {
    let q = Layout::bshd([1, 1, 1, 8]);
    let k = Layout::bshd([1, scores.len(), 1, 8]);
    let mut query = [0.0; 8];
    query[0] = 1.0;
    let mut keys = vec![0.0; scores.len() * 8];
    let mut values = keys.clone();
    for (j, &score) in scores.iter().enumerate() {
        keys[j * 8] = score;
        values[j * 8..][..8].fill(j as f32);
    }
    let scoring = scoring.scale(scoring.scale.unwrap_or(1.0));
    let mut builder = Call::builder(&q, &k, &k, f32::TYPE).scoring(scoring);
    let row = Layout::bshd([1, 1, 1, scores.len()]);
    if scoring.bias {
        builder = builder.bias(row);
    }
    if scoring.key_mask {
        builder = builder.key_mask(row);
    }
    let output = reference(
        &builder.build().unwrap(),
        View::new(&query, q),
        View::new(&keys, k),
        View::new(&values, k),
        operands,
    )
    .unwrap();
    assert!(output.out.iter().all(|&x| x == output.out[0]));
    (output.out[0], output.lse[0])
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12
}

#[test]
fn softmax_by_hand() {
    let ln3 = 3.0_f32.ln();
    let (out, lse) = run(&[0.0, ln3], Scoring::new(), &Operands::none());
    let e = f64::from(ln3).exp();
    assert!(close(out, e / (1.0 + e)));
    assert!((lse - 4.0_f64.ln()).abs() < 1e-7);
}

#[test]
fn softcap_is_before_alibi_and_both_before_the_mask() {
    // The query sits on key 2. Key 1 is at distance 1, key 0 out of the window.
    let mut scoring = Scoring::new().softcap(2.0).mask(Mask::window(1, 0));
    scoring.alibi = Some(AlibiShape::PerHead);
    let (_, lse) = run(&[50.0, 3.0, 1.0], scoring, &Operands::none().slopes(&[0.5]));
    let expected = ((2.0 * 1.5_f64.tanh() - 0.5).exp() + (2.0 * 0.5_f64.tanh()).exp()).ln();
    assert!(close(lse, expected), "{lse} {expected}");
}

#[test]
fn a_bias_is_added_after_the_softcap() {
    let mut scoring = Scoring::new().softcap(2.0);
    scoring.bias = true;
    let (_, lse) = run(&[3.0, 1.0], scoring, &Operands::none().bias(&[5.0, -1.0]));
    let expected = ((2.0 * 1.5_f64.tanh() + 5.0).exp() + (2.0 * 0.5_f64.tanh() - 1.0).exp()).ln();
    assert!(close(lse, expected), "{lse} {expected}");
}

#[test]
fn hidden_keys_do_not_count_whatever_they_hold() {
    let mut masked = Scoring::new();
    masked.key_mask = true;
    let mut biased = Scoring::new();
    biased.bias = true;
    let hidden = f32::NEG_INFINITY;
    for score in [7.0, f32::NAN] {
        let scores = [1.0, score, 2.0];
        let by_mask = run(&scores, masked, &Operands::none().key_mask(&[1, 0, 255]));
        let by_bias = run(&scores, biased, &Operands::none().bias(&[0.0, hidden, 0.0]));
        let expected = (1.0_f64.exp() + 2.0_f64.exp()).ln();
        assert!(
            close(by_mask.1, expected) && by_mask == by_bias,
            "{by_mask:?} {by_bias:?}"
        );
    }
    let nothing = (0.0, f64::NEG_INFINITY);
    assert_eq!(
        run(&[1.0, 2.0], masked, &Operands::none().key_mask(&[0, 0])),
        nothing
    );
    assert_eq!(
        run(&[1.0], biased, &Operands::none().bias(&[hidden])),
        nothing
    );
}

#[test]
fn a_sink_joins_the_denominator_only() {
    let mut scoring = Scoring::new();
    scoring.sinks = true;
    let sink = Operands::none().sinks(&[3.0]);
    let (out, lse) = run(&[0.0, 1.0], scoring, &sink);
    let sum = 1.0 + 1.0_f64.exp() + 3.0_f64.exp();
    assert!(close(out, 1.0_f64.exp() / sum) && close(lse, sum.ln()));
    // A row that sees no key.
    assert_eq!(run(&[], scoring, &sink), (0.0, 3.0));
    scoring.key_mask = true;
    assert_eq!(run(&[5.0], scoring, &sink.key_mask(&[0])), (0.0, 3.0));
}

#[test]
fn a_sink_of_minus_infinity_is_none() {
    let mut scoring = Scoring::new();
    scoring.sinks = true;
    let none = Operands::none().sinks(&[f32::NEG_INFINITY]);
    for keys in [&[0.0, 1.0][..], &[-3.0], &[]] {
        let without = run(keys, Scoring::new(), &Operands::none());
        assert_eq!(run(keys, scoring, &none), without);
    }
}

#[test]
fn no_keys_give_zero_and_minus_infinity() {
    let nothing = run(&[], Scoring::new(), &Operands::none());
    assert_eq!(nothing, (0.0, f64::NEG_INFINITY));
}

#[test]
fn scale_may_be_zero_or_negative() {
    let out = |scale| run(&[5.0, -5.0], Scoring::new().scale(scale), &Operands::none()).0;
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
    let kv = [&keys, &values].map(|rows| View::new(rows.as_flattened(), k).into());
    let q = View::new(&queries, q);
    let References { exact, rounded, .. } = compute(&call, q, kv, &Operands::none(), true).unwrap();
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
    let data = vec![0.0; 1 << 29];
    let view = View::new(&data[..], q);
    let error = reference(&call, view, view, view, &Operands::none()).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let q = Layout::new([1, 1 << 20, 2, 8], [0, 0, 0, 1]);
    let out = Layout::bshd(q.shape);
    let call = Call::builder(&q, &q, &q, f32::TYPE)
        .out(out)
        .build()
        .unwrap();
    let view = View::new(&data[..8], q);
    let error = reference(&call, view, view, view, &Operands::none()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a float64 reference of 3.5e13 multiply-adds is too much; the limit is 2.7e11"
    );
}

#[test]
fn a_tensor_of_another_layout_is_named() {
    let layout = Layout::bshd([1, 2, 1, 8]);
    let call = Call::builder(&layout, &layout, &layout, f32::TYPE)
        .build()
        .unwrap();
    let data = [0.0; 32];
    let right = View::new(&data[..], layout);
    let error = |k| {
        let error = reference(&call, right, k, right, &Operands::none()).unwrap_err();
        error.to_string()
    };
    let longer = View::new(&data[..], Layout::bshd([1, 3, 1, 8]));
    assert!(error(longer).starts_with("k has length 3, but the call has 2"));
    let strided = View::new(&data[..], Layout::new(layout.shape, [0, 16, 8, 1]));
    assert!(error(strided).starts_with("k has strides [0, 16, 8, 1], but"));
}

#[test]
fn a_short_buffer_is_named() {
    let layout = Layout::bshd([1, 2, 1, 8]);
    let call = Call::builder(&layout, &layout, &layout, f32::TYPE)
        .build()
        .unwrap();
    let (full, short) = ([0.0; 16], [0.0; 15]);
    let full = View::new(&full[..], layout);
    let short = View::new(&short[..], layout);
    let error = reference(&call, full, short, full, &Operands::none()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "k needs a buffer of 16 elements for its shape and strides, but has 15"
    );
}
