//! In which order CTAs draw the tiles of a causal launch of few rounds, so that all end together.
//!
//! Longest first leaves the last round uneven: of 1 x 2048 with 32 heads, whose 352 tiles are 2.7 rounds of an H200,
//! the multiprocessor that ends last has 6% more than the average. So tiles are packed first, and then drawn in the
//! order in which the packing begins them. The first free CTA draws first, as before, so a CTA that is late for any
//! reason draws less (docs/notebook/wgmma.md, 2026-11-23).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};

use warptile_kernels::Schedule;
use warptile_kernels::abi::{ORDERED_TILES, QUERY_BOX_ROWS};

use crate::plan::heads_at_once::interleaved;
use crate::plan::split_tiles::TILE_END_KEYS;
use crate::plan::{LaunchShape, Step};
use crate::recent::Recent;
use crate::spec::{Call, Diagonal, SideLengths};

/// Rows that a warpgroup computes.
const WARPGROUP_ROWS: i64 = QUERY_BOX_ROWS as i64;

/// Tiles by the numbers that CTAs draw, or `None` where longest first is as good, or not this kernel's order.
pub(crate) fn tile_order(step: &Step, call: &Call, shape: &LaunchShape) -> Option<Arc<[u16]>> {
    if !call.mask().is_causal() {
        return None;
    }
    // Only where kernels read neither lengths nor pages on the device: tiles of sequences with lengths of their own are not where their
    // numbers say, or do not exist.
    let listed = |side: &SideLengths| side.offsets().is_given() || side.used().is_given();
    if listed(call.queries())
        || listed(call.keys())
        || call.pages().is_some()
        || call.blocks().is_some()
    {
        return None;
    }
    let heads = interleaved(call, call.heads().query);
    let fits = shape.draws_tiles && shape.splits == 1 && shape.tiles as usize <= ORDERED_TILES;
    if step.image.schedule != Schedule::Persistent || !fits || heads != shape.heads_at_once as usize
    {
        return None;
    }
    let tiling = &step.image.tiling;
    let costs = costs_of_rows(
        [call.query_len() as i64, call.key_len() as i64],
        call.mask().diagonal,
        [tiling.block_m.into(), tiling.block_n.into()],
    )?;
    let asked = Asked {
        costs,
        heads,
        ctas: shape.grid as usize,
    };
    asked.remembered()
}

/// The costs of a head's tiles, in keys of a warpgroup. They are in the order of the tiles' numbers, which count from the last
/// rows, as `TileOrder::write` in kernels/forward/wgmma_scheduler.cuh does. `None` if a cost does not fit 32 bits.
fn costs_of_rows(
    [query_len, key_len]: [i64; 2],
    diagonal: Diagonal,
    [rows, block_n]: [i64; 2],
) -> Option<Vec<u32>> {
    let shift = diagonal.offset(query_len as usize, key_len as usize) as i64;
    let warpgroups = rows / WARPGROUP_ROWS;
    let all_queries = (query_len + WARPGROUP_ROWS - 1) / WARPGROUP_ROWS * WARPGROUP_ROWS;
    let tile = |number: i64| {
        let first = all_queries - (number + 1) * rows;
        let seen = { 0..warpgroups }
            .map(|warpgroup| first + warpgroup * WARPGROUP_ROWS)
            .filter(|&row| row >= 0)
            .map(|row| (row + WARPGROUP_ROWS + shift).clamp(0, key_len))
            .map(|keys| (keys + block_n - 1) / block_n * block_n);
        seen.sum::<i64>() + warpgroups * TILE_END_KEYS as i64
    };
    { 0..(query_len + rows - 1) / rows }
        .map(|number| u32::try_from(tile(number)).ok())
        .collect()
}

#[cfg(test)]
thread_local! {
    /// Orders that this thread has looked for.
    pub(crate) static SEARCHES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The inputs that determine an order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    /// The costs of a head's tiles.
    costs: Vec<u32>,
    heads: usize,
    ctas: usize,
}

