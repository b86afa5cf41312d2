//! Every rule a problem can break, and what problems say of themselves.

use super::*;
use crate::problem::common_element;

fn build(q: [usize; 4], k: [usize; 4], v: [usize; 4]) -> Result<Problem> {
    Problem::builder(
        &Layout::bshd(q),
        &Layout::bshd(k),
        &Layout::bshd(v),
        ElementType::F32,
    )
    .build()
}

fn message(result: Result<Problem>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn head_size_not_a_multiple_of_8_or_over_256() {
    for head_dim in [0, 4, 59, 264, 1 << 40] {
        let shape = [1, 3, 2, head_dim];
        let text = message(build(shape, shape, shape));
        assert!(
            text.starts_with(&format!("q has head size {head_dim};")),
            "{text}"
        );
    }
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
        (
            [3, 5, 2, 16],
            [2, 5, 2, 16],
            "k has batch 3, but 2 is needed",
        ),
        (
            [2, 5, 2, 16],
            [1, 5, 2, 16],
            "v has batch 1, but 2 is needed",
        ),
        (
            [2, 5, 2, 24],
            [2, 5, 2, 16],
            "k has head size 24, but 16 is needed",
        ),
        (
            [2, 5, 2, 16],
            [2, 5, 2, 8],
            "v has head size 8, but 16 is needed",
        ),
        (
            [2, 5, 2, 16],
            [2, 6, 2, 16],
            "v has length 6, but 5 is needed",
        ),
        (
            [2, 5, 2, 16],
            [2, 5, 4, 16],
            "v has heads 4, but 2 is needed",
        ),
    ] {
        let text = message(build(q, k, v));
        assert!(text.starts_with(start), "{text}");
    }
}

#[test]
fn mismatched_element_types() {
    let error = common_element(ElementType::F16, ElementType::F16, ElementType::F32);
    assert_eq!(
        error.unwrap_err().to_string(),
        "v has elements of type f32, but q has f16; all of q, k and v must share one type"
    );
}

#[test]
fn non_contiguous_last_dimension() {
    let q = Layout::bshd([1, 4, 2, 8]);
    let v = Layout::new([1, 4, 2, 8], [128, 32, 16, 2]);
    let text = message(Problem::builder(&q, &q, &v, ElementType::F16).build());
    assert!(
        text.starts_with("v has stride 2 in its last dimension"),
        "{text}"
    );
}

#[test]
fn overlapping_output() {
    let q = Layout::bshd([1, 4, 2, 8]);
    let out = Layout::new([1, 4, 2, 8], [0, 0, 8, 1]);
    let text = message(
        Problem::builder(&q, &q, &q, ElementType::F16)
            .out(out)
            .build(),
    );
    assert!(text.starts_with("out overlaps"), "{text}");
    // Inputs may repeat rows.
    assert!(
        Problem::builder(&q, &out, &out, ElementType::F16)
            .build()
            .is_ok()
    );
}

#[test]
fn output_of_another_shape() {
    let q = Layout::bshd([1, 4, 2, 8]);
    let out = Layout::bshd([1, 5, 2, 8]);
    let text = message(
        Problem::builder(&q, &q, &q, ElementType::F16)
            .out(out)
            .build(),
    );
    assert!(
        text.starts_with("out has length 5, but 4 is needed"),
        "{text}"
    );
}

#[test]
fn nan_and_infinite_scale() {
    let q = Layout::bshd([1, 4, 2, 8]);
    for scale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let text = message(
            Problem::builder(&q, &q, &q, ElementType::F32)
                .scale(scale)
                .build(),
        );
        assert!(text.starts_with("scale is "), "{text}");
    }
    for scale in [0.0, -1.0] {
        assert!(
            Problem::builder(&q, &q, &q, ElementType::F32)
                .scale(scale)
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
            Problem::builder(&q, &q, &q, ElementType::F32)
                .softcap(softcap)
                .build(),
        );
        assert!(text.starts_with("softcap is "), "{text}");
    }
}

