//! When a result counts as right: see [`Expectation`].

mod gradients;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use bytemuck::cast_slice;
use warptile::spec::{Call, HostInputs};
use warptile::{Element, ElementType, with_element};

use crate::compiled::{Compiled, with_type};
use crate::error::Result;
use crate::parallel;
use crate::reference::{ReferenceOutput, References};
use crate::rounding::{round, ulp};

pub use gradients::GradientExpectation;
pub(crate) use gradients::{ComputedGradient, GradientSizes};

/// Absolute and relative tolerance of the lse on top of the natural error: it is computed in `f32` regardless of the element
/// type, and 1e-5 is what sums of a few hundred `f32` products leave of it.
pub const LSE_TOLERANCE: f64 = 1e-5;

/// The values that a result is compared with, and the errors that a correct result may have.
///
/// With `r` the float64 reference and `r16` the plain, unfused computation in the element type (scores, probabilities and
/// output each rounded to it, except that ALiBi's term and what is added to it are of `f32`), an output passes if every element has
///
/// ```text
/// |out - r| <= max(factor * max|r16 - r| + atol, floor)
/// atol = 2 * max|(r + 0.3 - 0.3) - r|, computed in the element type
/// ```
///
/// where `factor` is 2, and 3 with softcap. This is the rule of FlashAttention's own tests: it grants a fused kernel twice
/// the error that the plain computation in the same type has on the same inputs. In a small problem that error can be near
/// 0 by luck, so there is a floor for each element, a bound of the error that arithmetic in `f32` and rounding to the
/// element type make inevitable: `ulp(rms) + factor * eps * ((1 + reach) * deviation + rms)`, where `rms` and `deviation`
/// are the root mean square and the standard deviation of the values under the row's probabilities, `reach` is the size of
/// the terms its scores are made of (`|scale| |q| |k|` and the biases), and `eps` is the `f32` epsilon. A row that sees no key must be 0
/// exactly.
///
/// The lse is computed in `f32` by every path, so its natural error is that of scores rounded to `f32`:
///
/// ```text
/// |lse - r| <= max(factor * max|r32 - r| + 1e-5 (1 + |r|), factor * eps * (1 + reach))
/// ```
///
/// and `-inf` must be exact. A NaN never passes.
///
/// ```
/// use half::f16;
/// use warptile::{Element, Layout};
/// use warptile::spec::{Backward, Call, HostInputs, Operand};
/// use warptile_check::Expectation;
///
/// let layout = Layout::bshd([1, 3, 1, 8]);
/// let call = Call::builder(&layout, &layout, &layout, f16::TYPE).build()?;
/// let data: Vec<f16> = (0..24).map(|i| f16::from_f32(i as f32 / 10.0)).collect();
/// let expected = Expectation::new(&call, &HostInputs::new(&data, &data, &data))?;
/// let right: Vec<f16> = expected.out().iter().map(|&x| f16::from_f64(x)).collect();
/// assert!(expected.judge_out(&right).passed);
/// assert!(!expected.judge_out(&data).passed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Expectation {
    exact: ReferenceOutput,
    out: Tolerance,
    lse: Tolerance,
}

/// The largest errors that a bound for all elements is made of, infinities and NaN left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NaturalErrors {
    /// `max|r16 - r|` of the output.
    pub(crate) out: f64,
    /// The expected lse.
    pub(crate) lse: f64,
    /// `max|(r + 0.3 - 0.3) - r|` of the output, in the element type.
    pub(crate) rounding: f64,
}

/// How far values may be from the expected ones.
#[derive(Debug, Clone, Default, PartialEq)]
struct Tolerance {
    /// For every element.
    common: f64,
    /// Times `1 + |r|`.
    relative: f64,
    /// At least this, for each element.
    floors: Vec<f32>,
    /// True if an element whose floor is 0 is a sum of nothing, and exact.
    knows_empty: bool,
    /// The type that the expected values were stored in, if they are not exact.
    stored_as: Option<ElementType>,
}

impl Tolerance {
    /// [`bound`](Self::bound) of the elements from `first` on that these are.
    fn bounds(&self, first: usize, reference: &[f64], bounds: &mut [f64; AT_ONCE]) {
        let floors = self.floors.get(first..first + reference.len());
        match (floors, self.stored_as) {
            (Some(floors), None) => {
                for ((bound, &r), &floor) in bounds.iter_mut().zip(reference).zip(floors) {
                    *bound = self.at_least(f64::from(floor), r);
                }
            }
            _ => {
                for (at, (bound, &r)) in bounds.iter_mut().zip(reference).enumerate() {
                    *bound = self.bound(first + at, r);
                }
            }
        }
    }

