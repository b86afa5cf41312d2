//! The pages of a cache that no sequence holds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The free pages, as runs of neighbours that are as long as they can be: no run begins where another one ends.
///
/// A GPU translates addresses in units of 2 MB. With 8 key/value heads of size 128 in 16 bits, that is 32 pages of 16 rows. Decoding takes
/// longer if the pages of a sequence are scattered over many such units (docs/notebook-decode.md, "What pages cost"). Pages that are given
/// out in the order in which they came back are as good as in random order after a while. So a sequence gets neighbours here, where it can:
///
/// - It goes on with the page right behind its last one if that is free.
/// - Otherwise it begins anew in the largest run, and leaves as many free pages before its own as behind them: the sequence that ends
///   where the run begins can go on, too. Nobody ends before page 0, so nothing is left before a beginning there.
///
/// Both take a time that is logarithmic in the number of runs, for each run that is cut or given back.
#[derive(Debug, Clone)]
pub(super) struct FreePages {
    count: usize,
    /// Of each run its first page, and the page behind its last one.
    ends: BTreeMap<i32, i32>,
    /// Of each run its length, and its first page.
    by_length: BTreeSet<(i32, i32)>,
}

impl FreePages {
    /// Pages 0 to `pages - 1`.
    pub(super) fn new(pages: i32) -> Self {
        let mut free = FreePages {
            count: 0,
            ends: BTreeMap::new(),
            by_length: BTreeSet::new(),
        };
        free.insert(0..pages);
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

    /// Gives so many more pages to a sequence that has these, or all if fewer are free.
    pub(super) fn give(&mut self, count: usize, pages: &mut Vec<i32>) {
        let mut missing = count;
        while missing > 0 {
            let Some((run, margin)) = self.behind(pages).or_else(|| self.largest(missing)) else {
                return;
            };
            self.remove(run.clone());
            let start = run.start + margin;
            // No more than the run has, so the number fits.
            let end = start + missing.min((run.end - start) as usize) as i32;
            self.insert(run.start..start);
            self.insert(end..run.end);
            missing -= (end - start) as usize;
            pages.extend(start..end);
        }
    }

    /// The run right behind these pages, of which nothing is left before what is taken.
    fn behind(&self, pages: &[i32]) -> Option<(Range<i32>, i32)> {
        let start = pages.last()? + 1;
        let &end = self.ends.get(&start)?;
        Some((start..end, 0))
    }

    /// The largest run, and how many of its pages are left before `count` that are taken.
    fn largest(&self, count: usize) -> Option<(Range<i32>, i32)> {
        let &(length, start) = self.by_length.last()?;
        let spare = (length as usize).saturating_sub(count) as i32;
        let margin = if start == 0 { 0 } else { spare / 2 };
        Some((start..start + length, margin))
    }

    /// Adds a run that has no neighbours, or none if it is empty.
    fn insert(&mut self, run: Range<i32>) {
        if !run.is_empty() {
            self.count += run.len();
            self.ends.insert(run.start, run.end);
            self.by_length.insert((run.end - run.start, run.start));
        }
    }

    fn remove(&mut self, run: Range<i32>) {
        self.count -= run.len();
        self.ends.remove(&run.start);
        self.by_length.remove(&(run.end - run.start, run.start));
    }

    /// The runs in the order of their pages.
    #[cfg(test)]
    pub(super) fn runs(&self) -> Vec<Range<i32>> {
        let runs: Vec<_> = self.ends.iter().map(|(&start, &end)| start..end).collect();
        let by_length: BTreeSet<_> = runs
            .iter()
            .map(|run| (run.end - run.start, run.start))
            .collect();
        assert_eq!(self.by_length, by_length);
        assert_eq!(self.count, runs.iter().map(|run| run.len()).sum::<usize>());
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
        assert_eq!(free.runs(), std::iter::once(19..20).collect::<Vec<_>>());
    }

    #[test]
    fn what_comes_back_joins_its_neighbours() {
        let mut free = FreePages::new(10);
        let all = give(&mut free, 10);
        free.give_back(&all[..2]);
        free.give_back(&all[4..6]);
        free.give_back(&[9, 8, 3]);
        assert_eq!(free.runs(), [0..2, 3..6, 8..10]);
        free.give_back(&[2, 7, 6]);
        assert_eq!(free.runs(), std::iter::once(0..10).collect::<Vec<_>>());
    }
}
