//! When a result counts as right.
//!
//! With `r` the `f64` reference and `r16` the same unfused computation in the element type
//! ([`reference_rounded`](crate::reference_rounded)), an output passes if
//!
//! ```text
//! max|out - r| <= factor * max|r16 - r| + atol
//! atol = 2 * max|(r + 0.3 - 0.3) - r|, computed in the element type
//! ```
//!
//! where `factor` is 2, and 3 with softcap. This is the rule of FlashAttention's own tests: it grants a fused kernel
//! twice the error that the plain computation in the same type has on the same inputs, and no more.

use std::fmt;

use crate::element::Element;
use crate::problem::Problem;
use crate::reference::ReferenceOutput;

/// Absolute and relative tolerance of the lse on top of `factor * max|r16 - r|`: it is computed in `f32` whatever the
/// element type, and 1e-5 is what sums of a few hundred `f32` products leave of it.
pub const LSE_TOLERANCE: f64 = 1e-5;

/// How a result compares with its reference.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Verdict {
    /// Whether the result is right. A NaN never is.
    pub passed: bool,
    /// The largest error; infinite if any value is NaN or missing.
    pub max_error: f64,
    /// What it may be at that place.
    pub bound: f64,
    /// Index of the element nearest to its bound or furthest beyond, in the reference's dense order.
    pub worst_index: usize,
    /// Values that are NaN.
    pub nan_count: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: largest error {:.3e}, allowed {:.3e}, at element {}",
            if self.passed { "passed" } else { "failed" },
            self.max_error,
            self.bound,
            self.worst_index
        )?;
        if self.nan_count > 0 {
            write!(f, ", {} NaN", self.nan_count)?;
        }
        Ok(())
    }
}

/// Judges an output given in the reference's order (dense BSHD, or packed rows).
#[must_use]
pub fn accept<T: Element>(
    problem: &Problem,
    out: &[T],
    reference: &ReferenceOutput,
    rounded: &ReferenceOutput,
) -> Verdict {
    let shift = T::from_f64(0.3).to_f64();
    let round = |value: f64| T::from_f64(value).to_f64();
    let atol = reference.out.iter().map(|&r| {
        let stored = round(r);
        (round(round(stored + shift) - shift) - stored).abs()
    });
    let bound = factor(problem) * natural_error(&reference.out, &rounded.out)
        + 2.0 * atol.fold(0.0, f64::max);
    judge(out.iter().map(|x| x.to_f64()), &reference.out, |_| bound)
}

/// Judges an lse given in the reference's order: `|lse - r| <= factor * max|r16 - r| + 1e-5 * (1 + |r|)`, and `-inf` exactly
/// where the reference has it.
#[must_use]
pub fn accept_lse(
    problem: &Problem,
    lse: &[f32],
    reference: &ReferenceOutput,
    rounded: &ReferenceOutput,
) -> Verdict {
    let natural = factor(problem) * natural_error(&reference.lse, &rounded.lse);
    judge(lse.iter().map(|&x| f64::from(x)), &reference.lse, |r| {
        natural + LSE_TOLERANCE * (1.0 + r.abs())
    })
}

fn factor(problem: &Problem) -> f64 {
    if problem.softcap().is_some() {
        3.0
    } else {
        2.0
    }
}

/// `max|r16 - r|`, over the elements where the element type could hold the computation at all.
fn natural_error(reference: &[f64], rounded: &[f64]) -> f64 {
    reference
        .iter()
        .zip(rounded)
        .map(|(r, r16)| (r16 - r).abs())
        .filter(|error| error.is_finite())
        .fold(0.0, f64::max)
}

fn judge(
    values: impl ExactSizeIterator<Item = f64>,
    reference: &[f64],
    bound: impl Fn(f64) -> f64,
) -> Verdict {
    let mut verdict = Verdict {
        passed: true,
        max_error: 0.0,
        bound: 0.0,
        worst_index: 0,
        nan_count: 0,
    };
    if values.len() != reference.len() {
        verdict.passed = false;
        verdict.max_error = f64::INFINITY;
        verdict.worst_index = values.len().min(reference.len());
        return verdict;
    }
    let mut worst_excess = f64::NEG_INFINITY;
    for (index, (value, &r)) in values.zip(reference).enumerate() {
        verdict.nan_count += usize::from(value.is_nan());
        // Equal infinities: their difference would be NaN.
        let error = if value == r { 0.0 } else { (value - r).abs() };
        let error = if error.is_nan() { f64::INFINITY } else { error };
        let bound = if r.is_finite() { bound(r) } else { 0.0 };
        if error - bound > worst_excess {
            worst_excess = error - bound;
            verdict.max_error = error;
            verdict.bound = bound;
            verdict.worst_index = index;
        }
    }
    verdict.passed = worst_excess <= 0.0 && verdict.nan_count == 0;
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use half::f16;

    fn problem() -> Problem {
        let layout = Layout::bshd([1, 1, 1, 8]);
        Problem::builder(&layout, &layout, &layout, f16::TYPE)
            .build()
            .unwrap()
    }

    fn outputs(out: &[f64], lse: &[f64]) -> ReferenceOutput {
        ReferenceOutput {
            out: out.to_vec(),
            lse: lse.to_vec(),
        }
    }

    #[test]
    fn the_bound_is_twice_the_natural_error_plus_atol() {
        let reference = outputs(&[0.0, 0.5], &[]);
        let rounded = outputs(&[0.01, 0.5], &[]);
        let accepts = |x: f32| {
            accept(
                &problem(),
                &[f16::from_f32(x), f16::from_f32(0.5)],
                &reference,
                &rounded,
            )
        };
        assert!(accepts(0.02).passed);
        assert!(accepts(-0.0199).passed);
        let verdict = accepts(0.022);
        assert!(!verdict.passed);
        assert_eq!(verdict.worst_index, 0);
        assert!(verdict.bound > 0.02 && verdict.bound < 0.0215, "{verdict}");
    }

    #[test]
    fn nan_never_passes() {
        // Not even where the reference is NaN itself, or the bound is infinite.
        let rounded = outputs(&[f64::INFINITY, 0.0], &[]);
        for r in [0.0, f64::NAN] {
            let reference = outputs(&[r, 0.0], &[]);
            let verdict = accept(&problem(), &[f16::NAN, f16::ZERO], &reference, &rounded);
            assert!(!verdict.passed && verdict.nan_count == 1, "{verdict}");
        }
    }

    #[test]
    fn a_wrong_length_never_passes() {
        let reference = outputs(&[0.0, 0.0], &[]);
        assert!(!accept(&problem(), &[f16::ZERO], &reference, &reference).passed);
        assert!(!accept::<f16>(&problem(), &[], &reference, &reference).passed);
    }

    #[test]
    fn empty_is_right() {
        let nothing = outputs(&[], &[]);
        assert!(accept::<f16>(&problem(), &[], &nothing, &nothing).passed);
    }

    #[test]
    fn minus_infinity_must_be_exact() {
        let reference = outputs(&[], &[f64::NEG_INFINITY, 1000.0]);
        let accepts =
            |a: f32, b: f32| accept_lse(&problem(), &[a, b], &reference, &reference).passed;
        assert!(accepts(f32::NEG_INFINITY, 1000.005));
        assert!(!accepts(-1e30, 1000.0));
        assert!(!accepts(f32::INFINITY, 1000.0));
        assert!(!accepts(f32::NEG_INFINITY, f32::NEG_INFINITY));
        assert!(!accepts(f32::NEG_INFINITY, 1000.02));
        assert!(!accepts(f32::NAN, 1000.0));
    }
}