    /// The bound of an element with this floor; 0 for an infinity and a sum of nothing, which must be exact.
    fn at_least(&self, floor: f64, r: f64) -> f64 {
        match r.is_finite() && !(self.knows_empty && floor == 0.0) {
            true => (self.common + self.relative * (1.0 + r.abs())).max(floor),
            false => 0.0,
        }
    }

    fn bound(&self, index: usize, r: f64) -> f64 {
        let floor = self.floors.get(index).copied().unwrap_or(0.0);
        // 0 for an infinity, too.
        let stored = self.stored_as.map_or(0.0, |element| ulp(element, r) / 2.0);
        self.at_least(f64::from(floor), r) + stored
    }
}

/// How values compare with the expected ones.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Verdict {
    /// True if every value is right.
    pub passed: bool,
    /// The largest error; infinite if any value is NaN or missing.
    pub max_error: f64,
    /// The element nearest to its bound or furthest beyond.
    pub worst: Worst,
    /// Values that are NaN.
    pub nan_count: usize,
}

/// The element whose error is the largest part, or multiple, of what is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct Worst {
    /// Its index in the reference's order.
    pub index: usize,
    /// Its error.
    pub error: f64,
    /// The bound of its error.
    pub bound: f64,
    /// True if `error` and `bound` are not the element's but those of the root mean square of all, which is the larger multiple.
    pub is_mean: bool,
}

impl Worst {
    /// Error over bound: at most 1 if the result is right. 0 where there is no error, even if none is allowed.
    pub fn ratio(&self) -> f64 {
        match self.error {
            0.0 => 0.0,
            error => error / self.bound,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: largest error {:.3e}; ",
            if self.passed { "passed" } else { "failed" },
            self.max_error,
        )?;
        match self.worst.is_mean {
            true => write!(f, "the root mean square is")?,
            false => write!(f, "element {} has", self.worst.index)?,
        }
        let Worst { error, bound, .. } = self.worst;
        write!(f, " {error:.3e} of the {bound:.3e} allowed")?;
        if self.nan_count > 0 {
            write!(f, ", {} NaN", self.nan_count)?;
        }
        Ok(())
    }
}

impl Expectation {
    /// Computes what to expect of a call, on the host.
    ///
    /// # Errors
    /// As [`reference()`](crate::reference()).
    pub fn new(call: &Call, inputs: &HostInputs<'_>) -> Result<Self> {
        with_element!(call.element(), T => {
            let references = crate::reference::compute::<T>(call, inputs, true)?;
            Ok(Expectation::from_references::<T>(call, references))
        })
    }

    pub(crate) fn from_references<T: Element>(call: &Call, references: References) -> Self {
        let References {
            exact,
            rounded,
            out_floor,
            lse_floor,
        } = references;
        let errors = NaturalErrors {
            out: natural_error(&exact.out, &rounded.out),
            lse: natural_error(&exact.lse, &rounded.lse),
            rounding: rounding_error::<T>(&exact.out),
        };
        Expectation::within(call, exact, errors, out_floor, lse_floor)
    }

    pub(crate) fn within(
        call: &Call,
        exact: ReferenceOutput,
        errors: NaturalErrors,
        out_floor: Vec<f32>,
        lse_floor: Vec<f32>,
    ) -> Self {
        let factor = factor(call);
        Expectation {
            out: Tolerance {
                common: factor * errors.out + 2.0 * errors.rounding,
                relative: 0.0,
                floors: out_floor,
                knows_empty: true,
                stored_as: None,
            },
            lse: Tolerance {
                common: factor * errors.lse,
                relative: LSE_TOLERANCE,
                floors: lse_floor,
                knows_empty: false,
                stored_as: None,
            },
            exact,
        }
    }

    /// The expected output, dense `[batch, length, heads, head size]`; packed: `[rows, heads, head size]`. Rows that belong
    /// to no sequence are 0.
    pub fn out(&self) -> &[f64] {
        &self.exact.out
    }

    /// The expected lse, `[batch, heads, length]`; packed: `[heads, rows]`. Rows that belong to no sequence are 0.
    pub fn lse(&self) -> &[f64] {
        &self.exact.lse
    }

