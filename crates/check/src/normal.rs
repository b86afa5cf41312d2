//! Standard normal numbers, many at a time.
//!
//! Data of a case is mostly these, and computing them one by one took longer than everything else on the host. The logarithm,
//! sine and cosine here are of basic operations only, without branches: loops over them become vector code, and their results
//! are the same on every machine, which those of its mathematical library need not be.

use std::f64::consts::{FRAC_PI_2, LN_2, SQRT_2};

/// Pairs that are computed together.
const PAIRS: usize = 64;

/// Fills `values`, an even number of them, two by two with independent standard normal numbers (Box and Muller), from two
/// uniform numbers in `(0, 1]` for each pair.
pub(crate) fn fill(values: &mut [f64], uniform: impl FnMut() -> f64) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { fill_by_four(values, uniform) };
    }
    fill_by_any(values, uniform);
}

/// Gives the same numbers as the plain loop, four in each vector: no multiplication is fused with an addition.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fill_by_four(values: &mut [f64], uniform: impl FnMut() -> f64) {
    fill_by_any(values, uniform);
}

/// As many numbers in a vector as the caller's instructions have.
#[inline(always)]
fn fill_by_any(values: &mut [f64], mut uniform: impl FnMut() -> f64) {
    let (mut radii, mut turns) = ([0.0; PAIRS], [0.0; PAIRS]);
    for values in values.chunks_mut(2 * PAIRS) {
        let pairs = values.len() / 2;
        let (radii, turns) = (&mut radii[..pairs], &mut turns[..pairs]);
        for (radius, turn) in radii.iter_mut().zip(turns.iter_mut()) {
            (*radius, *turn) = (uniform(), uniform());
        }
        for radius in radii.iter_mut() {
            *radius = (-2.0 * ln(*radius)).sqrt();
        }
        for ((pair, radius), turn) in values.chunks_exact_mut(2).zip(radii).zip(turns) {
            let (cos, sin) = cos_sin_of_turn(*turn);
            pair[0] = *radius * cos;
            pair[1] = *radius * sin;
        }
    }
}

/// `1.5 * 2^52`: numbers of this size have the unit 1, so adding it rounds to an integer, which the low bits then hold.
const INTEGERS: f64 = 6_755_399_441_055_744.0;

/// The natural logarithm of a normal positive number.
#[inline(always)]
fn ln(x: f64) -> f64 {
    /// Offset of an `f64`'s exponent.
    const BIAS: u64 = 1023;
    /// The number whose low bits are an exponent with its offset, less the exponent.
    const EXPONENT: f64 = 4_503_599_627_370_496.0;
    // x = m * 2^exponent with m between the square roots of 1/2 and 2.
    let lowest = (SQRT_2 / 2.0).to_bits();
    let field = x.to_bits().wrapping_sub(lowest).wrapping_add(BIAS << 52) >> 52;
    let m = f64::from_bits(
        x.to_bits()
            .wrapping_sub(field.wrapping_sub(BIAS).wrapping_shl(52)),
    );
    let exponent = f64::from_bits(EXPONENT.to_bits() | field) - (EXPONENT + BIAS as f64);
    // ln m = 2 artanh(s), whose series ends below 1e-17 here.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 1.0 / 21.0;
    for divisor in [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / divisor;
    }
    exponent * LN_2 + 2.0 * s * sum
}

/// Cosine and sine of a part of a full turn, 0 to 1.
#[inline(always)]
fn cos_sin_of_turn(turn: f64) -> (f64, f64) {
    // The nearest number of quarter turns; at most half a quarter is left.
    let shifted = 4.0 * turn + INTEGERS;
    let quarters = shifted.to_bits();
    let angle = (4.0 * turn - (shifted - INTEGERS)) * FRAC_PI_2;
    // Both series end below 1e-16.
    let square = angle * angle;
    let (mut cos, mut sin) = (1.0, 1.0);
    for k in [16.0, 14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0] {
        cos = 1.0 - cos * square * (1.0 / (k * (k - 1.0)));
        sin = 1.0 - sin * square * (1.0 / (k * (k + 1.0)));
    }
    let (cos, sin) = (cos.to_bits(), (sin * angle).to_bits());
    // Odd quarters exchange the two. The cosine is negative in the second and third quarter, the sine from the third on.
    let odd = 0_u64.wrapping_sub(quarters & 1);
    let negative_cos = (quarters.wrapping_add(1) & 2) << 62;
    let negative_sin = (quarters & 2) << 62;
    (
        f64::from_bits(((cos & !odd) | (sin & odd)) ^ negative_cos),
        f64::from_bits(((sin & !odd) | (cos & odd)) ^ negative_sin),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    /// Numbers in (0, 1]: all over it, and next to its ends and the eighths.
    fn parts() -> impl Iterator<Item = f64> {
        let even = (1..=100_000).map(|i| f64::from(i) / 100_000.0);
        let near = (0..=8).flat_map(|eighth| {
            (1..54).flat_map(move |bit| {
                let step = f64::powi(2.0, -bit);
                [1.0, -1.0].map(|sign| f64::from(eighth) / 8.0 + sign * step)
            })
        });
        even.chain(near).filter(|&x| x > 0.0 && x <= 1.0)
    }

    #[test]
    fn the_functions_are_those_of_the_library() {
        for x in parts() {
            let (a, b) = (ln(x), x.ln());
            assert!(
                (a - b).abs() <= 4.0 * f64::EPSILON * b.abs(),
                "ln {x}: {a} {b}"
            );
            let ((cos, sin), angle) = (cos_sin_of_turn(x), TAU * x);
            // The angle itself is rounded there.
            let close = |a: f64, b: f64| (a - b).abs() <= 8.0 * f64::EPSILON;
            assert!(
                close(cos, angle.cos()) && close(sin, angle.sin()),
                "{x}: {cos} {sin}"
            );
        }
    }

    #[test]
    fn any_even_number_of_values_is_filled_two_by_two() {
        for len in [0, 2, 8, 126, 128, 130, 1000] {
            let mut values = vec![f64::NAN; len];
            let mut drawn = 0_u32;
            fill(&mut values, || {
                drawn += 1;
                f64::from(drawn) / 1001.0
            });
            assert_eq!(drawn as usize, len);
            for (pair, values) in values.chunks(2).enumerate() {
                let [radius, turn] = [1, 2].map(|k| (2 * pair + k) as f64 / 1001.0);
                let radius = (-2.0 * radius.ln()).sqrt();
                let expected = [(TAU * turn).cos(), (TAU * turn).sin()].map(|x| radius * x);
                for (a, b) in values.iter().zip(expected) {
                    assert!((a - b).abs() < 1e-14, "{pair} of {len}: {a} {b}");
                }
            }
        }
    }
}