/// A CTA's tiles, the longest first, by their number in the head.
#[derive(Debug, Clone, Default)]
struct Load {
    sum: u32,
    rows: Vec<u16>,
}

/// Up to two tiles of a CTA.
#[derive(Clone, Copy)]
struct Some2 {
    rows: [Option<u16>; 2],
    cost: u32,
}

impl Asked {
    /// Makes an order once for the shapes used last: it takes a quarter of a millisecond of a core, and at most one or two.
    fn remembered(self) -> Option<Arc<[u16]>> {
        static KNOWN: Mutex<Recent<Asked, Option<Arc<[u16]>>>> = Mutex::new(Recent::new());
        let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().find(|known| *known == self);
        known.unwrap_or_else(|| {
            let order = self.order();
            lock().keep(self, order.clone());
            order
        })
    }

    fn order(&self) -> Option<Arc<[u16]>> {
        #[cfg(test)]
        SEARCHES.set(SEARCHES.get() + 1);
        // With more rounds longest first is good enough, and packing takes long.
        const MOST_ROUNDS: usize = 8;
        if self.costs.len() * self.heads > MOST_ROUNDS * self.ctas {
            return None;
        }
        let all: u64 = self.costs.iter().map(|&cost| u64::from(cost)).sum();
        let all = all * self.heads as u64;
        // All other sums of what tiles take are parts of this one.
        u32::try_from(all).ok()?;
        let mut longest_first: Vec<u16> = (0..self.costs.len() as u16).collect();
        longest_first.sort_by_key(|&row| Reverse(self.cost(row)));
        let longest_first = longest_first
            .into_iter()
            .flat_map(|row| std::iter::repeat_n(row, self.heads))
            .collect::<Vec<_>>();
        let (usual, mut loads) = self.drawn(&longest_first);
        let average = all / self.ctas as u64;
        let longest = self.costs.iter().max().map_or(0, |&cost| u64::from(cost));
        if !is_worth_it(usual, average.max(longest)) {
            return None;
        }
        self.even_out(&mut loads);
        let mut begun = Vec::with_capacity(longest_first.len());
        for load in &loads {
            let mut at = 0;
            for &row in &load.rows {
                begun.push((at, Reverse(self.cost(row)), row));
                at += self.cost(row);
            }
        }
        begun.sort_unstable();
        let packed: Vec<u16> = begun.into_iter().map(|(_, _, row)| row).collect();
        let (end, _) = self.drawn(&packed);
        if !is_worth_it(usual, end.into()) {
            return None;
        }
        let mut head_of = vec![0; self.costs.len()];
        let number = |row: u16| {
            let head = &mut head_of[usize::from(row)];
            *head += 1;
            (usize::from(row) * self.heads + *head - 1) as u16
        };
        Some(packed.into_iter().map(number).collect())
    }

    fn cost(&self, row: u16) -> u32 {
        self.costs[usize::from(row)]
    }

    /// When the last CTA ends that draws these tiles, and what each has.
    fn drawn(&self, rows: &[u16]) -> (u32, Vec<Load>) {
        let mut loads = vec![Load::default(); self.ctas];
        let mut free: BinaryHeap<_> = (0..self.ctas).map(|cta| Reverse((0, cta))).collect();
        for &row in rows {
            let Some(Reverse((at, cta))) = free.pop() else {
                break;
            };
            loads[cta].rows.push(row);
            loads[cta].sum = at + self.cost(row);
            free.push(Reverse((loads[cta].sum, cta)));
        }
        let end = loads.iter().map(|load| load.sum).max();
        (end.unwrap_or(0), loads)
    }

