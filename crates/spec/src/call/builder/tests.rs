//! Every rule a problem can break, and what problems say of themselves.

use super::*;
use crate::{Backward, Features, HostInputs, MAX_LEN, Mask};

fn build(q: [usize; 4], k: [usize; 4], v: [usize; 4]) -> Result<Call> {
    Call::builder(
        &Layout::bshd(q),
        &Layout::bshd(k),
        &Layout::bshd(v),
        ElementType::F32,
    )
    .build()
}

fn message(result: Result<Call>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn head_size_not_a_multiple_of_8_or_over_512() {
    for head_dim in [0, 4, 59, 300, 520, 1 << 40] {
        let shape = [1, 3, 2, head_dim];
        let text = message(build(shape, shape, shape));
        assert!(
            text.starts_with(&format!("q has head size {head_dim};")),
            "{text}"
        );
    }
}

#[test]
fn values_may_have_a_head_size_of_their_own() {
    let call = build([2, 3, 4, 192], [2, 5, 2, 192], [2, 5, 2, 128]).unwrap();
    assert_eq!((call.heads().dim, call.heads().value_dim), (192, 128));
    assert_eq!(*call.out(), Layout::bshd([2, 3, 4, 128]));
    assert_eq!(call.flops(), 2 * 2 * 3 * 5 * 4 * (192 + 128));
    assert_eq!(call.scale(), 1.0 / 192_f32.sqrt());
    assert!(call.to_string().contains("head size 192 (128 of values)"));
    assert_eq!(call.problem().line(), "b2 q3 k64 h4/2 d192/128 f32");
    // Wider ones, too.
    assert!(build([1, 1, 1, 8], [1, 1, 1, 8], [1, 1, 1, 512]).is_ok());
    for value_dim in [0, 12, 520] {
        let text = message(build([1, 3, 2, 64], [1, 3, 2, 64], [1, 3, 2, value_dim]));
        let start = format!("v has head size {value_dim};");
        assert!(text.starts_with(&start), "{text}");
    }
    let (q, v) = (Layout::bshd([1, 4, 2, 64]), Layout::bshd([1, 4, 2, 32]));
    let text = message(Call::builder(&q, &q, &v, ElementType::F16).out(q).build());
    assert_eq!(text, "out has head size 64, but v has 32");
}

#[test]
fn query_heads_not_a_multiple_of_key_value_heads() {
    for (heads, kv_heads) in [(6, 4), (2, 4), (0, 1), (4, 0), (0, 0)] {
        let text = message(build(
            [1, 3, heads, 8],
            [1, 3, kv_heads, 8],
            [1, 3, kv_heads, 8],
        ));
        assert!(
            text.starts_with(&format!("q has {heads} heads and k has {kv_heads};")),
            "{text}"
        );
    }
}

#[test]
fn mismatched_dimensions_name_tensor_and_dimension() {
    let q = [2, 3, 4, 16];
    for (k, v, start) in [
        ([3, 5, 2, 16], [2, 5, 2, 16], "v has batch 2, but k has 3"),
        ([2, 5, 2, 16], [1, 5, 2, 16], "v has batch 1, but k has 2"),
        (
            [2, 5, 2, 24],
            [2, 5, 2, 16],
            "k has head size 24, but q has 16",
        ),
        ([2, 5, 2, 16], [2, 6, 2, 16], "v has length 6, but k has 5"),
        ([2, 5, 2, 16], [2, 5, 4, 16], "v has heads 4, but k has 2"),
    ] {
        let text = message(build(q, k, v));
        assert!(text.starts_with(start), "{text}");
    }
}

#[test]
fn mismatched_element_types() {
    let layout = Layout::bshd([1, 4, 2, 16]);
    let build = |types: Types| {
        let call = Call::builder(&layout, &layout, &layout, types).build();
        call.map(|call| call.types())
    };
    let f16 = Types::of(ElementType::F16);
    let e4m3 = f16.keys(ElementType::E4m3);
    assert_eq!(build(e4m3).unwrap(), e4m3);
    let text = |types| build(types).unwrap_err().to_string();
    for (argument, types) in [
        ("k", f16.keys(ElementType::F32)),
        (
            "v",
            Types {
                v: ElementType::F32,
                ..f16
            },
        ),
        (
            "out",
            Types {
                out: ElementType::F32,
                ..f16
            },
        ),
    ] {
        let expected = format!("{argument} has elements of type f32, but must have f16");
        assert_eq!(text(types), expected);
    }
    let half = Types {
        v: ElementType::F16,
        ..e4m3
    };
    assert_eq!(text(half), "v has elements of type f16, but must have e4m3");
    assert_eq!(
        text(Types::of(ElementType::E4m3)),
        "q is in e4m3, which only keys and values can have"
    );
}

#[test]
fn non_contiguous_last_dimension() {
    let q = Layout::bshd([1, 4, 2, 8]);
    let v = Layout::new([1, 4, 2, 8], [128, 32, 16, 2]);
    let text = message(Call::builder(&q, &q, &v, ElementType::F16).build());
    assert!(
        text.starts_with("v has stride 2 in its last dimension"),
        "{text}"
    );
}

#[test]
fn overlapping_output() {
    let q = Layout::bshd([1, 4, 2, 8]);
    let out = Layout::new([1, 4, 2, 8], [0, 0, 8, 1]);
    let text = message(Call::builder(&q, &q, &q, ElementType::F16).out(out).build());
    assert!(text.starts_with("out overlaps"), "{text}");
    // Inputs may repeat rows.
    assert!(
        Call::builder(&q, &out, &out, ElementType::F16)
            .build()
            .is_ok()
    );
}

#[test]
fn output_of_another_shape() {
    let q = Layout::bshd([1, 4, 2, 8]);
    let out = Layout::bshd([1, 5, 2, 8]);
    let text = message(Call::builder(&q, &q, &q, ElementType::F16).out(out).build());
    assert!(text.starts_with("out has length 5, but q has 4"), "{text}");
}

#[test]
fn nan_and_infinite_scale() {
    let q = Layout::bshd([1, 4, 2, 8]);
    for scale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let text = message(
            Call::builder(&q, &q, &q, ElementType::F32)
                .scoring(Scoring::new().scale(scale))
                .build(),
        );
        assert!(text.starts_with("scale is "), "{text}");
    }
    for scale in [0.0, -1.0] {
        assert!(
            Call::builder(&q, &q, &q, ElementType::F32)
                .scoring(Scoring::new().scale(scale))
                .build()
                .is_ok()
        );
    }
}

