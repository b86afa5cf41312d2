//! Products of `bf16` numbers by instructions that multiply them two at a time: tile registers (AMX), or vectors (AVX512_BF16).
//!
//! Scores and weights are stored as elsewhere, a lane for each query. Two numbers that follow each other along the sum are a pair,
//! a word of 32 bits: in a row of keys as it is in memory, in queries and values once they are turned, in weights as they are rounded.
//! Products are exact, sums are `f32`; numbers below the normal ones count as 0.

use warptile_kernels::tiling::Tiling;

#[cfg(warptile_amx)]
use crate::cpu::amx::Tiles;
use crate::cpu::block::Blocks;
use crate::cpu::isa::{Isa, Work};
use crate::cpu::lanes::*;
use crate::cpu::memory::Memory;
use crate::cpu::turn::{Prefetch, Turn};
use crate::element::Element;
use crate::heads::Heads;
use crate::layout::MAX_HEAD_DIM;

/// Rows and lanes of a product.
pub(super) const BLOCK: usize = 32;

/// What multiplies pairs.
pub(super) enum Engine {
    #[cfg(warptile_amx)]
    Tiles(Tiles),
    /// [`Lanes::dot`] of these instructions.
    Dots(Isa),
}

impl Engine {
    /// Whether products are left to tile registers.
    pub(super) fn is_tiles(&self) -> bool {
        match self {
            #[cfg(warptile_amx)]
            Engine::Tiles(_) => true,
            Engine::Dots(_) => false,
        }
    }

    /// As [`Product`].
    fn product(&self, a: &[u32], b: &[u32], c: &mut [f32], add: bool) {
        match self {
            #[cfg(warptile_amx)]
            Engine::Tiles(tiles) => tiles.product(a, b, c, add),
            Engine::Dots(isa) => isa.run_dots(Product { a, b, c, add }),
        }
    }
}

/// `c = a b`, or `c += a b`, for 32 rows and 32 lanes: `a` has rows of pairs in tiles, one after the other as a step needs them: the
/// first 16 pairs of the first 16 rows, the same of the other rows, the next 16 pairs. `b` has a row of lanes for each pair, `c` a row
/// of lanes of numbers for each row of `a`. The number of pairs is a multiple of 16.
pub(super) struct Product<'a> {
    a: &'a [u32],
    b: &'a [u32],
    c: &'a mut [f32],
    add: bool,
}

impl Work for Product<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        /// Rows whose sums are in registers, two for each.
        const AT_ONCE: usize = 8;
        let pairs = self.b.len() / BLOCK;
        assert!(pairs.is_multiple_of(16) && self.b.len() == pairs * BLOCK);
        assert!(self.a.len() >= self.b.len() && self.c.len() == BLOCK * BLOCK);
        for lane in (0..BLOCK).step_by(2 * L::WIDTH) {
            for row in (0..BLOCK).step_by(AT_ONCE) {
                // SAFETY: the caller vouches for the instructions. Rows and lanes are below `BLOCK`, so `c` has them, and `b` its lanes of
                // each pair; a tile of `a` has 16 rows, of which `AT_ONCE` begin here, with 16 pairs each, and there are two tiles for
                // each 16 pairs.
                unsafe {
                    let c = self.c.as_mut_ptr().add(row * BLOCK + lane);
                    let mut sums = [[L::splat(0.0); 2]; AT_ONCE];
                    if self.add {
                        for (index, sums) in sums.iter_mut().enumerate() {
                            for (half, sum) in sums.iter_mut().enumerate() {
                                *sum = L::load(c.add(index * BLOCK + half * L::WIDTH));
                            }
                        }
                    }
                    for first in (0..pairs).step_by(16) {
                        let a = self
                            .a
                            .as_ptr()
                            .add(tile_at(row, first, pairs) + row % 16 * 16);
                        let b = self.b.as_ptr().add(first * BLOCK + lane).cast::<f32>();
                        for pair in 0..16 {
                            let b = b.add(pair * BLOCK);
                            let lanes = [L::load(b), L::load(b.add(L::WIDTH))];
                            for (index, sums) in sums.iter_mut().enumerate() {
                                let word = L::splat(f32::from_bits(*a.add(index * 16 + pair)));
                                for (sum, lanes) in sums.iter_mut().zip(lanes) {
                                    *sum = word.dot(lanes, *sum);
                                }
                            }
                        }
                    }
                    for (index, sums) in sums.into_iter().enumerate() {
                        for (half, sum) in sums.into_iter().enumerate() {
                            sum.store(c.add(index * BLOCK + half * L::WIDTH));
                        }
                    }
                }
            }
        }
    }
}

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

/// Words of a tile register: 16 rows of 16.
const TILE: usize = 256;

/// Where the tile of a row and a pair is in blocks of rows of so many pairs, both multiples of 16.
fn tile_at(row: usize, pair: usize, pairs: usize) -> usize {
    row / BLOCK * BLOCK * pairs + (pair / 16 * 2 + row % BLOCK / 16) * TILE
}

impl Pairs {
    /// Loads queries into panels of [`BLOCK`] lanes, of a call with these heads.
    pub(super) fn load_queries<T: Element>(&mut self, isa: Isa, rows: &[&[T]], heads: Heads) {
        (self.depth, self.value_depth) = (heads.dim, heads.value_dim);
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

    /// Loads the keys and values of a tile, the first of which is its key `before`. Meanwhile those that come next, if they do, are
    /// brought nearer.
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

    /// Room for the weights of so many keys and a panel.
    pub(super) fn weights(&mut self, keys: usize) -> &mut [u32] {
        self.weights.resize(keys / 2 * BLOCK);
        &mut self.weights
    }

    /// Adds the values of keys from `first_key` on, of which there are weights, to the output of a panel, a row of lanes for each
    /// component. Keys are whole blocks.
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

/// Turns a matrix of words with so many rows and columns, from rows so far apart.
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
