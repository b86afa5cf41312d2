//! The element-wise part of online softmax, in loops that vectorise.
//!
//! Each function exists once, as an inlined body. On x86-64 it is compiled again for AVX2 and, if the compiler is new enough
//! (see build.rs), for AVX-512, and chosen at run time; elsewhere the baseline has what it needs.

use std::ops::Range;

use crate::element::{Element, ElementType};

/// Lanes that reductions keep apart: a few registers, enough to hide the latency of an addition.
const LANES: usize = 32;

/// What turns scaled products into scores.
#[derive(Clone, Copy)]
pub(super) struct Bias {
    pub(super) softcap: Option<f32>,
    /// ALiBi slope, 0 for none.
    pub(super) slope: f32,
}

/// Calls `$body` compiled for the best instruction set of this machine. `$body` takes one constant: whether a fused
/// multiply-add is one instruction.
macro_rules! dispatch {
    ($body:ident($($argument:ident: $type:ty),*) -> $result:ty) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[cfg(warptile_avx512)]
            #[target_feature(enable = "avx512f")]
            fn with_avx512($($argument: $type),*) -> $result {
                $body::<true>($($argument),*)
            }
            #[cfg(warptile_avx512)]
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the machine has the feature.
                return unsafe { with_avx512($($argument),*) };
            }
            #[target_feature(enable = "avx2,fma")]
            fn with_avx2($($argument: $type),*) -> $result {
                $body::<true>($($argument),*)
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the machine has both features.
                return unsafe { with_avx2($($argument),*) };
            }
        }
        $body::<{ cfg!(target_arch = "aarch64") }>($($argument),*)
    }};
}
/// Turns a row of scaled products into scores: softcap, then ALiBi, whose diagonal is `diagonal` elements after the first.
/// Returns the largest score, and whether all are finite.
pub(super) fn score(row: &mut [f32], bias: Bias, diagonal: f32) -> (f32, bool) {
    dispatch!(score_body(row: &mut [f32], bias: Bias, diagonal: f32) -> (f32, bool))
}

/// Turns the scores at `visible` into `exp(score - max)` and all others into 0. Returns the sum.
///
/// No score may exceed `max`. A NaN stays one.
pub(super) fn exponentiate(row: &mut [f32], visible: Range<usize>, max: f32) -> f32 {
    row[..visible.start].fill(0.0);
    row[visible.end..].fill(0.0);
    let row = &mut row[visible];
    dispatch!(exponentiate_body(row: &mut [f32], max: f32) -> f32)
}

/// Converts to `f32`, exactly.
///
/// # Panics
/// If the lengths differ.
pub(super) fn widen<T: Element>(from: &[T], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    match T::TYPE {
        ElementType::F16 => widen_f16(bytemuck::cast_slice(from), to),
        ElementType::Bf16 => widen_bf16(bytemuck::cast_slice(from), to),
        _ => to.copy_from_slice(bytemuck::cast_slice(from)),
    }
}

fn widen_f16(from: &[u16], to: &mut [f32]) {
    dispatch!(widen_f16_body(from: &[u16], to: &mut [f32]) -> ())
}

fn widen_bf16(from: &[u16], to: &mut [f32]) {
    dispatch!(widen_bf16_body(from: &[u16], to: &mut [f32]) -> ())
}

#[inline(always)]
fn widen_f16_body<const FMA: bool>(from: &[u16], to: &mut [f32]) {
    for (&half, to) in from.iter().zip(to) {
        *to = f16_to_f32(half);
    }
}

#[inline(always)]
fn widen_bf16_body<const FMA: bool>(from: &[u16], to: &mut [f32]) {
    for (&half, to) in from.iter().zip(to) {
        *to = f32::from_bits(u32::from(half) << 16);
    }
}

/// The number that these bits are in IEEE binary16, by integer arithmetic that vectorises everywhere.
#[inline(always)]
fn f16_to_f32(half: u16) -> f32 {
    /// Makes up for the difference between the exponents' biases, 127 - 15. Exact, and turns subnormals into normals.
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    /// The first infinity, shifted like all others.
    const INFINITY: u32 = 0x7c00 << 13;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let sign = u32::from(half & 0x8000) << 16;
    let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
    let special = magnitude | f32::INFINITY.to_bits();
    f32::from_bits(
        sign | if magnitude < INFINITY {
            finite
        } else {
            special
        },
    )
}

