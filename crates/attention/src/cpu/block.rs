//! Attention of a block of query rows of one head.

use std::ops::Range;

use crate::element::{Element, ElementType};
use crate::layout::View;
use crate::problem::{Problem, Sequence};

use super::Task;
use super::matmul::{self, Rows};
use super::simd::{self, Bias};

/// Query rows of a block. Each tile of keys is packed once per block by the matrix product, so more rows cost less; fewer
/// leave more blocks to share among cores.
pub(super) const BLOCK_M: usize = 128;

/// Keys of a tile. The scores of a block and a tile, 256 KiB, stay in the second-level cache.
const BLOCK_N: usize = 512;

/// What a task computes, and from what.
pub(super) struct Block<'a, T> {
    pub(super) problem: &'a Problem,
    pub(super) q: View<'a, T>,
    pub(super) k: View<'a, T>,
    pub(super) v: View<'a, T>,
    pub(super) sequence: Sequence,
    pub(super) head: usize,
    /// ALiBi slope of the head, 0 for none.
    pub(super) slope: f32,
    /// Rows of the sequence.
    pub(super) rows: Range<usize>,
}

/// Memory that a thread keeps from task to task.
#[derive(Default)]
pub(super) struct Scratch {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Scores, then probabilities: a row per query, a column per key of the tile.
    scores: Vec<f32>,
    /// Weighted sum of the values so far, a row per query.
    out: Vec<f32>,
    /// Largest score of each row so far.
    max: Vec<f32>,
    /// Sum of `exp(score - max)` of each row so far; at the end, the lse.
    sum: Vec<f32>,
}

/// What a block has computed.
pub(super) struct Results<'a> {
    out: &'a [f32],
    head_dim: usize,
    /// An element per row of the block.
    pub(super) lse: &'a [f32],
}

impl<'a> Results<'a> {
    /// The output of a row of the block.
    pub(super) fn row(&self, index: usize) -> &'a [f32] {
        &self.out[index * self.head_dim..][..self.head_dim]
    }
}

/// The keys that any row of a task sees. What a row sees only moves forward from row to row.
pub(super) fn key_range(problem: &Problem, task: &Task) -> Range<usize> {
    let (query_len, key_len) = (task.sequence.q_len, task.sequence.k_len);
    let last = query_len.min(task.row + BLOCK_M) - 1;
    let visible = |row| problem.mask().visible(row, query_len, key_len);
    visible(task.row).start..visible(last).end
}

