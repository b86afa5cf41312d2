//! Attention of a block of query rows.

use std::ops::Range;

use crate::call::{Call, Sequence};
use crate::cpu::matmul::{self, Left, Panels};
use crate::cpu::simd::{self, Bias};
use crate::element::Element;
use crate::layout::View;
use crate::mask::Mask;

/// Query rows of a block. The keys and values of a tile are converted once per block, so more rows cost less; fewer leave
/// more blocks to share among cores.
pub(super) const BLOCK_M: usize = 192;

/// Keys of a tile. The scores of a block and a tile, 192 KiB, stay in the second-level cache; a panel of values, 32 KiB, in
/// the first.
const BLOCK_N: usize = 256;

/// What a task computes, and from what.
pub(super) struct Block<'a, T> {
    pub(super) call: &'a Call,
    pub(super) q: View<'a, T>,
    pub(super) k: View<'a, T>,
    pub(super) v: View<'a, T>,
    pub(super) slopes: Option<&'a [f32]>,
    pub(super) task: Task,
}

/// The same rows of one or more query heads that share a key/value head. Rows of a block are counted head by head.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) sequence: Sequence,
    pub(super) heads: Range<usize>,
    /// Positions in the sequence, at least one.
    pub(super) positions: Range<usize>,
}

impl Task {
    /// Rows of the block.
    pub(super) fn rows(&self) -> usize {
        self.heads.len() * self.positions.len()
    }

    /// Head and position of a row of the block.
    pub(super) fn row(&self, index: usize) -> (usize, usize) {
        let count = self.positions.len();
        (
            self.heads.start + index / count,
            self.positions.start + index % count,
        )
    }

    /// The keys that any row sees. What a row sees only moves forward from position to position.
    pub(super) fn keys(&self, mask: Mask) -> Range<usize> {
        let Sequence { q_len, k_len, .. } = self.sequence;
        let visible = |position| mask.visible(position, q_len, k_len);
        visible(self.positions.start).start..visible(self.positions.end - 1).end
    }
}

/// Memory that a thread keeps from task to task.
#[derive(Default)]
pub(super) struct Scratch {
    queries: Vec<f32>,
    keys: Panels,
    values: Panels,
    /// Scores, then probabilities: a row per query, a column per key of the tile.
    scores: Vec<f32>,
    rows: RowState,
}

/// What online softmax carries from tile to tile.
#[derive(Default)]
struct RowState {
    /// Weighted sum of the values so far: a row per query, as wide as the panels of the values.
    out: Vec<f32>,
    width: usize,
    /// Largest score of each row so far.
    max: Vec<f32>,
    /// Sum of `exp(score - max)` of each row so far.
    sum: Vec<f32>,
}

impl RowState {
    fn reset(&mut self, rows: usize, head_dim: usize) {
        self.width = head_dim.next_multiple_of(matmul::PANEL);
        for (vector, len, value) in [
            (&mut self.out, rows * self.width, 0.0),
            (&mut self.max, rows, f32::NEG_INFINITY),
            (&mut self.sum, rows, 0.0),
        ] {
            vector.clear();
            vector.resize(len, value);
        }
    }

    /// Raises the maximum of a row to at least `max` and rescales to it what was summed so far.
    fn raise(&mut self, row: usize, max: f32) {
        if max > self.max[row] {
            // 0 for the first tile: exp(-inf).
            let rescale = (self.max[row] - max).exp();
            self.max[row] = max;
            self.sum[row] *= rescale;
            for x in &mut self.out[row * self.width..][..self.width] {
                *x *= rescale;
            }
        }
    }

    /// Divides by the sums, and turns them into the lse.
    fn finish(&mut self) {
        for (row, out) in self.out.chunks_exact_mut(self.width).enumerate() {
            let sum = self.sum[row];
            // A row that sees no key has neither output nor weight.
            if sum != 0.0 {
                let inverse = 1.0 / sum;
                for x in out {
                    *x *= inverse;
                }
            }
            self.sum[row] = self.max[row] + sum.ln();
        }
    }
}

/// What a block has computed.
pub(super) struct Results<'a> {
    rows: &'a RowState,
    head_dim: usize,
}

impl Results<'_> {
    /// The output of a row of the block.
    pub(super) fn out(&self, row: usize) -> &[f32] {
        &self.rows.out[row * self.rows.width..][..self.head_dim]
    }

    /// The lse of a row of the block.
    pub(super) fn lse(&self, row: usize) -> f32 {
        self.rows.sum[row]
    }
}

