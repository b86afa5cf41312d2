//! Attention of a block of query rows.

use std::ops::Range;

use warptile_kernels::tiling::Tiling;

use crate::call::{Call, Operands, Sequence};
use crate::cpu::matmul::{self, Left, Panels};
use crate::cpu::simd::{self, Bias};
use crate::element::Element;
use crate::layout::{Layout, View};
use crate::mask::Mask;
use crate::scoring::ScoreTerms;

/// The blocks of the CPU path.
pub(super) enum Blocks {}

impl Tiling for Blocks {
    /// The keys and values of a tile are converted once per block, so more rows cost less; fewer leave more blocks to share
    /// among cores.
    const BLOCK_M: usize = 192;

    /// The scores of a block and a tile, 192 KiB, stay in the second-level cache; a panel of values, 32 KiB, in the first.
    const BLOCK_N: usize = 256;
}

/// What a task computes, and from what.
pub(super) struct Block<'a, T> {
    pub(super) call: &'a Call,
    pub(super) q: View<'a, T>,
    pub(super) k: View<'a, T>,
    pub(super) v: View<'a, T>,
    pub(super) operands: &'a Operands<'a, T>,
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
    /// Where the keys of the tile lie in k and v: indices along the first dimension, and rows.
    places: Vec<(usize, usize)>,
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

    /// Adds a key with this score and the value 0 to a row.
    fn add_sink(&mut self, row: usize, sink: f32) {
        self.raise(row, sink);
        self.sum[row] += (sink - self.max[row]).exp();
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
            places,
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
        // Tiles begin at multiples of their size whatever the block's first row sees, so that a row's bits do not depend on the others
        // of its block.
        let first = visible.start / Blocks::BLOCK_N * Blocks::BLOCK_N;
        for start in (first..visible.end).step_by(Blocks::BLOCK_N) {
            let tile = start.max(visible.start)..visible.end.min(start + Blocks::BLOCK_N);
            places.clear();
            let sequence = &self.task.sequence;
            for (entry, rows) in self.call.key_rows(sequence, tile.clone()) {
                places.extend(rows.map(|row| (entry, row)));
            }
            keys.fill_transposed(head_dim, self.kv_rows(&self.k, places));
            values.fill(head_dim, self.kv_rows(&self.v, places));
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
        if let Some(sinks) = self.operands.sinks {
            for row in 0..rows {
                state.add_sink(row, sinks[self.task.row(row).0]);
            }
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
        let slope = self
            .call
            .scoring()
            .slope(self.operands.slopes, batch, head, self.call.heads());
        let bias = Bias {
            softcap: self.call.scoring().softcap,
            slope,
        };
        let shown = ShownKeys::new(self, (batch, position, head), tile.start + start);
        // Lengths are at most 2^30.
        let diagonal = (position + k_len) as i64 - (q_len + tile.start + start) as i64;
        let row_scores = &mut scores[start..end];
        let (mut max, mut finite) = simd::score(row_scores, bias, diagonal as f32);
        if !shown.all() {
            let Some(largest) = shown.apply(row_scores) else {
                scores.fill(0.0);
                return;
            };
            (max, finite) = (largest.0, largest.1 && finite);
        }
        if !finite {
            max = f32::NEG_INFINITY;
            for (index, score) in row_scores.iter_mut().enumerate() {
                let Some(added) = shown.bias(index) else {
                    *score = f32::NEG_INFINITY;
                    continue;
                };
                let terms = ScoreTerms {
                    scale: self.call.scale(),
                    slope: f64::from(slope),
                    distance: (diagonal - index as i64).abs() as f64,
                    bias: f64::from(added),
                };
                *score = self.careful_score(query, keys.column(start + index), &terms);
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
        terms: &ScoreTerms,
    ) -> f32 {
        let products = query.iter().zip(key);
        let product: f64 = products.map(|(&q, k)| f64::from(q) * f64::from(k)).sum();
        let score = self.call.scoring().score(product, terms, |x| x);
        score.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
    }

    /// Rows of keys or values, of the head that the task reads.
    fn kv_rows<'v>(
        &self,
        view: &View<'v, T>,
        places: &[(usize, usize)],
    ) -> impl ExactSizeIterator<Item = &'v [T]> {
        let view = *view;
        let head = self.task.heads.start / self.call.group_size();
        let rows = places.iter();
        rows.map(move |&(entry, row)| view.row(entry, row, head))
    }
}

/// What the bias and the key mask say of the keys of a row, from some key on.
struct ShownKeys<'a, T> {
    bias: Option<(&'a [T], usize)>,
    mask: Option<(&'a [u8], usize)>,
}

impl<'a, T: Element> ShownKeys<'a, T> {
    /// `row`: sequence, position and head.
    fn new(block: &Block<'a, T>, row: (usize, usize, usize), first_key: usize) -> Self {
        let (call, operands) = (block.call, block.operands);
        let place = |layout: &Layout| {
            let step = layout.strides[3];
            (layout.offset(row.0, row.1, row.2) + first_key * step, step)
        };
        let bias = call.bias().map(place).zip(operands.bias);
        let mask = call.key_mask().map(place).zip(operands.key_mask);
        ShownKeys {
            bias: bias.map(|((start, step), data)| (&data[start..], step)),
            mask: mask.map(|((start, step), data)| (&data[start..], step)),
        }
    }

    /// Whether there is neither.
    fn all(&self) -> bool {
        self.bias.is_none() && self.mask.is_none()
    }

    /// What is added to the score of a key; `None` if the key is hidden.
    fn bias(&self, index: usize) -> Option<f32> {
        if let Some((mask, step)) = self.mask
            && mask[index * step] == 0
        {
            return None;
        }
        let bias = self
            .bias
            .map_or(0.0, |(bias, step)| bias[index * step].to_f32());
        (bias != f32::NEG_INFINITY).then_some(bias)
    }

    /// Adds the bias, and makes the scores of hidden keys minus infinity. Returns the largest score, and whether all that are
    /// shown are finite; `None` if none is.
    fn apply(&self, scores: &mut [f32]) -> Option<(f32, bool)> {
        let (mut max, mut finite, mut any) = (f32::NEG_INFINITY, true, false);
        for (index, score) in scores.iter_mut().enumerate() {
            match self.bias(index) {
                None => *score = f32::NEG_INFINITY,
                Some(bias) => {
                    *score += bias;
                    max = max.max(*score);
                    finite &= score.is_finite();
                    any = true;
                }
            }
        }
        any.then_some((max, finite))
    }
}
