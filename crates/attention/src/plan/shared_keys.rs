//! Kernels whose CTAs share the keys of all sequences: how many tiles and units of keys there are (kernels/work/share.cuh).

use warptile_kernels::Image;
use warptile_kernels::abi::MAX_QUOTIENT;

use crate::plan::occupancy::MAX_TILES;
use crate::spec::{Call, Diagonal, Heads, MAX_LEN, Mask, Problem, Splits};

/// The input for counting the units of kernels that share keys: a call, or the bounds of a problem.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sides {
    batch: u64,
    heads: Heads,
    query_len: u64,
    /// The number of packed query rows, if the host knows that the sequences share them.
    query_rows: Option<u64>,
    key_len: u64,
    mask: Mask,
    pub(super) splits: Splits,
}

impl From<&Call> for Sides {
    fn from(call: &Call) -> Self {
        let queries = call.queries();
        Sides {
            batch: call.batch() as u64,
            heads: call.heads(),
            query_len: call.query_len() as u64,
            query_rows: queries.offsets().on_host().map(|_| queries.rows() as u64),
            key_len: call.key_len() as u64,
            mask: call.mask(),
            splits: call.splits(),
        }
    }
}

impl From<&Problem> for Sides {
    fn from(problem: &Problem) -> Self {
        // Offsets that are unchecked may let sequences overlap.
        let checked = problem.packed_queries() && !problem.device_lengths();
        Sides {
            batch: problem.batch() as u64,
            heads: problem.heads(),
            query_len: problem.query_len() as u64,
            query_rows: checked.then(|| problem.query_rows() as u64),
            key_len: problem.key_len() as u64,
            mask: problem.mask(),
            splits: problem.splits(),
        }
    }
}

impl Sides {
    pub(super) const fn kv_heads(&self) -> u64 {
        self.heads.key_value as u64
    }

    /// Rows of a tile that a query has: one for each of the heads that share a key/value head.
    const fn group(&self) -> u64 {
        self.heads.group_size() as u64
    }

    /// Tiles of a sequence and key/value head, at most.
    pub(super) fn row_tiles(&self, block_m: u32) -> u64 {
        (self.query_len * self.group()).div_ceil(u64::from(block_m))
    }

    /// Tiles in all, at most: rows of a tile are queries with each of the heads that share a key/value head.
    pub(super) fn tiles(&self, block_m: u32) -> u64 {
        let each = self.row_tiles(block_m).saturating_mul(self.batch);
        let shared = self.query_rows.map_or(u64::MAX, |rows| {
            (rows * self.group() / u64::from(block_m)).saturating_add(self.batch)
        });
        each.min(shared).saturating_mul(self.kv_heads())
    }

    /// The most units that the keys of a tile are cut into, at least 1. Only units with a key that some query of the sequence sees count.
    /// `Share` in kernels/work/share.cuh counts those that there are.
    pub(super) fn tile_units(&self, block_n: u32) -> u64 {
        let keys = u64::from(self.splits.keys().unwrap_or(block_n));
        let Mask {
            left,
            right,
            diagonal,
            ..
        } = self.mask;
        let key = |key: i64| key.clamp(0, self.key_len as i64) as u64;
        // For all lengths within their bounds, the keys that are seen lie below `end`, in a range of `among` keys.
        let (end, among) = match diagonal {
            Diagonal::BottomRight => (
                self.key_len,
                left.map(|left| self.query_len + u64::from(left)),
            ),
            Diagonal::TopLeft | Diagonal::At(_) => {
                let offset = diagonal.offset(0, 0) as i64;
                let end = right.map_or(self.key_len, |right| {
                    key(self.query_len as i64 + i64::from(right) + offset)
                });
                let begin = left.map(|left| key(offset - i64::from(left)));
                (end, begin.map(|begin| end.saturating_sub(begin)))
            }
        };
        // They may begin and end anywhere between two cuts.
        let touched = among.map_or(u64::MAX, |among| among.div_ceil(keys) + 1);
        end.div_ceil(keys).min(touched).max(1)
    }

    pub(super) fn units(&self, image: &Image) -> u64 {
        let tiling = image.tiling;
        let units = self
            .tile_units(tiling.block_n)
            .saturating_mul(self.tiles(tiling.block_m));
        let rows = self.query_len.saturating_mul(self.group());
        if_countable(rows, self.group().max(self.kv_heads()), units)
    }

    /// Key/value heads that are read side by side, each by as many CTAs: as many as divide all heads and leave at most every 24th CTA
    /// without work. In most caches the rows of neighbouring heads are neighbours, and memory that is read at once is read faster.
    pub(super) fn side_by_side(&self, resident: u32) -> u64 {
        let resident = u64::from(resident);
        (1..=self.kv_heads().min(resident))
            .rev()
            .find(|heads| {
                self.kv_heads().is_multiple_of(*heads) && resident % heads <= resident / 24
            })
            .unwrap_or(1)
    }
}

/// The tiles, or more than a launch can have where kernels whose tiles have the rows of a group cannot count these in
/// 32 bits, or cannot divide by numbers of heads.
pub(super) fn if_countable(rows: u64, heads: u64, tiles: u64) -> u64 {
    match rows < MAX_LEN as u64 && heads <= MAX_QUOTIENT {
        true => tiles,
        false => tiles.max(MAX_TILES + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{ElementType, Layout};

    fn sides(kv_heads: usize) -> Sides {
        let rows = Layout::bshd([1, 1, kv_heads, 128]);
        let call = Call::builder(&rows, &rows, &rows, ElementType::F16)
            .build()
            .unwrap();
        Sides::from(&call)
    }

    #[test]
    fn as_many_heads_are_read_side_by_side_as_leave_few_ctas_without_work() {
        for (kv_heads, resident, expected) in [
            (1, 132, 1),
            (4, 132, 4),
            (8, 132, 8),
            // 132 / 40 * 40 are too few, and so are 132 / 20 * 20.
            (40, 132, 10),
            (64, 132, 64),
            (100, 132, 10),
            (128, 132, 128),
            // More than there are CTAs.
            (256, 132, 128),
            (211, 132, 1),
            (8, 46, 2),
            (8, 1, 1),
        ] {
            assert_eq!(
                sides(kv_heads).side_by_side(resident),
                expected,
                "{kv_heads} heads on {resident} CTAs"
            );
        }
        for kv_heads in 1..300 {
            for resident in 1..300 {
                let heads = sides(kv_heads).side_by_side(resident);
                assert_eq!(kv_heads as u64 % heads, 0);
                assert!(u64::from(resident) % heads * 24 <= u64::from(resident));
            }
        }
    }
}