    /// How far each element of an output may be from [`Expectation::out`].
    pub fn out_bounds(&self) -> impl Iterator<Item = f64> {
        let expected = self.exact.out.iter().enumerate();
        expected.map(|(index, &r)| self.out.bound(index, r))
    }

    /// How far each element of an lse may be from [`Expectation::lse`].
    pub fn lse_bounds(&self) -> impl Iterator<Item = f64> {
        let expected = self.exact.lse.iter().enumerate();
        expected.map(|(index, &r)| self.lse.bound(index, r))
    }

    /// Expects an output that somebody else computed. If it was stored in a narrower type than `f64`, `stored_as`, each
    /// number may be half of that type's spacing away from what was computed. The tolerance is otherwise unchanged: the
    /// natural error belongs to the inputs.
    pub fn with_out(mut self, out: Vec<f64>, stored_as: Option<ElementType>) -> Self {
        self.exact.out = out;
        self.out.stored_as = stored_as;
        self
    }

    /// As [`with_out`](Self::with_out), for the lse.
    pub fn with_lse(mut self, lse: Vec<f64>, stored_as: Option<ElementType>) -> Self {
        self.exact.lse = lse;
        self.lse.stored_as = stored_as;
        self
    }

    /// Judges an output given in the order of [`Expectation::out`].
    pub fn judge_out<T: Element>(&self, out: &[T]) -> Verdict {
        with_type!(U = T, U::judge(self, cast_slice(out)))
    }

    pub(crate) fn judge<T: Compiled>(&self, out: &[T]) -> Verdict {
        judge(out, &self.exact.out, &self.out).0
    }

    /// Judges an lse given in the order of [`Expectation::lse`].
    pub fn judge_lse(&self, lse: &[f32]) -> Verdict {
        judge(lse, &self.exact.lse, &self.lse).0
    }
}

/// The multiple of the natural error that a fused kernel may have.
pub(crate) fn factor(call: &Call) -> f64 {
    if call.scoring().bounds_scores() {
        3.0
    } else {
        2.0
    }
}

/// How many elements of two results differ, and by how much at most; an element that the other result lacks counts for nothing. On all
/// cores: results may have a billion elements. Once the caller's [`Stop`](warptile::cpu::Stop) is requested, the others are not compared.
pub fn differences<T: Element>(a: &[T], b: &[T]) -> (usize, f32) {
    with_type!(U = T, U::differences(cast_slice(a), cast_slice(b)))
}

/// [`differences`], compiled here.
pub(crate) fn differences_of<T: Element>(a: &[T], b: &[T]) -> (usize, f32) {
    const AT_ONCE: usize = 1 << 16;
    let all = Mutex::new((0, 0.0_f32));
    let pieces = a.chunks(AT_ONCE).zip(b.chunks(AT_ONCE));
    parallel::for_each(pieces, a.len() as f64, |(a, b)| {
        let (mut count, mut largest) = (0, 0.0_f32);
        for (a, b) in a.iter().zip(b) {
            count += usize::from(a != b);
            largest = largest.max((a.to_f32() - b.to_f32()).abs());
        }
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        *all = (all.0 + count, all.1.max(largest));
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// `max|r16 - r|`, over the elements where the element type could hold the computation at all.
fn natural_error(reference: &[f64], rounded: &[f64]) -> f64 {
    largest_finite(reference, rounded, |r, r16| (r16 - r).abs())
}

/// `max|(r + 0.3 - 0.3) - r|` in the element type, over the elements that it can hold.
fn rounding_error<T: Element>(reference: &[f64]) -> f64 {
    let shift = round::<T>(0.3);
    largest_finite(reference, reference, |r, _| {
        let stored = round::<T>(r);
        (round::<T>(round::<T>(stored + shift) - shift) - stored).abs()
    })
}

/// The largest error, none of them negative, of pairs from two lists of the same length, except for infinities and NaN.
fn largest_finite(a: &[f64], b: &[f64], error: impl Fn(f64, f64) -> f64) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { largest_by_four(a, b, error) };
    }
    largest_by_any(a, b, error)
}

/// Computes the number of `largest_by_any` with vectors of four.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn largest_by_four(a: &[f64], b: &[f64], error: impl Fn(f64, f64) -> f64) -> f64 {
    largest_by_any(a, b, error)
}