    /// Exchanges up to two tiles of one CTA for up to two of another, as long as that brings their sums closer
    /// together, and the work is little.
    fn even_out(&self, loads: &mut [Load]) {
        // Each look tries one exchange; all of them take a millisecond. Square problems take a tenth to a third of them, some others
        // twelve times as many.
        const MOST_LOOKS: usize = 1 << 20;
        let mut looks = MOST_LOOKS;
        let mut some: Vec<Vec<Some2>> = loads.iter().map(|load| self.some_of(&load.rows)).collect();
        let mut order: Vec<usize> = (0..loads.len()).collect();
        loop {
            order.sort_by_key(|&cta| Reverse(loads[cta].sum));
            let mut any = false;
            for &full in &order {
                let Some((other, given, taken)) =
                    best_exchange(loads, &some, &order, full, &mut looks)
                else {
                    continue;
                };
                self.exchange(&mut loads[full], &given, &taken);
                self.exchange(&mut loads[other], &taken, &given);
                for cta in [full, other] {
                    some[cta] = self.some_of(&loads[cta].rows);
                }
                any = true;
            }
            if !any {
                return;
            }
        }
    }

    fn some_of(&self, rows: &[u16]) -> Vec<Some2> {
        let mut all = vec![Some2 {
            rows: [None; 2],
            cost: 0,
        }];
        for (at, &row) in rows.iter().enumerate() {
            let cost = self.cost(row);
            all.push(Some2 {
                rows: [Some(row), None],
                cost,
            });
            all.extend(rows[..at].iter().map(|&other| Some2 {
                rows: [Some(row), Some(other)],
                cost: cost + self.cost(other),
            }));
        }
        all
    }

    fn exchange(&self, load: &mut Load, given: &Some2, taken: &Some2) {
        for row in given.rows.iter().flatten() {
            if let Some(at) = load.rows.iter().position(|other| other == row) {
                load.rows.swap_remove(at);
            }
        }
        load.rows.extend(taken.rows.iter().flatten());
        load.rows.sort_by_key(|&row| (Reverse(self.cost(row)), row));
        load.sum = load.sum - given.cost + taken.cost;
    }
}

/// Returns true if it is worth its time to end by then instead. Not for half of a hundredth.
fn is_worth_it(usual: u32, end: u64) -> bool {
    end * 200 <= u64::from(usual) * 199
}

