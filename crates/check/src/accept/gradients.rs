//! The rule by which gradients are right.

use bytemuck::{Pod, Zeroable, cast_slice};
use warptile::kernels::Elements;
use warptile::spec::{Backward, HostInputs, Operand, Slots};
use warptile::{Element, ElementType, with_element};

use super::{Tolerance, Verdict, factor, judge, largest_finite, natural_error};
use crate::compiled::with_type;
use crate::error::Result;
use crate::reference::{GradientReferences, gradients};
use crate::rounding::{LEAST, ulp};

/// The gradients that a backward pass must have, and how far from them a right result may be.
///
/// With `r` the float64 reference and `r16` the plain, unfused computation in the element type (scores, weights, the gradients of both
/// and the results each rounded to it; ALiBi as in [`Expectation`](crate::Expectation)), both from the output and the lse that the
/// backward pass is given, a gradient passes if
///
/// ```text
/// |x - r| <= max(factor * max|r16 - r| + 2e-5 * max|r|, 6 * sqrt(variance) + ulp(r))     for every element
/// rms(x - r) <= 1.25 * max(rms(r16 - r), sqrt(mean(variance) + mean(ulp(r)^2) / 12)) * (1 + 4 / sqrt(n))
/// n = 1 / (1 / elements + 1 / roundings)
/// ```
///
/// where `factor` is that of [`Expectation`](crate::Expectation). The variance is that of the error which a fused computation cannot avoid: weights and the gradients
/// of scores rounded to the element type before they are multiplied, and arithmetic in `f32`, that of long sums included. It matters in
/// small problems, where the plain computation may be right by luck. A NaN never passes.
///
/// Here `ulp` is at least `2^-126`, as kernels take numbers below that for 0; so they may each weight, and each gradient of a score.
///
/// `n` says how many independent errors the mean is of: `elements` counts those that have a variance, and `roundings` the rounded numbers
/// that give it, as `(sum e)^2 / sum e^2` with `e` for what one gives all elements together. One query has a gradient of a score for
/// each key, whose rounding is the error of all elements of a row of dk; the largest can be most of the sum.
#[derive(Debug)]
#[must_use]
pub struct GradientExpectation(Slots<ExpectedGradient>);

#[derive(Debug, Default)]
struct ExpectedGradient {
    exact: Vec<f64>,
    tolerance: Tolerance,
    rms: f64,
}

/// What the rule takes from the elements of a gradient: `Sizes` in gpu/gradients.cuh.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GradientSizes {
    /// `max|r16 - r|` and `max|r|`, infinities and NaN left out.
    natural: f64,
    largest: f64,
    /// The sum of `(r16 - r)^2`. A value beyond the type's range is infinite in one of them, and left out.
    plain: f64,
    /// The sum of the variances, those of the results' own rounding included.
    unavoidable: f64,
    /// How many elements have a variance. The others are exact, so they say nothing of how far a mean may be from its expectation.
    uncertain: f64,
    /// The sum of the variances.
    whole: f64,
}

/// A gradient, the floor of each element's bound, and the rest of what the rule takes.
pub(crate) struct ComputedGradient {
    pub(crate) exact: Vec<f64>,
    pub(crate) floors: Vec<f32>,
    pub(crate) sizes: GradientSizes,
}

impl ExpectedGradient {
    /// `factor`: of the natural error. `squares`: [`GradientReferences::squares`].
    fn within(computed: ComputedGradient, factor: f64, squares: f64) -> Self {
        let ComputedGradient {
            exact,
            floors,
            sizes,
        } = computed;
        let of_roundings = match sizes.whole > 0.0 {
            true => squares / sizes.whole / sizes.whole,
            false => 0.0,
        };
        let uncertainty = (1.0 / sizes.uncertain.max(1.0) + of_roundings).sqrt();
        let square = sizes.plain.max(sizes.unavoidable);
        let rms = 1.25 * (square / exact.len().max(1) as f64).sqrt() * (1.0 + 4.0 * uncertainty);
        let tolerance = Tolerance {
            common: factor * sizes.natural + 2e-5 * sizes.largest,
            relative: 0.0,
            floors,
            knows_empty: false,
            stored_as: None,
        };
        ExpectedGradient {
            exact,
            tolerance,
            rms,
        }
    }
}