#[test]
fn softcap_must_be_positive() {
    let q = Layout::bshd([1, 4, 2, 8]);
    for softcap in [f32::NAN, f32::INFINITY, 0.0, -2.0] {
        let text = message(
            Call::builder(&q, &q, &q, ElementType::F32)
                .scoring(Scoring::new().softcap(softcap))
                .build(),
        );
        assert!(text.starts_with("softcap is "), "{text}");
    }
}

#[test]
fn lengths_have_a_limit() {
    let short = Layout::bshd([1, 1, 1, 8]);
    let long = Layout::new([1, MAX_LEN + 1, 1, 8], [0, 0, 0, 1]);
    let text = message(Call::builder(&short, &long, &long, ElementType::F32).build());
    assert!(
        text.starts_with("k has length 1073741825; the limit is"),
        "{text}"
    );
}

#[test]
fn shapes_beyond_the_address_space() {
    let short = Layout::bshd([1, 1, 1, 8]);
    let far = Layout::new([1, 1 << 30, 1, 8], [0, 1 << 40, 0, 1]);
    let text = message(Call::builder(&short, &far, &far, ElementType::F32).build());
    assert!(
        text.starts_with("k has a shape and strides that reach beyond"),
        "{text}"
    );
}

#[test]
fn row_offsets_that_break_a_rule() {
    let tensor = Layout::packed(10, 2, 8);
    for (q, k, expected) in [
        (&[1, 5][..], &[0, 5][..], "query_offsets[0] is 1;"),
        (&[], &[0, 5], "query_offsets[0] is missing"),
        (&[0, 5, 4], &[0, 5, 6], "query_offsets[2] is 4, less than"),
        (
            &[0, 5, 10],
            &[0, 5, 11],
            "key_offsets[2] is 11, but the tensor has only 10 rows",
        ),
        (&[0, -5], &[0, 5], "query_offsets[1] is -5, less than"),
        (
            &[0, 5],
            &[0, 5, 10],
            "key_offsets has 2 sequences, but query_offsets has 1",
        ),
        (
            &[0, i32::MAX],
            &[0, 5],
            "query_offsets[1] is 2147483647, but",
        ),
    ] {
        let text = message(
            Call::builder(&tensor, &tensor, &tensor, ElementType::F32)
                .packed(q, k)
                .build(),
        );
        assert!(text.starts_with(expected), "{text}");
    }
}

