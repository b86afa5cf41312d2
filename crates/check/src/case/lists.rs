//! Offsets, lengths and pages of a case.

use warptile::{Operand, Slots, TableLayout};

use super::{Case, LayoutKind, Lengths, Used};
use crate::data::Random;

/// The offsets, lengths and pages that a [`Case`] computes with, each by its operand if and only if a call needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lists {
    numbers: Slots<Option<Vec<i32>>>,
    block_table: Option<BlockTable>,
}

impl Default for Lists {
    fn default() -> Self {
        Lists {
            numbers: Slots::none(),
            block_table: None,
        }
    }
}

impl Lists {
    /// Whether there are any.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// The numbers of each operand.
    #[must_use]
    pub const fn given(&self) -> &Slots<Option<Vec<i32>>> {
        &self.numbers
    }

    /// The numbers of an operand.
    #[must_use]
    pub fn get(&self, operand: Operand) -> Option<&[i32]> {
        self.numbers[operand].as_deref()
    }

    /// The block table, whose entries are numbers, too.
    #[must_use]
    pub const fn block_table(&self) -> Option<&BlockTable> {
        self.block_table.as_ref()
    }
}

/// The block table of a [`Case`]: pages, or runs of them, in random order. Entries that no key needs are numbers of no page.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockTable {
    /// Numbers of pages.
    pub entries: Vec<i32>,
    /// How they lie.
    pub layout: TableLayout,
    /// Pages there are. Some are in nobody's row.
    pub pages: usize,
}

impl BlockTable {
    /// The page of a sequence whose number lies in a column of the table.
    pub(crate) fn page(&self, sequence: usize, column: usize) -> usize {
        // Entries that keys need were filled with numbers of pages.
        self.entries[sequence * self.layout.row_stride + column] as usize
    }
}

/// Entries of a row of the block table after the last that a sequence of full length needs, and with [`LayoutKind::Gaps`] also between its rows.
const TABLE_PADDING: usize = 1;

impl Case {
    /// Offsets, used lengths and pages.
    #[must_use]
    pub fn lists(&self) -> Lists {
        let mut lists = Lists::default();
        let packed = matches!(self.lengths, Lengths::Packed(_));
        if !packed && self.used == Used::All && self.pages.is_none() {
            return lists;
        }
        let numbers = |rows: &[usize]| Some(rows.iter().copied().map(number).collect());
        let (queries, keys): (Vec<usize>, Vec<usize>) = self.lengths.each().into_iter().unzip();
        if packed {
            lists.numbers[Operand::QueryOffsets] = numbers(&offsets(&queries));
            if self.pages.is_none() {
                lists.numbers[Operand::KeyOffsets] = numbers(&offsets(&keys));
            }
        }
        let used: (Vec<usize>, Vec<usize>) = self.used_lengths().into_iter().unzip();
        if used.0 != queries {
            lists.numbers[Operand::QueryLengths] = numbers(&used.0);
        }
        if used.1 != keys || self.pages.is_some() {
            lists.numbers[Operand::KeyLengths] = numbers(&used.1);
        }
        lists.block_table = self
            .pages
            .map(|page_rows| self.block_table(page_rows.max(1), &used.1));
        let table = lists.block_table.as_ref();
        lists.numbers[Operand::BlockTable] = table.map(|table| table.entries.clone());
        lists
    }

    pub(super) fn table_layout(&self, page_rows: usize) -> TableLayout {
        let columns = self.longest_keys().div_ceil(page_rows);
        let columns = columns.saturating_add(TABLE_PADDING);
        let gap = match self.layout {
            LayoutKind::Gaps => TABLE_PADDING,
            _ => 0,
        };
        TableLayout::new([self.batch(), columns], columns.saturating_add(gap))
    }

    pub(super) fn longest_keys(&self) -> usize {
        match &self.lengths {
            Lengths::Dense { key, .. } => *key,
            Lengths::Packed(lengths) => lengths.iter().map(|lengths| lengths.1).max().unwrap_or(0),
        }
    }

    fn block_table(&self, page_rows: usize, keys: &[usize]) -> BlockTable {
        let layout = self.table_layout(page_rows);
        let mut random = Random::new(self.seed ^ 0xb10c);
        let needed: usize = keys.iter().map(|keys| keys.div_ceil(page_rows)).sum();
        let pages = needed + 1 + random.below(3);
        let run = self.runs.max(1);
        let mut runs: Vec<usize> = (0..pages.div_ceil(run)).collect();
        for last in (1..runs.len()).rev() {
            runs.swap(last, random.below(last + 1));
        }
        let poison = [-1, number(pages), i32::MIN, i32::MAX];
        let mut entries: Vec<i32> = (0..layout.shape[0] * layout.row_stride)
            .map(|_| random.pick(&poison))
            .collect();
        let mut order = { runs.into_iter() }
            .flat_map(|first| first * run..pages.min((first + 1).saturating_mul(run)))
            .map(number);
        for (sequence, keys) in keys.iter().enumerate() {
            let start = sequence * layout.row_stride;
            let row = entries[start..].iter_mut().take(keys.div_ceil(page_rows));
            for (entry, page) in row.zip(order.by_ref()) {
                *entry = page;
            }
        }
        BlockTable {
            entries,
            layout,
            pages,
        }
    }
}

/// The first row of each sequence, and the row after the last one's last.
fn offsets(lengths: &[usize]) -> Vec<usize> {
    let mut end = 0_usize;
    let ends = lengths.iter().map(|length| {
        end = end.saturating_add(*length);
        end
    });
    std::iter::once(0).chain(ends).collect()
}

/// A number of rows as calls take it. Beyond its range there is no call, only an error.
fn number(rows: usize) -> i32 {
    i32::try_from(rows).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_lie_in_runs_of_neighbours_in_random_order() {
        let table = |runs: usize| {
            let text =
                format!("b2 q1 k1000 h2 d64 f16 pages=4 runs={runs} lengths=1000,600 seed=3");
            let case: Case = text.parse().unwrap();
            case.lists().block_table().cloned().unwrap()
        };
        let pages_of = |table: &BlockTable| -> Vec<usize> {
            let each = [250, 150].into_iter().enumerate();
            each.flat_map(|(sequence, count)| (0..count).map(move |column| (sequence, column)))
                .map(|(sequence, column)| table.page(sequence, column))
                .collect()
        };
        let neighbours = |pages: &[usize]| {
            let steps = pages.windows(2);
            steps.filter(|pair| pair[0] + 1 == pair[1]).count()
        };
        for (runs, least, most) in [(1, 0, 20), (8, 340, 360), (1000, 399, 399)] {
            let table = table(runs);
            let pages = pages_of(&table);
            let found = neighbours(&pages);
            assert!((least..=most).contains(&found), "runs of {runs}: {found}");
            let mut sorted = pages.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert!(sorted.len() == 400 && sorted.iter().all(|&page| page < table.pages));
        }
    }
}