#[inline(always)]
fn score_body<const FMA: bool>(row: &mut [f32], bias: Bias, diagonal: f32) -> (f32, bool) {
    if let Some(cap) = bias.softcap {
        let inverse = 1.0 / cap;
        for score in &mut *row {
            *score = cap * tanh::<FMA>(*score * inverse);
        }
    }
    if bias.slope != 0.0 {
        for (key, score) in row.iter_mut().enumerate() {
            let distance = (diagonal - key as i32 as f32).abs();
            *score = fma::<FMA>(-bias.slope, distance, *score);
        }
    }
    let mut max = [f32::NEG_INFINITY; LANES];
    // Stays 0 as long as everything is finite: 0 * inf and 0 * NaN are NaN.
    let mut zero = [0.0; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            max[lane] = larger(max[lane], chunk[lane]);
            zero[lane] = fma::<FMA>(chunk[lane], 0.0, zero[lane]);
        }
    }
    let mut all = (f32::NEG_INFINITY, 0.0);
    let lanes = max.into_iter().zip(zero);
    for (max, zero) in lanes.chain(rest.iter().map(|&score| (score, score * 0.0))) {
        all = (larger(all.0, max), all.1 + zero);
    }
    (all.0, all.1 == 0.0)
}

#[inline(always)]
fn exponentiate_body<const FMA: bool>(row: &mut [f32], max: f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            chunk[lane] = exp::<FMA>(chunk[lane] - max);
            sums[lane] += chunk[lane];
        }
    }
    let mut sum = 0.0;
    for score in rest {
        *score = exp::<FMA>(*score - max);
        sum += *score;
    }
    // Pairwise, which rounds less than one after the other.
    for width in [16, 8, 4, 2, 1] {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    sum + sums[0]
}

/// Ignores a NaN in `b`, as one instruction does.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