/// As many numbers in a vector as the caller's instructions have.
#[inline(always)]
fn largest_by_any(a: &[f64], b: &[f64], error: impl Fn(f64, f64) -> f64) -> f64 {
    /// Each lane has a maximum of its own, so that the loop becomes vector code.
    const LANES: usize = 8;
    // Both comparisons are false for NaN.
    let larger = |largest: f64, error: f64| match error > largest && error < f64::INFINITY {
        true => error,
        false => largest,
    };
    let mut largest = [0.0; LANES];
    let (a, b) = (a.chunks(LANES), b.chunks(LANES));
    for (a, b) in a.zip(b) {
        match (<&[f64; LANES]>::try_from(a), <&[f64; LANES]>::try_from(b)) {
            (Ok(a), Ok(b)) => {
                for lane in 0..LANES {
                    largest[lane] = larger(largest[lane], error(a[lane], b[lane]));
                }
            }
            _ => {
                for (largest, (&a, &b)) in largest.iter_mut().zip(a.iter().zip(b)) {
                    *largest = larger(*largest, error(a, b));
                }
            }
        }
    }
    largest.into_iter().fold(0.0, f64::max)
}

/// Elements whose errors and bounds are computed together, in vectors.
const AT_ONCE: usize = 128;

/// The verdict, and the sum of the squares of the errors that are finite.
fn judge<T: Compiled>(values: &[T], reference: &[f64], tolerance: &Tolerance) -> (Verdict, f64) {
    let mut verdict = Verdict {
        passed: true,
        max_error: 0.0,
        worst: Worst::default(),
        nan_count: 0,
    };
    if values.len() != reference.len() {
        verdict.passed = false;
        verdict.max_error = f64::INFINITY;
        verdict.worst.index = values.len().min(reference.len());
        verdict.worst.error = f64::INFINITY;
        return (verdict, f64::INFINITY);
    }
    let mut largest_ratio = 0.0;
    let mut squares = 0.0;
    let mut loaded = [0.0; AT_ONCE];
    let (mut errors, mut bounds) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
    let chunks = values.chunks(AT_ONCE).zip(reference.chunks(AT_ONCE));
    for (chunk, (values, reference)) in chunks.enumerate() {
        let (first, loaded) = (chunk * AT_ONCE, &mut loaded[..values.len()]);
        T::load(values, loaded);
        errors_of(loaded, reference, &mut errors);
        tolerance.bounds(first, reference, &mut bounds);
        verdict.nan_count += loaded.iter().filter(|value| value.is_nan()).count();
        squares += sum_of_squares(&errors[..loaded.len()]);
        for (at, (&error, &bound)) in errors.iter().zip(&bounds).take(values.len()).enumerate() {
            verdict.max_error = verdict.max_error.max(error);
            let index = first + at;
            // Right, and no worse than another: without a division, for most elements.
            if index > 0 && error <= bound && error <= largest_ratio * bound {
                continue;
            }
            let this = Worst {
                index,
                error,
                bound,
                is_mean: false,
            };
            verdict.passed &= error <= bound;
            let ratio = this.ratio();
            if index == 0 || ratio > largest_ratio {
                (verdict.worst, largest_ratio) = (this, ratio);
            }
        }
    }
    // Whatever its bound.
    verdict.passed &= verdict.nan_count == 0;
    (verdict, squares)
}

/// The sum of the squares that are finite, by lanes, so that the loop becomes vector code.
fn sum_of_squares(errors: &[f64]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    for errors in errors.chunks(LANES) {
        for (sum, error) in sums.iter_mut().zip(errors) {
            let square = error * error;
            *sum += if square.is_finite() { square } else { 0.0 };
        }
    }
    sums.iter().sum()
}

