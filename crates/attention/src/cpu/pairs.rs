//! Products of `bf16` numbers by instructions that multiply them two at a time: tile registers (AMX), or vectors (AVX512_BF16).
//!
//! Scores and weights are stored as elsewhere, a lane for each query. Two numbers that follow each other along the sum are a pair,
//! a word of 32 bits: in a row of keys as it is in memory, in queries and values once they are turned, in weights as they are rounded.
//! Products are exact, sums are `f32`; numbers below the normal ones count as 0.

use warptile_kernels::tiling::Tiling;

use crate::cpu::engine::{BLOCK, Engine, TILE, tile_at};
use crate::cpu::isa::{Isa, Work};
use crate::cpu::lanes::*;
use crate::cpu::memory::Memory;
use crate::cpu::task::Blocks;
use crate::cpu::turn::{Prefetch, Turn};
use crate::spec::{Element, Heads, MAX_HEAD_DIM};

/// Queries, keys and values as products of pairs want them, and room for weights.
#[derive(Default)]
pub(super) struct Pairs {
    /// Components of a query or key.
    depth: usize,
    /// Components of a value.
    value_depth: usize,
    /// For each panel of queries a row of lanes for each pair of components.
    queries: Memory<u32>,
    /// The keys of a tile in blocks of [`BLOCK`], each as [`Product`] takes rows of pairs of components; 0 where there is no key.
    keys: Memory<u32>,
    /// The components of values in blocks of [`BLOCK`], likewise, of pairs of keys.
    values: Memory<u32>,
    /// Numbers on their way.
    words: Memory<u32>,
    /// Weights: a row of lanes for each pair of keys.
    weights: Memory<u32>,
}

/// Keys of a tile.
const KEYS: usize = Blocks::BLOCK_N;

/// Rows that are fetched ahead together.
const AHEAD: usize = 4;

impl Pairs {
    /// Loads queries into panels of [`BLOCK`] lanes, of a call with these heads.
    pub(super) fn load_queries<T: Element>(&mut self, isa: Isa, rows: &[&[T]], heads: Heads) {
        [self.depth, self.value_depth] = heads.dims();
        let pairs = self.depth / 2;
        self.words.resize(BLOCK * pairs);
        self.queries
            .resize(rows.len().next_multiple_of(BLOCK) * pairs);
        let panels = self.queries.chunks_exact_mut(BLOCK * pairs);
        for (rows, to) in rows.chunks(BLOCK).zip(panels) {
            let (words, rest) = self.words.split_at_mut(rows.len() * pairs);
            for (row, to) in rows.iter().zip(words.chunks_exact_mut(pairs)) {
                bytemuck::cast_slice_mut(to).copy_from_slice(halves(row));
            }
            rest.fill(0);
            turn(isa, [BLOCK, pairs], (&self.words, pairs), (to, BLOCK));
        }
    }

    /// Loads the keys and values of a tile, starting at key `before`, and prefetches those of the next tile if there is one.
    pub(super) fn load_tile<'a, T: Element>(
        &mut self,
        isa: Isa,
        k: &[&'a [T]],
        v: &[&'a [T]],
        before: usize,
        [next_k, next_v]: [&[&[T]]; 2],
    ) {
        let pairs = self.depth / 2;
        self.keys.resize(KEYS * pairs);
        for memory in [&mut self.values, &mut self.words] {
            memory.resize(KEYS * self.value_depth / 2);
        }
        let row = |rows: &[&'a [T]], key: usize| {
            let row = key.checked_sub(before).and_then(|key| rows.get(key));
            row.map_or(&ZEROS[..], |row| halves(row))
        };
        // A few rows at a time: a core waits when it has asked for too many.
        let fetch = |rows: &[&[T]], first: usize| {
            let rows = rows.get(first..).unwrap_or(&[]);
            isa.run(Prefetch(&rows[..rows.len().min(AHEAD)]));
        };
        for key in 0..KEYS {
            if key % AHEAD == 0 {
                fetch(next_k, key);
            }
            for (index, piece) in row(k, key)[..self.depth].chunks_exact(32).enumerate() {
                let to = tile_at(key, 16 * index, pairs) + key % 16 * 16;
                bytemuck::cast_slice_mut(&mut self.keys[to..to + 16]).copy_from_slice(piece);
            }
        }
        // Row j of the words is values 2 j and 2 j + 1, a pair for each component.
        for (index, to) in self.words.chunks_exact_mut(self.value_depth).enumerate() {
            if 2 * index % AHEAD == 0 {
                fetch(next_v, 2 * index);
            }
            isa.run(PairRows {
                rows: [row(v, 2 * index), row(v, 2 * index + 1)],
                to,
            });
        }
        for pair in (0..KEYS / 2).step_by(16) {
            for component in (0..self.value_depth).step_by(16) {
                let from = &self.words[pair * self.value_depth + component..];
                let to = &mut self.values[tile_at(component, pair, KEYS / 2)..][..TILE];
                turn(isa, [16, 16], (from, self.value_depth), (to, 16));
            }
        }
    }

    /// Products of the queries of a panel with keys: a row of lanes for each key from `first_key` on. Both are whole blocks.
    pub(super) fn scores(&self, engine: &Engine, panel: usize, first_key: usize, out: &mut [f32]) {
        let pairs = self.depth / 2;
        let queries = &self.queries[panel * BLOCK * pairs..][..BLOCK * pairs];
        let keys = self.keys[first_key * pairs..].chunks_exact(BLOCK * pairs);
        for (keys, out) in keys.zip(out.chunks_exact_mut(BLOCK * BLOCK)) {
            engine.product(keys, queries, out, false);
        }
    }

    /// Room for the weights of this many keys and a panel.
    pub(super) fn weights(&mut self, keys: usize) -> &mut [u32] {
        self.weights.resize(keys / 2 * BLOCK);
        &mut self.weights
    }

    /// Adds the weighted values of keys from `first_key` on to the output of a panel, which has a row of lanes for each component. Keys
    /// are whole blocks.
    pub(super) fn add_values(&self, engine: &Engine, first_key: usize, out: &mut [f32]) {
        let values = self.values.chunks_exact(BLOCK * KEYS / 2);
        for (values, out) in values.zip(out.chunks_exact_mut(BLOCK * BLOCK)) {
            let values = &values[first_key / 2 * BLOCK..];
            engine.product(values, &self.weights, out, true);
        }
    }
}

/// A row that is not there.
pub(super) const ZEROS: [u16; MAX_HEAD_DIM] = [0; MAX_HEAD_DIM];

/// The bits of 16-bit numbers.
pub(super) fn halves<T: Element>(row: &[T]) -> &[u16] {
    bytemuck::cast_slice(row)
}

/// Word `i` is number `i` of both rows.
struct PairRows<'a> {
    rows: [&'a [u16]; 2],
    to: &'a mut [u32],
}

impl Work for PairRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        let [first, second] = self.rows;
        for (to, (first, second)) in self.to.iter_mut().zip(first.iter().zip(second)) {
            *to = u32::from(*first) | u32::from(*second) << 16;
        }
    }
}

/// Turns a matrix of words with this many rows and columns, from rows so far apart.
fn turn(
    isa: Isa,
    size: [usize; 2],
    (from, from_stride): (&[u32], usize),
    (to, to_stride): (&mut [u32], usize),
) {
    isa.run(Turn {
        size,
        from: bytemuck::cast_slice(from),
        from_stride,
        to: bytemuck::cast_slice_mut(to),
        to_stride,
    });
}
