//! Turns scaled products into scores, for options that not every call has: in loops that compilers vectorise.

use crate::cpu::isa::Work;
use crate::cpu::lanes::*;
use crate::spec::{HeadTerms, Scoring};

/// Softcap, then ALiBi, of the scores of a panel of queries.
pub(super) struct Terms<'a> {
    /// A row of `lanes` numbers for each key.
    pub(super) scores: &'a mut [f32],
    pub(super) lanes: usize,
    pub(super) scoring: &'a Scoring,
    /// The numbers of each lane's head.
    pub(super) heads: &'a [HeadTerms],
    /// The place of each lane's diagonal; keys are counted from the same place.
    pub(super) diagonals: &'a [f32],
    pub(super) first_key: usize,
}

impl Work for Terms<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        if let Some(cap) = self.scoring.softcap {
            let inverse = 1.0 / cap;
            for score in &mut *self.scores {
                *score = cap * tanh::<L>(*score * inverse);
            }
        }
        if self.heads.iter().all(|head| head.slope == 0.0) {
            return;
        }
        for (index, row) in self.scores.chunks_exact_mut(self.lanes).enumerate() {
            let key = (self.first_key + index) as f32;
            let lanes = self.heads.iter().zip(self.diagonals);
            for (score, (head, diagonal)) in row.iter_mut().zip(lanes) {
                *score = fma::<L>(-head.slope, (diagonal - key).abs(), *score);
            }
        }
    }
}

/// Makes the scores of keys that a query does not see minus infinity.
pub(super) struct Hide<'a> {
    /// A row of `lanes` numbers for each key.
    pub(super) scores: &'a mut [f32],
    pub(super) lanes: usize,
    /// The first key that each lane sees, and the one after the last. Rows are counted from the same place.
    pub(super) starts: &'a [i32],
    pub(super) ends: &'a [i32],
}

impl Work for Hide<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        for (key, row) in self.scores.chunks_exact_mut(self.lanes).enumerate() {
            let key = key as i32;
            let lanes = self.starts.iter().zip(self.ends);
            for (score, (&start, &end)) in row.iter_mut().zip(lanes) {
                *score = match (start <= key) & (key < end) {
                    true => *score,
                    false => f32::NEG_INFINITY,
                };
            }
        }
    }
}

#[inline(always)]
fn fma<L: Lanes>(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction `mul_add` is a slow function call.
    if L::FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` for `x` between -80 and 80, within 2 ulp.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; the polynomial for `e^r` is that of Cephes' `expf`.
#[inline(always)]
fn exp<L: Lanes>(x: f32) -> f32 {
    /// Adding this rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    /// ln 2 as a sum whose first part has trailing zeros, so that `n * LN_2_HIGH` is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let rounded = fma::<L>(x, std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = fma::<L>(n, -LN_2_LOW, fma::<L>(n, -LN_2_HIGH, x));
    let mut p = 1.987_569_1e-4;
    p = fma::<L>(p, r, 1.398_199_9e-3);
    p = fma::<L>(p, r, 8.333_452e-3);
    p = fma::<L>(p, r, 4.166_579_6e-2);
    p = fma::<L>(p, r, 1.666_666_5e-1);
    p = fma::<L>(p, r, 0.5);
    p = fma::<L>(p * r, r, r) + 1.0;
    // 2^n: n + 127 as the exponent; the shift drops the bits of ROUND.
    p * f32::from_bits(rounded.to_bits().wrapping_add(127) << 23)
}

/// `tanh x` within 4 ulp; NaN stays NaN.
///
/// Near 0 the odd polynomial of Cephes' `tanhf`, elsewhere by way of `e^2|x|`.
#[inline(always)]
fn tanh<L: Lanes>(x: f32) -> f32 {
    let square = x * x;
    let mut p = -5.704_988_7e-3;
    p = fma::<L>(p, square, 2.063_909e-2);
    p = fma::<L>(p, square, -5.373_971_6e-2);
    p = fma::<L>(p, square, 1.333_144_2e-1);
    p = fma::<L>(p, square, -3.333_328e-1);
    let near = fma::<L>(p * square, x, x);
    // tanh 10 is 1 in f32; comparing this way round keeps a NaN.
    let magnitude = if x.abs() > 10.0 { 10.0 } else { x.abs() };
    let far = 1.0 - 2.0 / (exp::<L>(2.0 * magnitude) + 1.0);
    if x.abs() < 0.625 {
        near
    } else {
        far.copysign(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;

    /// Softcap and ALiBi of some scores, all in one lane.
    fn finish(isa: Isa, scores: &mut [f32], softcap: f32, slope: f32, diagonal: f32) {
        let scoring = Scoring::new().softcap(softcap);
        isa.run(Terms {
            scores,
            lanes: 1,
            scoring: &scoring,
            heads: &[HeadTerms { slope }],
            diagonals: &[diagonal],
            first_key: 0,
        });
    }

    #[test]
    fn softcap_is_a_tanh_and_comes_before_alibi() {
        for isa in Isa::all() {
            let scores: Vec<f32> = (0..20_001).map(|i| i as f32 / 500.0 - 20.0).collect();
            for (slope, tolerance) in [(0.0, 4e-7), (0.25, 4e-4)] {
                let mut found = scores.clone();
                finish(isa, &mut found, 3.0, slope, 10.0);
                for (key, (score, found)) in scores.iter().zip(&found).enumerate() {
                    let capped = 3.0 * (f64::from(*score) / 3.0).tanh();
                    let distance = (10.0 - key as f64).abs();
                    let expected = capped - f64::from(slope) * distance;
                    let error = (f64::from(*found) - expected).abs();
                    assert!(
                        error <= tolerance * capped.abs().max(1e-3 * distance),
                        "{isa:?} {score}"
                    );
                }
            }
            let mut special = [f32::INFINITY, f32::MIN, f32::NAN, 0.0];
            finish(isa, &mut special, 2.0, 0.0, 0.0);
            assert!(special[..2] == [2.0, -2.0] && special[2].is_nan() && special[3] == 0.0);
        }
    }

    #[test]
    fn each_lane_hides_its_own_keys() {
        for isa in Isa::all() {
            let mut scores = vec![1.0; 40 * 3];
            isa.run(Hide {
                scores: &mut scores,
                lanes: 3,
                starts: &[0, 5, 40],
                ends: &[40, 9, 40],
            });
            for (i, score) in scores.into_iter().enumerate() {
                let shown = [true, (5..9).contains(&(i / 3)), false][i % 3];
                assert_eq!(
                    score,
                    if shown { 1.0 } else { f32::NEG_INFINITY },
                    "{isa:?}"
                );
            }
        }
    }
}