/// How far each value is from the expected one; infinite for NaN.
fn errors_of(values: &[f32], reference: &[f64], errors: &mut [f64; AT_ONCE]) {
    for ((error, &value), &r) in errors.iter_mut().zip(values).zip(reference) {
        let value = f64::from(value);
        let distance = (value - r).abs();
        let distance = match distance.is_nan() {
            true => f64::INFINITY,
            false => distance,
        };
        // Equal infinities: their difference is NaN.
        *error = match value == r {
            true => 0.0,
            false => distance,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use warptile::Layout;
    use warptile::kernels::Kind;
    use warptile::spec::{Operand, Scoring};

    fn call() -> Call {
        let layout = Layout::bshd([1, 1, 1, 8]);
        Call::builder(&layout, &layout, &layout, f16::TYPE)
            .build()
            .unwrap()
    }

    /// The expectation if these are the exact and the rounded output.
    fn outputs<T: Element>(exact: &[f64], rounded: &[f64], floor: f32) -> Expectation {
        let output = |values: &[f64]| ReferenceOutput {
            out: values.to_vec(),
            lse: Vec::new(),
        };
        let references = References {
            exact: output(exact),
            rounded: output(rounded),
            // 0 is for rows that see no key.
            out_floor: vec![floor.max(f32::MIN_POSITIVE); exact.len()],
            lse_floor: Vec::new(),
        };
        Expectation::from_references::<T>(&call(), references)
    }

    /// The expectation for the lse.
    fn lses(exact: &[f64], rounded: &[f64], floor: f32) -> Expectation {
        let output = |values: &[f64]| ReferenceOutput {
            out: Vec::new(),
            lse: values.to_vec(),
        };
        let references = References {
            exact: output(exact),
            rounded: output(rounded),
            out_floor: Vec::new(),
            lse_floor: vec![floor; exact.len()],
        };
        Expectation::from_references::<f16>(&call(), references)
    }

    #[test]
    fn differences_are_counted_in_all_pieces() {
        let mut a = vec![bf16::from_f32(1.0); 200_001];
        assert_eq!(differences(&a, &a), (0, 0.0));
        let b = a.clone();
        (a[0], a[200_000]) = (bf16::from_f32(1.5), bf16::from_f32(-2.0));
        assert_eq!(differences(&a, &b), (2, 3.0));
        assert_eq!(differences(&a[..1000], &b), (1, 0.5));
        assert_eq!(differences::<f32>(&[], &[1.0]), (0, 0.0));
    }

    #[test]
    fn the_bound_is_twice_the_natural_error_plus_atol() {
        let expected = outputs::<f16>(&[0.0, 0.5], &[0.01, 0.5], 0.0);
        let judge = |x: f32| expected.judge_out(&[f16::from_f32(x), f16::from_f32(0.5)]);
        assert!(judge(0.02).passed);
        assert!(judge(-0.0199).passed);
        let verdict = judge(0.022);
        assert!(!verdict.passed);
        assert_eq!(verdict.worst.index, 0);
        let bound = verdict.worst.bound;
        assert!(bound > 0.02 && bound < 0.0215, "{verdict}");
    }

    #[test]
    fn a_softcap_grants_three_times_the_natural_error() {
        let layout = Layout::bshd([1, 1, 1, 8]);
        let with = { Operand::of_scores() }.map(|operand| (Scoring::new().with(operand), 2.0));
        let others = [("mask=causal", 2.0), ("softcap=30", 3.0)]
            .map(|(words, factor)| (words.parse().unwrap(), factor));
        for (words, factor) in others.into_iter().chain(with) {
            let mut builder = Call::builder(&layout, &layout, &layout, f32::TYPE).scoring(words);
            for operand in Operand::of_scores().filter(|operand| words.has(*operand)) {
                builder = match operand.kind() {
                    Kind::Scores => builder.layout(operand, Layout::bshd([1; 4])),
                    _ => builder.count(operand, 1),
                };
            }
            let call = builder.build().unwrap();
            let exact = ReferenceOutput {
                out: vec![0.0],
                lse: vec![0.0],
            };
            let errors = NaturalErrors {
                out: 0.01,
                lse: 0.1,
                rounding: 0.001,
            };
            let expected =
                Expectation::within(&call, exact, errors, vec![f32::MIN_POSITIVE], vec![0.0]);
            let out = factor * 0.01 + 2.0 * 0.001;
            assert_eq!(expected.out_bounds().next(), Some(out), "{words}");
            let lse = factor * 0.1 + LSE_TOLERANCE;
            assert_eq!(expected.lse_bounds().next(), Some(lse), "{words}");
        }
    }

    /// Two equal scores of 4 and values of 1 and 3, which the plain computation finds without an error.
    #[test]
    fn the_floor_grows_with_scores_and_values() {
        let (q, k) = (Layout::bshd([1, 1, 1, 8]), Layout::bshd([1, 2, 1, 8]));
        let call = Call::builder(&q, &k, &k, f32::TYPE)
            .scoring("scale=1".parse().unwrap())
            .build()
            .unwrap();
        let unit = |x: f32| [x, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let [query, keys] = [unit(1.0).to_vec(), [unit(4.0); 2].concat()];
        let values = [[1.0_f32; 8], [3.0; 8]].concat();
        let expected = Expectation::new(&call, &HostInputs::new(&query, &keys, &values)).unwrap();
        let (reach, deviation, rms) = (4.0, 1.0, 5.0_f64.sqrt());
        let eps = f64::from(f32::EPSILON);
        let floor = ulp(f32::TYPE, rms) + 2.0 * eps * ((1.0 + reach) * deviation + rms);
        let bound = expected.out_bounds().next().unwrap();
        assert!((bound / floor - 1.0).abs() < 1e-6, "{bound} {floor}");
    }

    #[test]
    fn the_largest_error_is_found_wherever_it_is() {
        for len in [1, 7, 8, 9, 40, 43] {
            for at in 0..len {
                let mut rounded = vec![0.25; len];
                let exact = vec![0.0; len];
                rounded[at] = -0.5;
                assert_eq!(natural_error(&exact, &rounded), 0.5, "{at} of {len}");
                for odd in [f64::NAN, f64::INFINITY] {
                    rounded[at] = odd;
                    let others = if len == 1 { 0.0 } else { 0.25 };
                    assert_eq!(natural_error(&exact, &rounded), others, "{at} of {len}");
                }
            }
        }
        assert_eq!(natural_error(&[], &[]), 0.0);
    }

    #[test]
    fn a_wrong_element_is_found_wherever_it_is() {
        for len in [1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE + 5] {
            let exact: Vec<f64> = (0..len).map(|i| i as f64).collect();
            let right: Vec<f32> = (0..len).map(|i| i as f32 + 0.001).collect();
            let mut expected = outputs::<f32>(&exact, &exact, 0.0);
            expected.out.floors = (0..len).map(|i| 0.01 + i as f32).collect();
            let verdict = expected.judge_out(&right);
            assert!(verdict.passed && verdict.worst.index == 0, "{verdict}");
            for at in 0..len {
                // Nearer to its bound than the others, beyond it, and no number.
                for (error, passed) in [(at as f32, true), (1.5 + at as f32, false)] {
                    let mut out = right.clone();
                    out[at] += error;
                    let verdict = expected.judge_out(&out);
                    assert_eq!(verdict.passed, passed, "{at} of {len}: {verdict}");
                    assert!(at == 0 || verdict.worst.index == at, "{at}: {verdict}");
                }
                let mut out = right.clone();
                out[at] = f32::NAN;
                let verdict = expected.judge_out(&out);
                assert!(!verdict.passed && verdict.nan_count == 1, "{verdict}");
                assert_eq!(
                    (verdict.worst.index, verdict.max_error),
                    (at, f64::INFINITY)
                );
            }
        }
    }

    #[test]
    fn a_natural_error_of_zero_leaves_the_floor() {
        let expected = outputs::<f32>(&[0.0], &[0.0], 1e-6);
        assert!(expected.judge_out(&[1e-6_f32]).passed);
        assert!(!expected.judge_out(&[1.1e-6_f32]).passed);
        let expected = lses(&[-1.0], &[-1.0], 1e-3);
        assert!(expected.judge_lse(&[-1.0009]).passed);
        assert!(!expected.judge_lse(&[-1.0011]).passed);
    }

    #[test]
    fn the_largest_error_is_not_always_the_worst() {
        // The second element has the smaller error, but a bound smaller still.
        let mut expected = outputs::<f32>(&[1.0, 2.0], &[1.0, 2.0], 0.0);
        expected.out.floors = vec![0.5, 0.01];
        let verdict = expected.judge_out(&[1.25_f32, 2.009]);
        assert!(verdict.passed, "{verdict}");
        assert_eq!(verdict.max_error, 0.25);
        assert_eq!(verdict.worst.index, 1);
        assert!((verdict.worst.error - 0.009).abs() < 1e-6);
        assert!((verdict.worst.ratio() - 0.9).abs() < 1e-3);
        // An element beyond its bound is the worst, regardless of the others.
        let verdict = expected.judge_out(&[1.6_f32, 2.0]);
        assert!(!verdict.passed && verdict.worst.index == 0);
        // Nothing is wrong: still some element is named, with its bound.
        let verdict = expected.judge_out(&[1.0_f32, 2.0]);
        assert_eq!((verdict.worst.ratio(), verdict.worst.bound), (0.0, 0.5));
    }

    #[test]
    fn nan_never_passes() {
        // Not even where the reference is NaN itself, or the bound is infinite.
        for (r, floor) in [(0.0, 0.0), (f64::NAN, 0.0), (0.0, f32::INFINITY)] {
            let expected = outputs::<f16>(&[r, 0.0], &[f64::INFINITY, 0.0], floor);
            let verdict = expected.judge_out(&[f16::NAN, f16::ZERO]);
            assert!(!verdict.passed && verdict.nan_count == 1, "{verdict}");
            assert_eq!(verdict.max_error, f64::INFINITY);
        }
    }

    #[test]
    fn a_wrong_length_never_passes() {
        let expected = outputs::<f16>(&[0.0, 0.0], &[0.0, 0.0], 0.0);
        for out in [&[f16::ZERO][..], &[], &[f16::ZERO; 3]] {
            let verdict = expected.judge_out(out);
            assert!(!verdict.passed && verdict.max_error.is_infinite());
        }
    }

    #[test]
    fn empty_is_right() {
        let verdict = outputs::<f16>(&[], &[], 0.0).judge_out::<f16>(&[]);
        assert!(verdict.passed && verdict.max_error == 0.0);
    }

    #[test]
    fn minus_infinity_must_be_exact() {
        let exact = [f64::NEG_INFINITY, 1000.0];
        let expected = lses(&exact, &exact, 0.0);
        let accepts = |a: f32, b: f32| expected.judge_lse(&[a, b]).passed;
        assert!(accepts(f32::NEG_INFINITY, 1000.005));
        assert!(!accepts(-1e30, 1000.0));
        assert!(!accepts(f32::INFINITY, 1000.0));
        assert!(!accepts(f32::NEG_INFINITY, f32::NEG_INFINITY));
        assert!(!accepts(f32::NEG_INFINITY, 1000.02));
        assert!(!accepts(f32::NAN, 1000.0));
    }

    /// The rounding of numbers near the end of f16's range, and beyond it, must neither widen nor break the bound.
    #[test]
    fn huge_f16_expectations_keep_a_finite_bound() {
        // Numbers of f16 are 32 apart here, so adding 0.3 changes nothing.
        let expected = outputs::<f16>(&[60_000.0, 65_504.0], &[60_000.0, 65_504.0], 0.0);
        assert_eq!(expected.out.common, 0.0);
        let judge = |a: f32, b: f32| {
            let verdict = expected.judge_out(&[f16::from_f32(a), f16::from_f32(b)]);
            verdict.passed
        };
        assert!(judge(60_000.0, 65_504.0));
        assert!(!judge(60_032.0, 65_504.0));
        assert!(!judge(60_000.0, f32::INFINITY));
        // Beyond the range: what overflows in the plain computation says nothing about the others.
        let expected = outputs::<f16>(&[1e6, 0.5], &[f64::INFINITY, 0.5], 0.0);
        assert!(expected.out.common < 1e-3, "{expected:?}");
        let accepts = |a: f16, b: f32| expected.judge_out(&[a, f16::from_f32(b)]).passed;
        assert!(!accepts(f16::MAX, 0.5));
        assert!(!accepts(f16::INFINITY, 0.5));
    }

    /// A file that stores the expected values in f16 stores 60016 as 60000 or 60032.
    #[test]
    fn stored_expectations_are_known_to_half_their_spacing() {
        let expected = outputs::<f32>(&[60_000.0, 1.0], &[60_000.0, 1.0], 0.0);
        let stored = expected
            .clone()
            .with_out(vec![60_000.0, 1.0], Some(f16::TYPE));
        let judge = |a: f32, b: f32| stored.judge_out(&[a, b]).passed;
        assert!(judge(60_016.0, 1.0) && judge(59_984.0, 1.0));
        assert!(!judge(60_017.0, 1.0) && !judge(59_983.0, 1.0));
        // The spacing is that of each number, not of the largest.
        assert!(judge(60_000.0, 1.000_48) && !judge(60_000.0, 1.000_6));
        let stored = expected
            .clone()
            .with_out(vec![60_000.0, 1.0], Some(bf16::TYPE));
        assert!(stored.judge_out(&[60_128.0_f32, 1.0]).passed);
        assert!(!stored.judge_out(&[60_129.0_f32, 1.0]).passed);
        let stored = expected.with_out(vec![60_000.0, 1.0], Some(f32::TYPE));
        assert!(!stored.judge_out(&[60_000.01_f32, 1.0]).passed);
    }
}