/// With which other CTA, what the full one gives and what it takes. `some`: what each CTA could give; `order`: by
/// their sums, or nearly; `looks`: how many exchanges may be looked at.
fn best_exchange(
    loads: &[Load],
    some: &[Vec<Some2>],
    order: &[usize],
    full: usize,
    looks: &mut usize,
) -> Option<(usize, Some2, Some2)> {
    let mut best = None;
    let mut most = 0;
    let mut last: Option<usize> = None;
    for &cta in order {
        let apart = u64::from(loads[full].sum.saturating_sub(loads[cta].sum));
        // None gains more than one that moves half of the difference.
        let is_known = last.is_some_and(|last| loads[last].rows == loads[cta].rows);
        if apart * apart <= 4 * most || is_known {
            continue;
        }
        last = Some(cta);
        match looks.checked_sub(some[cta].len() * some[full].len()) {
            Some(left) => *looks = left,
            None => break,
        }
        for taken in &some[cta] {
            for given in &some[full] {
                let moved = u64::from(given.cost.saturating_sub(taken.cost));
                let gain = moved * apart.saturating_sub(moved);
                if gain > most {
                    most = gain;
                    best = Some((cta, *given, *taken));
                }
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::step::tests::{dense, step};
    use crate::spec::Mask;
    use quickcheck::quickcheck;

    fn asked(query_len: i64, key_len: i64, tile: [i64; 2], heads: usize, ctas: usize) -> Asked {
        Asked {
            costs: costs_of_rows([query_len, key_len], Diagonal::BottomRight, tile).unwrap(),
            heads,
            ctas,
        }
    }

    /// When the last CTA ends, of the order and of longest first, in parts of what each has on average.
    fn ends(asked: &Asked) -> (f64, f64) {
        let all: u32 = asked.costs.iter().sum();
        let average = f64::from(all) * asked.heads as f64 / asked.ctas as f64;
        let order = asked.order().expect("an order");
        let rows: Vec<u16> = order
            .iter()
            .map(|&tile| tile / asked.heads as u16)
            .collect();
        let longest_first: Vec<u16> = (0..asked.costs.len() as u16)
            .flat_map(|row| std::iter::repeat_n(row, asked.heads))
            .collect();
        let end = |rows: &[u16]| f64::from(asked.drawn(rows).0) / average;
        (end(&rows), end(&longest_first))
    }

    #[test]
    fn few_rounds_end_together() {
        for (len, heads, before) in [(2048, 32, 1.04), (4096, 16, 1.08), (8192, 8, 1.08)] {
            let (end, longest_first) = ends(&asked(len, len, [192, 64], heads, 132));
            assert!(end < 1.03, "{len}: {end}");
            assert!(longest_first > before, "{len}: {longest_first}");
        }
    }

    #[test]
    fn costs_are_those_of_the_keys_that_warpgroups_see() {
        let end = 3 * TILE_END_KEYS as u32;
        let costs = |lengths, align, tile| costs_of_rows(lengths, align, tile).unwrap();
        let found = costs([320, 320], Diagonal::BottomRight, [192, 64]);
        assert_eq!(found, [320 + 256 + 192 + end, 128 + 64 + end]);
        let found = costs([100, 20], Diagonal::TopLeft, [192, 64]);
        assert_eq!(found, [2 * 64 + end]);
        // Whose first queries see no key.
        let found = costs([128, 64], Diagonal::BottomRight, [128, 64]);
        assert_eq!(found, [64 + 2 * TILE_END_KEYS as u32]);
    }

    quickcheck! {
        fn an_order_has_every_tile_once(rows: u8, heads: u8, ctas: u8, beside: i16) -> bool {
            let (rows, heads) = (i64::from(rows % 12) + 1, usize::from(heads % 40) + 1);
            let len = rows * 192;
            let key_len = (len + i64::from(beside % 3000)).max(0);
            let asked = asked(len, key_len, [192, 64], heads, usize::from(ctas % 140) + 1);
            asked.order().is_none_or(|order| {
                let mut tiles = order.to_vec();
                tiles.sort_unstable();
                tiles.into_iter().eq(0..(rows as u16 * heads as u16))
            })
        }
    }

    /// More queries than keys: few tiles take long and many are short, so there are many exchanges.
    #[test]
    fn an_order_of_many_exchanges_is_better_than_longest_first() {
        let (end, longest_first) = ends(&asked(88_649, 54_373, [192, 64], 1, 132));
        assert!(end < 0.99 * longest_first, "{end}, {longest_first}");
    }

    #[test]
    fn keys_beyond_what_can_be_counted_have_no_order() {
        let most = crate::spec::MAX_LEN as i64;
        for heads in [1, 32] {
            assert_eq!(asked(4096, most, [192, 64], heads, 16).order(), None);
        }
        let beyond = costs_of_rows([4096, most], Diagonal::BottomRight, [256, 64]);
        assert_eq!(beyond, None);
    }

    #[test]
    fn an_order_is_found_once() {
        let found = || asked(2048, 2048, [192, 64], 32, 132).remembered().unwrap();
        // Other tests may have others remembered meanwhile.
        assert!((0..100).any(|_| Arc::ptr_eq(&found(), &found())));
    }

    #[test]
    fn only_drawn_tiles_of_one_group_of_heads_are_ordered() {
        let causal = Mask::causal();
        let ordered = |call: &Call| {
            let step = step("wgmma_d128_192x64_w16_s4", 132);
            tile_order(&step, call, &step.shape(call).unwrap()).map(|order| order.len())
        };
        assert_eq!(ordered(&dense(1, [32, 8], [2048, 2048], causal)), Some(352));
        // No tile is short; one tile a CTA; several groups of heads; more than there is room for.
        for call in [
            dense(1, [32, 8], [2048, 2048], Mask::none()),
            dense(1, [8, 8], [2048, 2048], causal),
            dense(4, [16, 16], [4096, 4096], causal),
            dense(16, [32, 8], [1024, 1024], causal),
        ] {
            assert_eq!(ordered(&call), None, "{call}");
        }
    }
}