#[test]
fn packed_tensors_have_one_batch_entry() {
    let tensor = Layout::bshd([2, 10, 2, 8]);
    let text = message(
        Call::builder(&tensor, &tensor, &tensor, ElementType::F32)
            .packed(&[0, 10], &[0, 10])
            .build(),
    );
    assert!(
        text.starts_with("q has batch 2, but a packed tensor has 1"),
        "{text}"
    );
}

#[test]
fn packed_sequences_are_where_the_offsets_say() {
    let q = Layout::packed(10, 2, 8);
    let k = Layout::packed(20, 2, 8);
    let problem = Call::builder(&q, &k, &k, ElementType::F32)
        .scoring(Scoring::new().mask(Mask::causal()))
        .packed(&[0, 3, 3, 8], &[0, 0, 7, 20])
        .build()
        .unwrap();
    assert_eq!(
        (problem.batch(), problem.query_len(), problem.key_len()),
        (3, 5, 13)
    );
    let last = problem.sequences().last().unwrap();
    assert_eq!((last.batch, last.q_entry, last.k_entry), (2, 0, 0));
    assert_eq!(
        (last.q_start, last.q_len, last.k_start, last.k_len),
        (3, 5, 7, 13)
    );
    // Only the last sequence has pairs: its rows see 9, 10, ..., 13 keys.
    assert_eq!(problem.visible_pairs(), 55);
    assert_eq!(problem.lse_shape(), [1, 2, 10]);
    assert_eq!(problem.lse_offset(&last, 1), 13);
}

#[test]
fn empty_problems_are_fine() {
    for (q, k) in [
        ([0, 4, 2, 8], [0, 4, 2, 8]),
        ([2, 0, 2, 8], [2, 4, 2, 8]),
        ([2, 4, 2, 8], [2, 0, 2, 8]),
    ] {
        assert_eq!(build(q, k, k).unwrap().flops(), 0);
    }
}

#[test]
fn slopes_and_sinks_are_checked() {
    let q = Layout::bshd([3, 4, 2, 8]);
    let build = |words: &str| {
        Call::builder(&q, &q, &q, ElementType::F32)
            .scoring(words.parse().unwrap())
            .build()
            .unwrap()
    };
    let without = build("");
    let per_head = build("alibi=head");
    let per_batch = build("alibi=batch");
    let text = |result: Result<()>| result.unwrap_err().to_string();
    let slopes = |call: &Call, values: &[f32]| call.check_values(Operand::Slopes, values);
    assert!(slopes(&per_head, &[0.5, 0.25]).is_ok());
    assert!(slopes(&per_batch, &[0.5; 6]).is_ok());
    assert!(text(slopes(&without, &[0.5; 2])).starts_with("alibi_slopes is given"));
    assert_eq!(
        text(slopes(&per_head, &[0.5; 3])),
        "alibi_slopes has 3 values; 2 are needed"
    );
    assert!(text(slopes(&per_head, &[0.5, f32::NAN])).starts_with("alibi_slopes[1] is NaN"));
    let with_sinks = build("sinks");
    let sinks = |values: &[f32]| with_sinks.check_values(Operand::Sinks, values);
    assert!(sinks(&[0.0, -50.0]).is_ok());
    assert!(text(sinks(&[0.0; 6])).starts_with("sinks has 6 values; 2"));
    assert!(sinks(&[f32::NEG_INFINITY, 3e38]).is_ok());
    for value in [f32::NAN, f32::INFINITY] {
        assert_eq!(
            text(sinks(&[f32::NEG_INFINITY, value])),
            format!("sinks[1] is {value}, but must be a finite number, or -inf for none")
        );
    }
    let data = [0.0_f32; 3 * 4 * 2 * 8];
    let inputs = HostInputs::new(&data, &data, &data);
    for (call, missing) in [(per_head, "alibi_slopes"), (with_sinks, "sinks")] {
        let error = text(call.check_inputs(&inputs));
        assert!(
            error.starts_with(&format!("{missing} is missing")),
            "{error}"
        );
    }
}

