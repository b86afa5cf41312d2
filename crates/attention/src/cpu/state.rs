//! What online softmax knows of the rows of a block.

use std::f64::consts::LN_2;

use crate::cpu::memory::Memory;

/// What online softmax carries from tile to tile, for each lane of each panel.
#[derive(Default)]
pub(super) struct RowState {
    /// Weighted sums of the values so far, as the queries are stored.
    pub(super) out: Memory<f32>,
    /// Largest score so far, in units of ln 2.
    pub(super) max: Memory<f32>,
    /// Largest score so far of those that were computed with care, not in these units.
    pub(super) careful: Vec<f64>,
    /// Sum of `2^(score - max)` so far.
    pub(super) sum: Memory<f32>,
    /// What the last tile multiplied the sums by.
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

/// The lse of a row with a sink, and the part of all weight that is not the sink's.
pub(super) fn with_sink(lse: f64, sink: f32) -> (f64, f64) {
    let sink = f64::from(sink);
    let max = lse.max(sink);
    let with_sink = max + ((lse - max).exp() + (sink - max).exp()).ln();
    (with_sink, (lse - with_sink).exp())
}
