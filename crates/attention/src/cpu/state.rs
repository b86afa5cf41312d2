//! The state of online softmax for the rows of a block.

use std::f64::consts::LN_2;
use std::ops::Range;

use crate::cpu::isa::Work;
use crate::cpu::lanes::*;
use crate::cpu::memory::Memory;

/// The state that online softmax carries from tile to tile, for each lane of each panel.
#[derive(Clone, Default)]
pub(super) struct RowState {
    /// Weighted sums of the values so far, as the queries are stored.
    pub(super) out: Memory<f32>,
    /// Largest score so far, in units of ln 2.
    pub(super) max: Memory<f32>,
    /// Largest score so far of those that were computed with care, not in these units.
    pub(super) careful: Vec<f64>,
    /// Sum of `2^(score - max)` so far.
    pub(super) sum: Memory<f32>,
    /// The factors by which the last tile multiplied the sums.
    pub(super) factors: Memory<f32>,
}

impl RowState {
    /// `depth`: of a row of the output.
    pub(super) fn reset(&mut self, lanes: usize, depth: usize) {
        for (memory, len, value) in [
            (&mut self.out, lanes * depth, 0.0),
            (&mut self.max, lanes, f32::NEG_INFINITY),
            (&mut self.sum, lanes, 0.0),
            (&mut self.factors, lanes, 0.0),
        ] {
            memory.resize(len);
            memory.fill(value);
        }
        self.careful.clear();
        self.careful.resize(lanes, f64::NEG_INFINITY);
    }

    /// The natural logarithm of a row's sum of exponentials.
    pub(super) fn lse(&self, row: usize) -> f64 {
        let max = match self.max[row].abs() {
            f32::MAX => self.careful[row].clamp(f64::from(f32::MIN), f64::from(f32::MAX)),
            _ => f64::from(self.max[row]) * LN_2,
        };
        max + f64::from(self.sum[row].ln())
    }
}

/// Adds what other keys gave the same lanes.
pub(super) struct AddPart<'a, I> {
    pub(super) to: &'a mut RowState,
    pub(super) part: &'a RowState,
    /// The lanes of each panel.
    pub(super) panels: I,
    /// The length of a row of the output.
    pub(super) depth: usize,
}

impl<I: Iterator<Item = Range<usize>>> Work for AddPart<'_, I> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        let AddPart {
            to,
            part,
            panels,
            depth,
        } = self;
        // The factors of both sums.
        to.factors.resize(2 * to.max.len());
        let (ours, theirs) = to.factors.split_at_mut(part.max.len());
        for lane in 0..part.max.len() {
            let max = to.max[lane].max(part.max[lane]);
            // Where neither saw a key, 0: inf - inf would be a NaN.
            let largest = max.max(f32::MIN);
            for (factor, old) in [
                (&mut ours[lane], to.max[lane]),
                (&mut theirs[lane], part.max[lane]),
            ] {
                let mut all = [0.0; MAX_WIDTH];
                // SAFETY: the caller vouches for the instructions; the array has room for a register.
                unsafe { L::splat(old - largest).exp2().store(all.as_mut_ptr()) };
                *factor = all[0];
            }
            to.max[lane] = max;
            to.careful[lane] = to.careful[lane].max(part.careful[lane]);
            to.sum[lane] = to.sum[lane] * ours[lane] + part.sum[lane] * theirs[lane];
        }
        for lanes in panels {
            let place = lanes.start * depth..lanes.end * depth;
            let (ours, theirs) = (&ours[lanes.clone()], &theirs[lanes.clone()]);
            let (out, from) = (&mut to.out[place.clone()], &part.out[place]);
            if let ([a], [b]) = (ours, theirs) {
                for (x, y) in out.iter_mut().zip(from) {
                    *x = *x * a + y * b;
                }
                continue;
            }
            let rows = out.chunks_exact_mut(lanes.len());
            for (out, from) in rows.zip(from.chunks_exact(lanes.len())) {
                for (((x, y), a), b) in out.iter_mut().zip(from).zip(ours).zip(theirs) {
                    *x = *x * a + y * b;
                }
            }
        }
        to.factors.resize(part.max.len());
    }
}