#[test]
fn biases_broadcast_and_are_checked() {
    let q = Layout::bshd([3, 4, 2, 8]);
    let k = Layout::bshd([3, 5, 2, 8]);
    let scoring: Scoring = "bias".parse().unwrap();
    let builder = Call::builder(&q, &k, &k, ElementType::F32).scoring(scoring);
    let with = |shape| { builder.clone().layout(Operand::Bias, Layout::bhsd(shape)) }.build();
    let call = with([1, 2, 4, 5]).unwrap();
    assert_eq!(call.layout(Operand::Bias).unwrap().strides, [0, 5, 20, 1]);
    assert_eq!(
        with([1, 1, 1, 5])
            .unwrap()
            .layout(Operand::Bias)
            .unwrap()
            .strides,
        [0, 0, 0, 1]
    );
    assert_eq!(
        message(with([3, 2, 3, 5])),
        "bias has queries 3, but the call has 4"
    );
    assert_eq!(
        message(builder.clone().build()),
        "bias is missing, but the options ask for it"
    );
    let tensor = Layout::packed(4, 2, 8);
    let packed = Call::builder(&tensor, &tensor, &tensor, ElementType::F32)
        .scoring(scoring)
        .packed(&[0, 4], &[0, 4])
        .layout(Operand::Bias, Layout::bhsd([1, 1, 4, 4]));
    assert!(message(packed.build()).starts_with("bias needs dense tensors"));
    // The buffer must reach as far as the layout.
    let data = vec![0.0_f32; 240];
    let inputs = HostInputs::new(&data, &data, &data).with(Operand::Bias, &data[..39]);
    let error = call.check_inputs(&inputs).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("bias needs a buffer of 40 elements"),
        "{error}"
    );
}

#[test]
fn a_bias_has_the_type_of_the_queries_or_f32() {
    let q = Layout::bshd([1, 4, 2, 8]);
    let bias = Layout::bhsd([1, 2, 4, 4]);
    let builder = Call::builder(&q, &q, &q, ElementType::F16).layout(Operand::Bias, bias);
    let needs = |builder: &CallBuilder<'_>| {
        let call = builder.clone().build().unwrap();
        (call.type_of(Operand::Bias), call.problem().needs())
    };
    let f32 = builder.clone().bias_type(ElementType::F32);
    let (found, wanted) = needs(&f32);
    assert_eq!(found, Some(ElementType::F32));
    assert!(wanted.contains(Features::BIAS | Features::BIAS_F32));
    for like_queries in [builder, f32.clone().bias_type(ElementType::F16)] {
        let (found, wanted) = needs(&like_queries);
        assert_eq!(found, Some(ElementType::F16));
        assert!(!wanted.contains(Features::BIAS_F32));
    }
    // Where the queries are of f32, it is no feature.
    let of_f32 = Call::builder(&q, &q, &q, ElementType::F32).layout(Operand::Bias, bias);
    let (found, wanted) = needs(&of_f32.bias_type(ElementType::F32));
    assert_eq!(found, Some(ElementType::F32));
    assert!(!wanted.contains(Features::BIAS_F32));
    let call = f32.build().unwrap();
    assert_eq!(call.scoring().to_string(), "bias=f32");
    assert_eq!("bias=f32".parse(), Ok(*call.scoring()));
    assert_eq!(
        Backward::builder(call).build().unwrap_err().to_string(),
        "bias has elements of f32, but a bias of another type than the queries' has no backward pass"
    );
}

#[test]
fn used_lengths_are_checked_and_narrow_the_sequences() {
    let q = Layout::bshd([2, 4, 2, 8]);
    let k = Layout::bshd([2, 9, 2, 8]);
    let builder = Call::builder(&q, &k, &k, ElementType::F32);
    let call = builder
        .clone()
        .query_lengths(&[4, 1])
        .key_lengths(&[0, 7])
        .build()
        .unwrap();
    assert_eq!((call.query_len(), call.key_len()), (4, 7));
    let lengths: Vec<_> = call
        .sequences()
        .map(|s| (s.q_len, s.k_len, s.k_entry))
        .collect();
    assert_eq!(lengths, [(4, 0, 0), (1, 7, 1)]);
    let text = |lengths: &[i32]| message(builder.clone().key_lengths(lengths).build());
    assert_eq!(
        text(&[0, 10]),
        "key_lengths[1] is 10, but sequence 1 has 9 rows"
    );
    assert_eq!(
        text(&[-1, 0]),
        "key_lengths[0] is -1, but sequence 0 has 9 rows"
    );
    assert!(text(&[1]).starts_with("key_lengths[1] ends the list"));
}