impl GradientExpectation {
    /// Computes what to expect of a backward pass, on the host. `inputs` are all that it reads.
    ///
    /// # Errors
    /// As [`reference()`](crate::reference()).
    pub fn new(backward: &Backward, inputs: &HostInputs<'_>) -> Result<Self> {
        let element = backward.call().element();
        let references = with_element!(element, T => gradients::<T>(backward, inputs)?);
        Ok(Self::from_references(backward, references))
    }

    fn from_references(backward: &Backward, references: GradientReferences) -> Self {
        let GradientReferences {
            mut exact,
            rounded,
            variance,
            squares,
        } = references;
        let of = |operand: Operand| {
            let element = match operand.elements() {
                Elements::F32 => ElementType::F32,
                _ => backward.call().element(),
            };
            let exact = std::mem::take(&mut exact[operand]);
            let (r, r16, variance) = (&exact, &rounded[operand], &variance[operand]);
            let unit = |r: f64| ulp(element, r).max(LEAST);
            let floor = |(variance, r): (&f64, &f64)| 6.0 * variance.sqrt() + unit(*r);
            let floors = { variance.iter().zip(r) }.map(|pair| floor(pair) as f32);
            let unavoidable =
                { variance.iter().zip(r) }.map(|(variance, r)| variance + unit(*r).powi(2) / 12.0);
            let plain = r16.iter().zip(r).map(|(r16, r)| (r16 - r).powi(2));
            let sizes = GradientSizes {
                natural: natural_error(r, r16),
                largest: largest_finite(r, r, |r, _| r.abs()),
                plain: plain.filter(|square| square.is_finite()).sum(),
                unavoidable: unavoidable.sum(),
                uncertain: { variance.iter() }.filter(|x| **x > 0.0).count() as f64,
                whole: variance.iter().sum(),
            };
            let computed = ComputedGradient {
                floors: floors.collect(),
                exact,
                sizes,
            };
            ExpectedGradient::within(computed, factor(backward.call()), squares[operand])
        };
        GradientExpectation(Slots::from_fn(of))
    }

    /// What to expect of gradients whose elements, floors and sizes somebody else computed, with [`GradientReferences::squares`].
    pub(crate) fn within(
        backward: &Backward,
        mut of: Slots<Option<ComputedGradient>>,
        squares: &Slots<f64>,
    ) -> Self {
        let factor = factor(backward.call());
        GradientExpectation(Slots::from_fn(|operand| match of[operand].take() {
            Some(computed) => ExpectedGradient::within(computed, factor, squares[operand]),
            None => ExpectedGradient::default(),
        }))
    }

    /// The largest error that an element of a gradient may have, and the root mean square that all may have.
    pub fn bounds(&self, operand: Operand) -> [f64; 2] {
        let ExpectedGradient {
            exact,
            tolerance,
            rms,
        } = &self.0[operand];
        let bounds = { exact.iter().enumerate() }.map(|(index, r)| tolerance.bound(index, *r));
        [bounds.fold(0.0, f64::max), *rms]
    }

    /// A gradient, dense `[batch, length, heads, head size]`, or the numbers of a list; empty for any other operand. Rows that belong to
    /// no sequence are 0.
    pub fn gradient(&self, operand: Operand) -> &[f64] {
        &self.0[operand].exact
    }