impl<T: Element> Block<'_, T> {
    pub(super) fn attend<'s>(&self, scratch: &'s mut Scratch) -> Results<'s> {
        let (rows, head_dim) = (self.rows.len(), self.problem.head_dim());
        let Scratch {
            q,
            k,
            v,
            scores,
            out,
            max,
            sum,
        } = scratch;
        reset(out, rows * head_dim, 0.0);
        reset(max, rows, f32::NEG_INFINITY);
        reset(sum, rows, 0.0);
        let first_query = self.sequence.q_start + self.rows.start;
        let queries = self.load(&self.q, first_query..first_query + rows, self.head, q);
        let keys = self.visible(self.rows.start).start..self.visible(self.rows.end - 1).end;
        for start in keys.clone().step_by(BLOCK_N) {
            let tile = start..keys.end.min(start + BLOCK_N);
            let kv_rows = self.sequence.k_start + tile.start..self.sequence.k_start + tile.end;
            let kv_head = self.head / self.problem.group_size();
            let keys = self.load(&self.k, kv_rows.clone(), kv_head, k);
            let values = self.load(&self.v, kv_rows, kv_head, v);
            if scores.len() < rows * tile.len() {
                scores.resize(rows * tile.len(), 0.0);
            }
            let scores = &mut scores[..rows * tile.len()];
            matmul::product_transposed(self.problem.scale(), queries, keys, scores);
            for (index, scores) in scores.chunks_exact_mut(tile.len()).enumerate() {
                let out = &mut out[index * head_dim..][..head_dim];
                let query = queries.row(index);
                self.softmax(
                    index,
                    scores,
                    &tile,
                    (query, keys),
                    &mut max[index],
                    &mut sum[index],
                    out,
                );
            }
            let probabilities = Rows {
                data: scores,
                rows,
                columns: tile.len(),
                stride: tile.len(),
            };
            matmul::add_product(probabilities, values, out);
        }
        for (index, (sum, max)) in sum.iter_mut().zip(max).enumerate() {
            // A row that sees no key has neither output nor weight.
            if *sum != 0.0 {
                let inverse = 1.0 / *sum;
                for x in &mut out[index * head_dim..][..head_dim] {
                    *x *= inverse;
                }
            }
            *sum = *max + sum.ln();
        }
        Results {
            out,
            head_dim,
            lse: sum,
        }
    }

    fn visible(&self, row: usize) -> Range<usize> {
        self.problem
            .mask()
            .visible(row, self.sequence.q_len, self.sequence.k_len)
    }

    /// One step of online softmax for one row: scaled products become probabilities relative to the new maximum, and what
    /// was summed so far is rescaled to it.
    #[expect(
        clippy::too_many_arguments,
        reason = "one row of each of the block's arrays"
    )]
    fn softmax(
        &self,
        index: usize,
        scores: &mut [f32],
        tile: &Range<usize>,
        (query, keys): (&[f32], Rows<'_>),
        max: &mut f32,
        sum: &mut f32,
        out: &mut [f32],
    ) {
        let row = self.rows.start + index;
        let visible = self.visible(row);
        let start = visible.start.clamp(tile.start, tile.end) - tile.start;
        let end = visible.end.clamp(tile.start, tile.end) - tile.start;
        if start >= end {
            scores.fill(0.0);
            return;
        }
        let bias = Bias {
            softcap: self.problem.softcap(),
            slope: self.slope,
        };
        let diagonal =
            (row + self.sequence.k_len) as i64 - (self.sequence.q_len + tile.start + start) as i64;
        let (mut tile_max, finite) = simd::score(&mut scores[start..end], bias, diagonal as f32);
        if !finite {
            tile_max = f32::NEG_INFINITY;
            for (column, score) in scores[start..end].iter_mut().enumerate() {
                let distance = (diagonal - column as i64).abs();
                *score = self.careful_score(query, keys.row(start + column), distance);
                tile_max = tile_max.max(*score);
            }
        }
        if tile_max > *max {
            // 0 for the first tile: exp(-inf).
            let rescale = (*max - tile_max).exp();
            *max = tile_max;
            *sum *= rescale;
            for x in out {
                *x *= rescale;
            }
        }
        *sum += simd::exponentiate(scores, start..end, *max);
    }

    /// A score in `f64`, cut off at the range of `f32`: for rows in which `f32` overflowed, where `inf - inf` would make a
    /// NaN of finite inputs.
    fn careful_score(&self, query: &[f32], key: &[f32], distance: i64) -> f32 {
        let products = query
            .iter()
            .zip(key)
            .map(|(&q, &k)| f64::from(q) * f64::from(k));
        let mut score = products.sum::<f64>() * f64::from(self.problem.scale());
        if let Some(cap) = self.problem.softcap().map(f64::from) {
            score = cap * (score / cap).tanh();
        }
        score -= f64::from(self.slope) * distance as f64;
        score.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
    }

    /// Rows of one head in `f32`: the tensor itself if it is that, else a copy.
    fn load<'s>(
        &self,
        view: &View<'s, T>,
        rows: Range<usize>,
        head: usize,
        scratch: &'s mut Vec<f32>,
    ) -> Rows<'s> {
        let head_dim = self.problem.head_dim();
        let entry = self.sequence.entry;
        if T::TYPE == ElementType::F32 {
            let first = view.layout.offset(entry, rows.start, head);
            let last = view.layout.offset(entry, rows.end - 1, head);
            return Rows {
                data: bytemuck::cast_slice(&view.data[first..last + head_dim]),
                rows: rows.len(),
                columns: head_dim,
                stride: view.layout.strides[1],
            };
        }
        if scratch.len() < rows.len() * head_dim {
            scratch.resize(rows.len() * head_dim, 0.0);
        }
        for (to, row) in scratch.chunks_exact_mut(head_dim).zip(rows.clone()) {
            T::widen(view.row(entry, row, head), to);
        }
        Rows {
            data: scratch,
            rows: rows.len(),
            columns: head_dim,
            stride: head_dim,
        }
    }
}

/// Makes `vector` `len` long and fills it.
fn reset(vector: &mut Vec<f32>, len: usize, value: f32) {
    vector.clear();
    vector.resize(len, value);
}