#[test]
fn queries_may_be_packed_over_dense_keys() {
    let q = Layout::packed(6, 4, 8);
    let k = Layout::bshd([2, 9, 2, 8]);
    let call = Call::builder(&q, &k, &k, ElementType::F32)
        .packed_queries(&[0, 1, 6])
        .build()
        .unwrap();
    let sequence = call.sequences().last().unwrap();
    assert_eq!(
        (sequence.q_entry, sequence.q_start, sequence.q_len),
        (0, 1, 5)
    );
    assert_eq!(
        (sequence.k_entry, sequence.k_start, sequence.k_len),
        (1, 0, 9)
    );
    let wrong = Call::builder(&q, &k, &k, ElementType::F32)
        .packed_queries(&[0, 6])
        .build();
    assert_eq!(
        message(wrong),
        "query_offsets has 1 sequence, but k has batch 2"
    );
    let packed = Layout::packed(6, 2, 8);
    let wrong = Call::builder(&k, &packed, &packed, ElementType::F32)
        .packed_keys(&[0, 1, 3, 6])
        .build();
    assert_eq!(
        message(wrong),
        "key_offsets has 3 sequences, but q has batch 2"
    );
    let wrong = Call::builder(&q, &k, &k, ElementType::F32)
        .packed_queries(&[0, 6])
        .block_table(&[0, 1], [2, 1])
        .build();
    assert_eq!(
        message(wrong),
        "query_offsets has 1 sequence, but block_table has batch 2"
    );
}

#[test]
fn lengths_on_the_device_are_bounds_on_the_host() {
    let q = Layout::packed(6, 4, 8);
    let k = Layout::bshd([3, 9, 2, 8]);
    let call = Call::builder(&q, &k, &k, ElementType::F32)
        .device_query_offsets(3, 4)
        .device_key_lengths(3)
        .build()
        .unwrap();
    assert_eq!((call.batch(), call.query_len(), call.key_len()), (3, 4, 9));
    assert!(call.lengths_on_device());
    let data = vec![0.0_f32; 600];
    let error = call
        .check_inputs(&HostInputs::new(&data, &data, &data))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "query_offsets is on a GPU, but the tensors are in host memory"
    );
}

#[test]
fn flops_count_visible_pairs() {
    let shape = [2, 512, 8, 64];
    let full = build(shape, shape, shape).unwrap();
    assert_eq!(full.flops(), 4 * 2 * 8 * 512 * 512 * 64);
}

#[test]
fn a_problem_prints_as_a_sentence() {
    let q = Layout::bshd([1, 100, 8, 64]);
    let k = Layout::bshd([1, 300, 2, 64]);
    let problem = Call::builder(&q, &k, &k, ElementType::F16)
        .scoring(Scoring::new().mask(Mask::causal()).softcap(30.0))
        .build()
        .unwrap();
    assert_eq!(
        problem.to_string(),
        "f16 1 sequence, 8 heads (2 for keys and values), 100 x 300 rows, head size 64, mask=causal softcap=30"
    );
}

/// Pages of 16 rows: the layout of k and v.
fn pages(count: usize, rows: usize) -> Layout {
    Layout::bshd([count, rows, 2, 8])
}

fn paged<'a>(batch: usize, pages: &Layout) -> CallBuilder<'a> {
    let q = Layout::bshd([batch, 3, 4, 8]);
    Call::builder(&q, pages, pages, ElementType::F16)
}

#[test]
fn a_call_names_the_type_of_a_quantized_cache() {
    let q = Layout::bshd([1, 1, 2, 16]);
    let types = Types::of(ElementType::F16).keys(ElementType::E4m3);
    let call = Call::builder(&q, &q, &q, types).build().unwrap();
    assert_eq!(
        call.to_string(),
        "f16 (e4m3 for keys and values) 1 sequence, 2 heads, 1 x 1 rows, head size 16"
    );
}