    /// Judges a gradient given in the order of [`gradient`](Self::gradient).
    pub fn judge<T: Element>(&self, operand: Operand, found: &[T]) -> Verdict {
        let ExpectedGradient {
            exact,
            tolerance,
            rms: allowed,
        } = &self.0[operand];
        let judged = with_type!(U = T, judge::<U>(cast_slice(found), exact, tolerance));
        let (mut verdict, squares) = judged;
        let rms = (squares / exact.len().max(1) as f64).sqrt();
        if rms > *allowed {
            verdict.passed = false;
            if rms / allowed > verdict.worst.ratio() {
                (verdict.worst.error, verdict.worst.bound) = (rms, *allowed);
                verdict.worst.is_mean = true;
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use warptile::Layout;
    use warptile::spec::Call;

    #[test]
    fn a_mean_that_is_too_large_says_so() {
        let of = |operand| match operand {
            Operand::DK => ExpectedGradient {
                exact: vec![0.0; 4],
                tolerance: Tolerance {
                    common: 1.0,
                    ..Tolerance::default()
                },
                rms: 0.5,
            },
            _ => ExpectedGradient::default(),
        };
        let expected = GradientExpectation(Slots::from_fn(of));
        let judge = |x: f32| expected.judge(Operand::DK, &[f16::from_f32(x); 4]);
        assert!(judge(0.5).passed);
        let verdict = judge(0.75);
        assert!(!verdict.passed && verdict.worst.is_mean);
        assert_eq!(
            verdict.to_string(),
            "failed: largest error 7.500e-1; the root mean square is 7.500e-1 of the 5.000e-1 allowed"
        );
        // One element beyond its own bound, by more than the mean.
        let verdict = expected.judge(Operand::DK, &[1.25, 0.0, 0.0, 0.0].map(f16::from_f32));
        assert!(!verdict.passed && verdict.to_string().contains("element 0 has 1.250e0"));
    }

    #[test]
    fn weights_that_f32_holds_as_subnormal_numbers_only_may_be_0() {
        let layout = Layout::bshd([1, 1, 1, 8]);
        // The key has the weight `exp(-lse)`.
        let judge = |lse: f32| {
            let call = Call::builder(&layout, &layout, &layout, bf16::TYPE);
            let backward = Backward::builder(call.build().unwrap()).build().unwrap();
            let (zeros, ones, eights, lse) = ([0.0; 8], [1.0; 8], [8.0; 8], [lse]);
            let row = |values: [f32; 8]| values.map(bf16::from_f32);
            let [q, v, d_out] = [zeros, ones, eights].map(row);
            let inputs = HostInputs::default()
                .with(Operand::Q, &q)
                .with(Operand::K, &q)
                .with(Operand::V, &v)
                .with(Operand::Out, &q)
                .with(Operand::DOut, &d_out)
                .with(Operand::Lse, &lse);
            let expected = GradientExpectation::new(&backward, &inputs).unwrap();
            expected.judge(Operand::DV, &[bf16::ZERO; 8]).passed
        };
        assert!(judge(87.5));
        assert!(!judge(80.0));
    }

    #[test]
    fn inputs_that_are_not_those_of_the_backward_pass_are_refused() {
        let layout = Layout::bshd([1, 3, 1, 8]);
        let call = Call::builder(&layout, &layout, &layout, f32::TYPE);
        let backward = Backward::builder(call.build().unwrap()).build().unwrap();
        let error = GradientExpectation::new(&backward, &HostInputs::default()).unwrap_err();
        assert!(error.to_string().starts_with("q is missing"), "{error}");
    }

    #[test]
    fn gradients_that_f32_holds_as_subnormal_numbers_only_may_be_0() {
        let layout = Layout::bshd([1, 1, 1, 8]);
        let call = Call::builder(&layout, &layout, &layout, f32::TYPE);
        let backward = Backward::builder(call.build().unwrap()).build().unwrap();
        let expected = |r: f64| {
            let of = |operand| match operand {
                Operand::DK => vec![r; 8],
                _ => Vec::new(),
            };
            let references = GradientReferences {
                exact: Slots::from_fn(of),
                rounded: Slots::from_fn(of),
                variance: Slots::from_fn(|operand| vec![0.0; of(operand).len()]),
                squares: Slots::from_fn(|_| 0.0),
            };
            GradientExpectation::from_references(&backward, references)
        };
        assert!(expected(1e-40).judge(Operand::DK, &[0.0_f32; 8]).passed);
        assert!(!expected(1e-36).judge(Operand::DK, &[0.0_f32; 8]).passed);
    }
}