#[test]
fn lengths_have_a_limit() {
    let short = Layout::bshd([1, 1, 1, 8]);
    let long = Layout::new([1, MAX_LEN + 1, 1, 8], [0, 0, 0, 1]);
    let text = message(Problem::builder(&short, &long, &long, ElementType::F32).build());
    assert!(
        text.starts_with("k has length 1073741825; the limit is"),
        "{text}"
    );
}

#[test]
fn shapes_beyond_the_address_space() {
    let short = Layout::bshd([1, 1, 1, 8]);
    let far = Layout::new([1, 1 << 30, 1, 8], [0, 1 << 40, 0, 1]);
    let text = message(Problem::builder(&short, &far, &far, ElementType::F32).build());
    assert!(
        text.starts_with("k has a shape and strides that reach beyond"),
        "{text}"
    );
}

#[test]
fn row_offsets_that_break_a_rule() {
    let tensor = Layout::packed(10, 2, 8);
    for (q, k, expected) in [
        (&[1, 5][..], &[0, 5][..], "cu_seqlens_q[0] is 1;"),
        (&[], &[0, 5], "cu_seqlens_q[0] is missing"),
        (&[0, 5, 4], &[0, 5, 6], "cu_seqlens_q[2] is 4, less than"),
        (
            &[0, 5, 10],
            &[0, 5, 11],
            "cu_seqlens_k[2] is 11, but the tensor has only 10 rows",
        ),
        (&[0, -5], &[0, 5], "cu_seqlens_q[1] is -5, less than"),
        (
            &[0, 5],
            &[0, 5, 10],
            "cu_seqlens_k[2] must exist in both or neither",
        ),
        (
            &[0, i32::MAX],
            &[0, 5],
            "cu_seqlens_q[1] is 2147483647, but",
        ),
    ] {
        let text = message(
            Problem::builder(&tensor, &tensor, &tensor, ElementType::F32)
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
        Problem::builder(&tensor, &tensor, &tensor, ElementType::F32)
            .packed(&[0, 10], &[0, 10])
            .build(),
    );
    assert!(text.starts_with("q has batch 2, but 1 is needed"), "{text}");
}

#[test]
fn packed_sequences_are_where_the_offsets_say() {
    let q = Layout::packed(10, 2, 8);
    let k = Layout::packed(20, 2, 8);
    let problem = Problem::builder(&q, &k, &k, ElementType::F32)
        .mask(Mask::causal())
        .packed(&[0, 3, 3, 8], &[0, 0, 7, 20])
        .build()
        .unwrap();
    assert_eq!(
        (problem.batch(), problem.query_len(), problem.key_len()),
        (3, 5, 13)
    );
    let last = problem.sequences().last().unwrap();
    assert_eq!((last.batch, last.entry), (2, 0));
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
fn slopes_are_checked() {
    let q = Layout::bshd([3, 4, 2, 8]);
    let builder = Problem::builder(&q, &q, &q, ElementType::F32);
    let without = builder.clone().build().unwrap();
    let per_head = builder.clone().alibi(AlibiShape::PerHead).build().unwrap();
    let per_batch = builder.alibi(AlibiShape::PerBatchHead).build().unwrap();
    let text = |result: Result<()>| result.unwrap_err().to_string();
    assert!(without.check_alibi(None).is_ok());
    assert!(per_head.check_alibi(Some(&[0.5, 0.25])).is_ok());
    assert!(per_batch.check_alibi(Some(&[0.5; 6])).is_ok());
    assert!(text(without.check_alibi(Some(&[0.5; 2]))).contains("alibi_slopes is given"));
    assert!(text(per_head.check_alibi(None)).contains("alibi_slopes is missing"));
    assert!(text(per_head.check_alibi(Some(&[0.5; 3]))).starts_with("alibi_slopes has 3 values"));
    assert!(text(per_head.check_alibi(Some(&[0.5, f32::NAN]))).starts_with("alibi_slopes is NaN"));
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
    let problem = Problem::builder(&q, &k, &k, ElementType::F16)
        .mask(Mask::causal())
        .softcap(30.0)
        .build()
        .unwrap();
    assert_eq!(
        problem.to_string(),
        "f16 1 sequence, 8 heads (2 for keys and values), 100 x 300 rows, head size 64, mask causal bottom-right, scale 0.125, softcap 30"
    );
}