impl<T: Element> Block<'_, T> {
    pub(super) fn attend<'s>(&self, scratch: &'s mut Scratch) -> Results<'s> {
        let (rows, head_dim) = (self.task.rows(), self.call.head_dim());
        let Scratch {
            queries,
            keys,
            values,
            scores,
            rows: state,
        } = scratch;
        state.reset(rows, head_dim);
        queries.resize(rows * head_dim, 0.0);
        let Sequence {
            q_entry: entry,
            q_start,
            ..
        } = self.task.sequence;
        for (index, to) in queries.chunks_exact_mut(head_dim).enumerate() {
            let (head, position) = self.task.row(index);
            simd::widen(self.q.row(entry, q_start + position, head), to);
        }
        let queries = Left {
            data: queries,
            stride: head_dim,
        };
        let visible = self.task.keys(self.call.mask());
        for start in visible.clone().step_by(BLOCK_N) {
            let tile = start..visible.end.min(start + BLOCK_N);
            keys.fill_transposed(head_dim, self.kv_rows(&self.k, &tile));
            values.fill(head_dim, self.kv_rows(&self.v, &tile));
            let width = keys.width();
            if scores.len() < rows * width {
                scores.resize(rows * width, 0.0);
            }
            let scores = &mut scores[..rows * width];
            matmul::product(self.call.scale(), queries, keys, scores);
            for (row, scores) in scores.chunks_exact_mut(width).enumerate() {
                let query = &queries.data[row * head_dim..][..head_dim];
                self.softmax(row, &tile, scores, (query, keys), state);
            }
            let probabilities = Left {
                data: scores,
                stride: width,
            };
            matmul::add_product(probabilities, values, &mut state.out);
        }
        state.finish();
        Results {
            rows: state,
            head_dim,
        }
    }

    /// One step of online softmax for one row: scaled products become probabilities relative to the largest score so far.
    fn softmax(
        &self,
        row: usize,
        tile: &Range<usize>,
        scores: &mut [f32],
        (query, keys): (&[f32], &Panels),
        state: &mut RowState,
    ) {
        let Sequence {
            batch,
            q_len,
            k_len,
            ..
        } = self.task.sequence;
        let (head, position) = self.task.row(row);
        let visible = self.call.mask().visible(position, q_len, k_len);
        let start = visible.start.clamp(tile.start, tile.end) - tile.start;
        let end = visible.end.clamp(tile.start, tile.end) - tile.start;
        if start >= end {
            scores.fill(0.0);
            return;
        }
        let bias = Bias {
            softcap: self.call.scoring().softcap,
            slope: self
                .call
                .scoring()
                .slope(self.slopes, batch, head, self.call.heads()),
        };
        // Lengths are at most 2^30.
        let diagonal = (position + k_len) as i64 - (q_len + tile.start + start) as i64;
        let (mut max, finite) = simd::score(&mut scores[start..end], bias, diagonal as f32);
        if !finite {
            max = f32::NEG_INFINITY;
            for (index, score) in scores[start..end].iter_mut().enumerate() {
                let distance = (diagonal - index as i64).abs();
                *score =
                    self.careful_score(query, keys.column(start + index), bias.slope, distance);
                max = max.max(*score);
            }
        }
        state.raise(row, max);
        state.sum[row] += simd::exponentiate(scores, start..end, state.max[row]);
    }

    /// A score in `f64`, cut off at the range of `f32`: for rows in which `f32` overflowed, where `inf - inf` would make a
    /// NaN of finite inputs.
    fn careful_score(
        &self,
        query: &[f32],
        key: impl Iterator<Item = f32>,
        slope: f32,
        distance: i64,
    ) -> f32 {
        let products = query.iter().zip(key);
        let product: f64 = products.map(|(&q, k)| f64::from(q) * f64::from(k)).sum();
        let mut score = product * f64::from(self.call.scale());
        if let Some(cap) = self.call.scoring().softcap.map(f64::from) {
            score = cap * (score / cap).tanh();
        }
        score -= f64::from(slope) * distance as f64;
        score.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
    }

    /// Rows of keys or values of the sequence.
    fn kv_rows<'v>(
        &self,
        view: &View<'v, T>,
        rows: &Range<usize>,
    ) -> impl ExactSizeIterator<Item = &'v [T]> {
        let view = *view;
        let Sequence {
            k_entry: entry,
            k_start: start,
            ..
        } = self.task.sequence;
        let head = self.task.heads.start / self.call.group_size();
        (start + rows.start..start + rows.end).map(move |row| view.row(entry, row, head))
    }
}