#[test]
fn paged_keys_take_their_batch_and_bound_from_the_table() {
    let k = pages(9, 16);
    let table = [3_u32, 4, 8, u32::MAX];
    let call = paged(2, &k)
        .block_table(&table, [2, 2])
        .key_lengths(&[20, 7])
        .build()
        .unwrap();
    assert_eq!((call.batch(), call.key_len()), (2, 20));
    assert_eq!(call.keys().rows(), 20);
    let lengths: Vec<usize> = call.sequences().map(|s| s.k_len).collect();
    assert_eq!(lengths, [20, 7]);
    assert!(call.problem().needs().contains(crate::Features::PAGED));
    assert!(call.to_string().contains("3 x 20 rows in pages of 16"));

    let all = paged(2, &k).block_table(&[0, 1, 2, 3], [2, 2]);
    assert_eq!(all.build().unwrap().key_len(), 32);
    let on_device = || paged(2, &k).device_block_table([2, 1000]);
    let key_len = |builder: CallBuilder<'_>| builder.build().unwrap().key_len();
    assert_eq!(key_len(on_device()), 16_000);
    assert_eq!(key_len(on_device().device_key_lengths(2)), 16_000);
    let bounded = on_device().device_key_lengths(2).longest_keys(500);
    assert_eq!(key_len(bounded), 500);
    assert_eq!(key_len(on_device().key_lengths(&[7, 31])), 31);
}

/// Kernels look for the ends of sequences only where lengths say that there are some.
#[test]
fn a_bound_below_the_rows_of_a_dense_tensor_needs_lengths() {
    let q = Layout::bshd([2, 1024, 4, 64]);
    let builder = || Call::builder(&q, &q, &q, ElementType::F16);
    for (cut, whole, argument) in [
        (
            builder().longest_keys(1000),
            builder().longest_keys(1024),
            "longest_keys",
        ),
        (
            builder().longest_queries(1000),
            builder().longest_queries(2000),
            "longest_queries",
        ),
    ] {
        let message = message(cut.build());
        assert!(message.starts_with(argument), "{message}");
        whole.build().unwrap();
    }
    let key_len = |builder: CallBuilder<'_>| builder.build().unwrap().key_len();
    assert_eq!(
        key_len(builder().device_key_lengths(2).longest_keys(1000)),
        1000
    );
    assert_eq!(key_len(builder().key_lengths(&[9, 7]).longest_keys(8)), 8);
}

/// That of offsets on the device goes with them, and the least of both counts.
#[test]
fn a_bound_stays_when_offsets_change() {
    let q = Layout::packed(6, 2, 64);
    let builder = || {
        Call::builder(&q, &q, &q, ElementType::F16)
            .device_query_offsets(2, 1)
            .device_key_offsets(2, 1)
    };
    let on_host = |builder: CallBuilder<'static>| builder.packed(&[0, 4, 6], &[0, 4, 6]);
    let bounded = |builder: CallBuilder<'static>| builder.longest_queries(2).longest_keys(3);
    for (builder, bounds) in [
        (builder(), (1, 1)),
        (bounded(builder()), (1, 1)),
        (on_host(builder()), (4, 4)),
        (on_host(bounded(builder())), (2, 3)),
        (bounded(on_host(builder())), (2, 3)),
    ] {
        let call = builder.build().unwrap();
        assert_eq!((call.query_len(), call.key_len()), bounds);
    }
}

