//! The engine that multiplies pairs of `bf16`: see [`pairs`](crate::cpu::pairs).

#[cfg(warptile_amx)]
use crate::cpu::amx::Tiles;
use crate::cpu::isa::{Isa, Work};
use crate::cpu::lanes::*;

/// Rows and lanes of a product.
pub(super) const BLOCK: usize = 32;

/// Words of a tile register: 16 rows of 16.
pub(super) const TILE: usize = 256;

/// Where the tile of a row and a pair is in blocks of rows of this many pairs, both multiples of 16.
pub(super) fn tile_at(row: usize, pair: usize, pairs: usize) -> usize {
    row / BLOCK * BLOCK * pairs + (pair / 16 * 2 + row % BLOCK / 16) * TILE
}

/// The instructions that multiply pairs.
pub(super) enum Engine {
    #[cfg(warptile_amx)]
    Tiles(Tiles),
    /// [`Lanes::dot`] of these instructions.
    Dots(Isa),
}

impl Engine {
    /// Returns true if products are left to tile registers.
    pub(super) fn is_tiles(&self) -> bool {
        match self {
            #[cfg(warptile_amx)]
            Engine::Tiles(_) => true,
            Engine::Dots(_) => false,
        }
    }

    /// As [`Product`].
    pub(super) fn product(&self, a: &[u32], b: &[u32], c: &mut [f32], add: bool) {
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
                // each pair. A tile of `a` has 16 rows of 16 pairs, at least `AT_ONCE` of them from here on, and there are two tiles for
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