#[inline(always)]
fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction `mul_add` is a slow function call.
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` for `x` up to 80, within 2 ulp; 0 below -87, where the result would be subnormal.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; the polynomial for `e^r` is that of Cephes' `expf`.
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    /// Adding this rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    /// ln 2 as a sum whose first part has trailing zeros, so that `n * LN_2_HIGH` is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let rounded = fma::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = fma::<FMA>(n, -LN_2_LOW, fma::<FMA>(n, -LN_2_HIGH, x));
    let mut p = 1.987_569_1e-4;
    p = fma::<FMA>(p, r, 1.398_199_9e-3);
    p = fma::<FMA>(p, r, 8.333_452e-3);
    p = fma::<FMA>(p, r, 4.166_579_6e-2);
    p = fma::<FMA>(p, r, 1.666_666_5e-1);
    p = fma::<FMA>(p, r, 0.5);
    p = fma::<FMA>(p * r, r, r) + 1.0;
    // 2^n: n + 127 as the exponent; the shift drops the bits of ROUND.
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { p * power }
}

/// `tanh x` within 4 ulp; NaN stays NaN.
///
/// Near 0 the odd polynomial of Cephes' `tanhf`, elsewhere by way of `e^2|x|`.
#[inline(always)]
fn tanh<const FMA: bool>(x: f32) -> f32 {
    let square = x * x;
    let mut p = -5.704_988_7e-3;
    p = fma::<FMA>(p, square, 2.063_909e-2);
    p = fma::<FMA>(p, square, -5.373_971_6e-2);
    p = fma::<FMA>(p, square, 1.333_144_2e-1);
    p = fma::<FMA>(p, square, -3.333_328e-1);
    let near = fma::<FMA>(p * square, x, x);
    // tanh 10 is 1 in f32; comparing this way round keeps a NaN.
    let magnitude = if x.abs() > 10.0 { 10.0 } else { x.abs() };
    let far = 1.0 - 2.0 / (exp::<FMA>(2.0 * magnitude) + 1.0);
    if x.abs() < 0.625 {
        near
    } else {
        far.copysign(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Bias = Bias {
        softcap: None,
        slope: 0.0,
    };

    /// Distance in units of the last place of `expected`.
    fn ulps(value: f32, expected: f64) -> f64 {
        let place = f32::from_bits((expected as f32).abs().to_bits() + 1) - (expected as f32).abs();
        (f64::from(value) - expected).abs() / f64::from(place)
    }

    fn grid(from: f32, to: f32) -> impl Iterator<Item = f32> {
        (0..=100_000).map(move |i| from + (to - from) * (i as f32 / 100_000.0))
    }

    #[test]
    fn exp_is_within_two_ulp_with_and_without_fma() {
        for x in grid(-87.0, 80.0) {
            let expected = f64::from(x).exp();
            assert!(ulps(exp::<true>(x), expected) <= 2.0, "{x}");
            assert!(ulps(exp::<false>(x), expected) <= 2.0, "{x}");
        }
        for x in [-87.5, -1e4, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp::<true>(x), 0.0);
        }
        assert_eq!(exp::<true>(0.0), 1.0);
        assert!(exp::<true>(f32::NAN).is_nan());
    }

    #[test]
    fn widening_is_exact_for_every_16_bits() {
        fn check<T: Element>() {
            let bits: Vec<u16> = (0..=u16::MAX).collect();
            let values: &[T] = bytemuck::cast_slice(&bits);
            let mut wide = vec![0.0; values.len()];
            widen(values, &mut wide);
            for (value, wide) in values.iter().zip(wide) {
                let expected = value.to_f32();
                assert!(
                    expected == wide || expected.is_nan() && wide.is_nan(),
                    "{value:?}"
                );
                assert_eq!(expected.is_sign_negative(), wide.is_sign_negative());
            }
        }
        check::<half::f16>();
        check::<half::bf16>();
    }

    #[test]
    fn tanh_is_within_four_ulp_with_and_without_fma() {
        for x in grid(-12.0, 12.0).chain(grid(-1e-3, 1e-3)) {
            let expected = f64::from(x).tanh();
            assert!(ulps(tanh::<true>(x), expected) <= 4.0, "{x}");
            assert!(ulps(tanh::<false>(x), expected) <= 4.0, "{x}");
        }
        assert_eq!(tanh::<true>(f32::INFINITY), 1.0);
        assert_eq!(tanh::<true>(f32::MIN), -1.0);
        assert!(tanh::<true>(f32::NAN).is_nan());
    }

    #[test]
    fn exponentiate_fills_the_rest_with_zeros() {
        for len in [1, 15, 16, 17, 40, 100] {
            for start in [0, 1, 7] {
                let visible = start.min(len)..len - usize::from(len > 20);
                let mut row: Vec<f32> = (0..len).map(|i| (i % 13) as f32).collect();
                let expected: Vec<f64> = (0..len)
                    .map(|i| match visible.contains(&i) {
                        true => f64::from(row[i] - 12.0).exp(),
                        false => 0.0,
                    })
                    .collect();
                row[..visible.start].fill(f32::NAN);
                let mut again = row.clone();
                let sum = exponentiate(&mut row, visible.clone(), 12.0);
                // Without a fused multiply-add, which this machine has.
                let plain = exponentiate_body::<false>(&mut again[visible.clone()], 12.0);
                assert!((sum - plain).abs() <= 1e-6 * sum);
                assert!(
                    again[visible]
                        .iter()
                        .zip(&row[start.min(len)..])
                        .all(|(a, b)| (a - b).abs() <= 1e-6 * b)
                );
                assert!(row.iter().zip(&expected).all(|(a, b)| ulps(*a, *b) <= 2.0));
                let expected: f64 = expected.iter().sum();
                assert!((f64::from(sum) - expected).abs() <= 1e-6 * expected);
            }
        }
    }

    #[test]
    fn score_finds_the_maximum_and_what_is_not_finite() {
        for len in [1, 5, 16, 33, 64] {
            for place in [0, len / 2, len - 1] {
                let mut row = vec![-3.0; len];
                row[place] = 2.0;
                assert_eq!(score(&mut row, PLAIN, 0.0), (2.0, true));
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    row[place] = bad;
                    assert!(!score(&mut row, PLAIN, 0.0).1);
                }
            }
        }
    }

    #[test]
    fn score_applies_softcap_then_alibi() {
        let bias = Bias {
            softcap: Some(3.0),
            slope: 0.25,
        };
        let mut row: Vec<f32> = (0..40).map(|i| i as f32 - 20.0).collect();
        let mut plain = row.clone();
        let result = score(&mut row, bias, 10.0);
        let plain_result = score_body::<false>(&mut plain, bias, 10.0);
        assert!((result.0 - plain_result.0).abs() < 1e-6 && result.1 && plain_result.1);
        for (i, &score) in row.iter().enumerate() {
            let expected = 3.0 * ((i as f64 - 20.0) / 3.0).tanh() - 0.25 * (10.0 - i as f64).abs();
            assert!((f64::from(score) - expected).abs() < 1e-6);
            assert!((f64::from(plain[i]) - expected).abs() < 1e-6);
        }
    }
}