#[test]
fn every_rule_of_a_block_table() {
    let k = pages(9, 16);
    let build = |builder: CallBuilder<'_>| message(builder.build());
    for (builder, expected) in [
        (
            paged(2, &k)
                .block_table(&[3, 4, 9, 0], [2, 2])
                .key_lengths(&[20, 7]),
            "block_table[2] is 9, but k has 9 pages; it is entry 0 of sequence 1, whose 7 keys need 1",
        ),
        (
            paged(2, &k)
                .block_table(&[3, -1, 5, 0], [2, 2])
                .key_lengths(&[17, 7]),
            "block_table[1] is -1, but k has 9 pages",
        ),
        (
            paged(2, &k).block_table(&[3, 4, 5], [2, 2]),
            "block_table needs a buffer of 4 elements for its shape and strides, but has 3",
        ),
        (
            paged(3, &k).block_table(&[3, 4, 5, 6], [2, 2]),
            "block_table has batch 2, but q has 3",
        ),
        (
            paged(2, &k)
                .block_table(&[3, 4], [2, 1])
                .key_lengths(&[16, 17]),
            "key_lengths[1] is 17, but sequence 1 has 16 rows",
        ),
        (
            paged(2, &k).block_table(&[3, 4], [2, 1]).key_lengths(&[16]),
            "key_lengths[1] ends the list: 1 length for 2 sequences",
        ),
        (
            paged(2, &k)
                .block_table(&[3, 4], [2, 1])
                .packed_keys(&[0, 1]),
            "key_offsets is given, but keys in pages are not packed",
        ),
        (
            paged(2, &pages(9, 257)).device_block_table([2, 1]),
            "k has pages of 257 rows; a page has 1 to 256",
        ),
        (
            paged(2, &pages(9, 0)).device_block_table([2, 1]),
            "k has pages of 0 rows; a page has 1 to 256",
        ),
        (
            paged(2, &pages(0, 16)).device_block_table([2, 1]),
            "k has no pages, but sequences may have up to 16 keys",
        ),
        (
            paged(2, &k).device_block_table([2, 1 << 30]),
            "block_table has capacity 17179869184; the limit is 1073741824",
        ),
        (
            paged(2, &k).device_block_table(TableLayout::new([2, 2], usize::MAX)),
            "block_table has a shape and strides that reach beyond the address space",
        ),
    ] {
        let text = build(builder);
        assert!(text.starts_with(expected), "{text}");
    }
    let q = Layout::bshd([1, 3, 4, 8]);
    let text = message(
        Call::builder(&q, &k, &pages(8, 16), ElementType::F16)
            .device_block_table([1, 1])
            .build(),
    );
    assert_eq!(text, "v has pages 8, but k has 9");
}

#[test]
fn nobody_looks_at_entries_that_no_key_needs() {
    let k = pages(9, 16);
    let lengths = [16, 0];
    let table = [3, -1, i32::MAX, i32::MIN];
    let call = paged(2, &k)
        .block_table(&table, [2, 2])
        .key_lengths(&lengths);
    assert!(call.build().is_ok());
    // Whatever the device says the lengths are: kernels clamp the entries too.
    let call = paged(2, &k)
        .block_table(&table, [2, 2])
        .device_key_lengths(2);
    assert!(call.build().is_ok());
    let none = paged(0, &pages(0, 1)).block_table::<i32>(&[], [0, 7]);
    assert!(none.build().is_ok());
    let none = paged(5, &pages(0, 1)).block_table::<i32>(&[], TableLayout::new([5, 0], 3));
    assert_eq!(none.build().unwrap().key_len(), 0);
}

#[test]
fn a_growing_paged_cache_makes_few_problems() {
    let k = pages(9000, 16);
    let problem = |keys: usize| {
        let call = paged(1, &k).device_block_table([1, keys.div_ceil(16)]);
        call.device_key_lengths(1).build().unwrap().problem()
    };
    let problems: std::collections::HashSet<_> = (4096..5096).map(problem).collect();
    assert!(problems.len() <= 4, "{}", problems.len());
    assert_eq!(problem(4096).page_rows(), Some(16));
    let rows = |rows: usize| {
        let k = pages(9, rows);
        let call = paged(1, &k).device_block_table([1, 3]).longest_keys(3);
        call.build().unwrap().problem()
    };
    assert_eq!(rows(48), rows(16));
    assert_eq!(rows(3).page_rows(), Some(1));
    assert_ne!(rows(16), rows(32));
}

#[test]
fn a_bias_of_paged_keys_has_a_column_for_every_key_or_more() {
    let k = pages(9, 16);
    let with_bias = |columns: usize| {
        paged(2, &k)
            .block_table(&[1, 2, 3, 4], [2, 2])
            .key_lengths(&[20, 7])
            .layout(Operand::Bias, Layout::bhsd([1, 4, 3, columns]))
            .build()
    };
    assert_eq!(
        message(with_bias(19)),
        "bias has keys 19, but the call has 20"
    );
    for columns in [1, 20, 32, 50] {
        assert!(with_bias(columns).is_ok());
    }
}

#[test]
fn a_table_on_the_device_is_no_use_to_the_cpu() {
    let k = pages(9, 16);
    let call = paged(2, &k).device_block_table([2, 2]).build().unwrap();
    let data = vec![half::f16::ZERO; 9 * 16 * 2 * 8];
    let checked = call.check_inputs(&HostInputs::new(&data, &data, &data));
    assert_eq!(
        checked.unwrap_err().to_string(),
        "block_table is on a GPU, but the tensors are in host memory"
    );
}
