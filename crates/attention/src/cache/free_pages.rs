//! The pages of a cache that no sequence holds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The free pages, as runs of neighbours that are as long as they can be: no run begins where another one ends.
///
/// A GPU translates addresses in units of 2 MB. With 8 key/value heads of size 128 in 16 bits, that is 32 pages of 16
/// rows. Decoding takes longer if the pages of a sequence are scattered over many such units
/// (docs/notebook/decode.md, "What pages cost"). If the page that came back last is given out first, the pages of a
/// sequence are soon as good as in random order. So a sequence gets neighbours here, where it can:
///
/// - It goes on with the page right behind its last one if that is free.
/// - Otherwise it begins again in the largest run, and leaves as many free pages before its own as behind them: the sequence that ends
///   where the run begins can go on, too. Nobody ends before page 0, so nothing is left before a beginning there.
/// - If few pages are free, the largest run is short, and would soon be cut to pieces. Then a sequence takes the shortest run that has
///   as many pages as it needs, from its beginning, and the largest one if none has.
///
/// Each run that is cut or given back takes a time that is logarithmic in the number of runs.
#[derive(Debug, Clone)]
pub(super) struct FreePages {
    /// Pages of the cache, free or not.
    all: usize,
    count: usize,
    /// Each run's first page, and the page after its last one.
    ends: BTreeMap<i32, i32>,
    /// Each run's length, and its first page.
    by_length: BTreeSet<(usize, i32)>,
}

impl FreePages {
    /// Pages 0 to `pages - 1`.
    pub(super) fn new(pages: i32) -> Self {
        let run = 0..pages;
        let mut free = FreePages {
            all: run.len(),
            count: 0,
            ends: BTreeMap::new(),
            by_length: BTreeSet::new(),
        };
        free.insert(run);
        free
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes back pages that were given out.
    pub(super) fn give_back(&mut self, pages: &[i32]) {
        for run in pages.chunk_by(|page, next| page + 1 == *next) {
            let mut joined = run[0]..run[0] + run.len() as i32;
            if let Some((&start, &end)) = self.ends.range(..joined.start).next_back()
                && end == joined.start
            {
                self.remove(start..end);
                joined.start = start;
            }
            if let Some(&end) = self.ends.get(&joined.end) {
                self.remove(joined.end..end);
                joined.end = end;
            }
            self.insert(joined);
        }
    }

    /// Adds `count` pages to those of a sequence, or all free pages if there are fewer.
    pub(super) fn give(&mut self, count: usize, pages: &mut Vec<i32>) {
        let mut missing = count;
        while missing > 0 {
            let Some((run, margin)) = self.behind(pages).or_else(|| self.beginning(missing)) else {
                return;
            };
            self.remove(run.clone());
            // Neither is more than the run has, so the numbers fit.
            let start = run.start + margin as i32;
            let end = start + missing.min((start..run.end).len()) as i32;
            self.insert(run.start..start);
            self.insert(end..run.end);
            missing -= (start..end).len();
            pages.extend(start..end);
        }
    }

    /// The free run that starts right after these pages, so that taking from its start leaves no gap.
    fn behind(&self, pages: &[i32]) -> Option<(Range<i32>, usize)> {
        let start = pages.last()? + 1;
        let &end = self.ends.get(&start)?;
        Some((start..end, 0))
    }

    /// The run for a beginning with `count` pages, and how many of its own are left before them.
    fn beginning(&self, count: usize) -> Option<(Range<i32>, usize)> {
        /// Few are a sixteenth of all. In simulations of serving an eighth is worse where a tenth is free, and a
        /// thirty-second where requests wait for pages.
        const FEW: usize = 16;
        let few = self.count <= self.all / FEW;
        let largest = self.by_length.last();
        let shortest = self.by_length.range((count, 0)..).next();
        let &(length, start) = if few { shortest.or(largest) } else { largest }?;
        let margin = match few || start == 0 {
            true => 0,
            false => length.saturating_sub(count) / 2,
        };
        Some((start..start + length as i32, margin))
    }

    /// Adds a run that has no neighbours, or none if it is empty.
    fn insert(&mut self, run: Range<i32>) {
        if !run.is_empty() {
            self.count += run.len();
            self.ends.insert(run.start, run.end);
            self.by_length.insert((run.len(), run.start));
        }
    }

    fn remove(&mut self, run: Range<i32>) {
        self.count -= run.len();
        self.ends.remove(&run.start);
        self.by_length.remove(&(run.len(), run.start));
    }

    /// Each run's first page and the page after its last one, in ascending order.
    #[cfg(test)]
    pub(super) fn runs(&self) -> Vec<(i32, i32)> {
        let runs: Vec<_> = self
            .ends
            .iter()
            .map(|(&start, &end)| (start, end))
            .collect();
        let by_length = runs
            .iter()
            .map(|&(start, end)| ((start..end).len(), start))
            .collect();
        assert_eq!(self.by_length, by_length);
        let count = runs
            .iter()
            .map(|&(start, end)| (start..end).len())
            .sum::<usize>();
        assert_eq!(self.count, count);
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn give(free: &mut FreePages, count: usize) -> Vec<i32> {
        let mut pages = Vec::new();
        free.give(count, &mut pages);
        pages
    }

    #[test]
    fn a_sequence_alone_has_the_pages_in_order() {
        let mut free = FreePages::new(8);
        let mut pages = give(&mut free, 3);
        free.give(1, &mut pages);
        free.give(4, &mut pages);
        assert_eq!(pages, Vec::from_iter(0..8));
        assert_eq!(free.count(), 0);
        assert_eq!(free.runs(), []);
    }

    #[test]
    fn a_sequence_that_begins_leaves_room_before_and_behind_it() {
        let mut free = FreePages::new(20);
        let mut first = give(&mut free, 4);
        let mut second = give(&mut free, 6);
        assert_eq!(second, Vec::from_iter(9..15));
        free.give(5, &mut first);
        free.give(5, &mut second);
        assert_eq!(first, Vec::from_iter(0..9));
        assert_eq!(second, Vec::from_iter(9..20));
    }

    #[test]
    fn a_prompt_that_no_run_fits_gets_the_largest_ones() {
        let mut free = FreePages::new(20);
        let all = give(&mut free, 20);
        free.give_back(&all[2..5]);
        free.give_back(&all[10..16]);
        free.give_back(&all[18..]);
        assert_eq!(give(&mut free, 10), [10, 11, 12, 13, 14, 15, 2, 3, 4, 18]);
        assert_eq!(free.runs(), [(19, 20)]);
    }

    #[test]
    fn where_few_pages_are_free_the_shortest_run_that_fits_is_taken() {
        let mut free = FreePages::new(160);
        let all = give(&mut free, 160);
        free.give_back(&all[10..12]);
        free.give_back(&all[20..25]);
        free.give_back(&all[30..33]);
        assert_eq!(give(&mut free, 3), [30, 31, 32]);
        assert_eq!(give(&mut free, 1), [10]);
        assert_eq!(give(&mut free, 6), [20, 21, 22, 23, 24, 11]);
        assert_eq!(free.count(), 0);
    }

    #[test]
    fn what_comes_back_joins_its_neighbours() {
        let mut free = FreePages::new(10);
        let all = give(&mut free, 10);
        free.give_back(&all[..2]);
        free.give_back(&all[4..6]);
        free.give_back(&[9, 8, 3]);
        assert_eq!(free.runs(), [(0, 2), (3, 6), (8, 10)]);
        free.give_back(&[2, 7, 6]);
        assert_eq!(free.runs(), [(0, 10)]);
    }
}
