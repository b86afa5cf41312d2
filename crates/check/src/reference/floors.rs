//! The error that no computation of a row can be expected to avoid.

use warptile::Element;

use super::matrix::weighted_sum;
use super::row::{Computation, KeyTerms};
use crate::rounding::ulp;

impl<T: Element> Computation<'_, T> {
    /// Size of the terms that the scores of a row are summed from, in the mean over its probabilities, where the product of query and key
    /// counts as `|scale| |q| |k|`. No sum of the terms exceeds it.
    #[inline(always)]
    pub(super) fn reach(
        &self,
        query: &[f64],
        key_norms: &[f64],
        probabilities: &[f64],
        terms: &[KeyTerms],
    ) -> f64 {
        let norm = query.iter().map(|x| x * x).sum::<f64>().sqrt();
        let factor = f64::from(self.call.scale()).abs() * norm;
        let keys = probabilities.iter().zip(key_norms).zip(terms);
        keys.filter(|(_, key)| !key.hidden)
            .map(|((p, key_norm), key)| p * key.size(factor * key_norm).powi(2))
            .sum::<f64>()
            .sqrt()
    }

    /// The error of an operation in `f32`, relative to the size of what it computes, with room for a few operations.
    pub(super) fn units(&self) -> f64 {
        crate::accept::factor(self.call) * f64::from(f32::EPSILON)
    }

    /// The error to be expected of each output element even if the plain computation happens to have none.
    ///
    /// `out = sum(p v)` moves by `sum(p error(score) (v - out))`, which is at most the standard deviation of `v`
    /// under `p` times the error of the scores, about an ulp of `f32` at their [`reach`](Self::reach). The weights
    /// and the output itself are rounded to the element type: an ulp at the root mean square of `v`. What else joins
    /// the denominator counts as a key of value 0. With dropout, `weights` are those that are kept, times a factor: they are at most as
    /// large as it, and so is their sum, and an error of what was dropped moves `out` by itself.
    #[inline(always)]
    pub(super) fn floors(
        &self,
        weights: &[f64],
        values: &[f64],
        reach: f64,
        out: &[f64],
        floors: &mut [f32],
    ) {
        let mut squares = vec![0.0; out.len()];
        weighted_sum(weights, values, |v| v * v, &mut squares);
        let factor = f64::from(self.call.dropout_factor());
        // Beyond that, the weights may be anything.
        let score_error = (self.units() * (1.0 + reach)).min(1.0);
        for ((floor, square), out) in floors.iter_mut().zip(squares).zip(out) {
            let size = (square * factor).sqrt();
            let mut deviation = (square * factor - out * out).max(0.0).sqrt();
            if self.call.scoring().dropout.is_some() {
                deviation += out.abs();
            }
            let error =
                ulp(self.call.element(), size) + score_error * deviation + self.units() * size;
            *floor = error as f32;
        }
    }
}
