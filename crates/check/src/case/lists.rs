//! Offsets, lengths and pages of a case.

use warptile::kernels::{Count, Kind};
use warptile::spec::{BlockLists, DropoutState, Operand, Slots, TableLayout};

use super::call::PACKED_PADDING;
use super::{Case, LayoutKind, Lengths, Used};
use crate::data::Random;

/// The offsets, lengths and pages that a [`Case`] computes with, each by its operand if and only if a call needs it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lists {
    numbers: Slots<Option<Vec<i32>>>,
    table: Option<TableLayout>,
    pages: Option<usize>,
}

impl Lists {
    /// Returns true if there are any.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// The numbers of each operand.
    pub const fn given(&self) -> &Slots<Option<Vec<i32>>> {
        &self.numbers
    }

    /// The numbers of an operand.
    pub fn get(&self, operand: Operand) -> Option<&[i32]> {
        self.numbers[operand].as_deref()
    }

    /// The shape of an operand's numbers.
    pub fn shape(&self, operand: Operand) -> Vec<usize> {
        match (operand.kind(), self.table) {
            (Kind::List(Count::Table), Some(table)) => table.shape.to_vec(),
            _ => vec![self.get(operand).map_or(0, <[i32]>::len)],
        }
    }

    /// How the numbers of pages lie, if keys and values are in pages.
    pub const fn table_layout(&self) -> Option<TableLayout> {
        self.table
    }

    /// The number of pages, if keys and values are in pages. Some pages are in no row of the table.
    pub(crate) const fn pages(&self) -> Option<usize> {
        self.pages
    }
}

/// Entries of a row of the block table after the last that a sequence of full length needs, and with
/// [`LayoutKind::Gaps`] also between its rows.
const TABLE_PADDING: usize = 1;

impl Case {
    /// Offsets, used lengths and pages.
    pub fn lists(&self) -> Lists {
        let mut lists = Lists::default();
        let packed = matches!(self.lengths, Lengths::Packed(_));
        if self.scoring.has(Operand::DropoutState) {
            lists.numbers[Operand::DropoutState] = Some(self.dropout_state().words().into());
        }
        if let Some(arranged) = self.scoring.blocks {
            let (offsets, indices) = self.draw_blocks(&arranged);
            lists.numbers[Operand::BlockOffsets] = Some(offsets);
            lists.numbers[Operand::BlockIndices] = Some(indices);
        }
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
        if let Some(page_rows) = self.pages {
            let layout = self.table_layout(page_rows.max(1));
            let (entries, pages) = self.draw_pages(page_rows.max(1), layout, &used.1);
            lists.numbers[Operand::BlockTable] = Some(entries);
            (lists.table, lists.pages) = (Some(layout), Some(pages));
        }
        lists
    }

    /// The blocks of queries and of keys that a list is about.
    fn blocks_of_a_list(&self, lists: &BlockLists) -> [usize; 2] {
        let [queries, keys] = match &self.lengths {
            Lengths::Dense { query, key, .. } if self.batch() > 0 => [*query, *key],
            Lengths::Dense { .. } => [0, 0],
            Lengths::Packed(each) => {
                let queries = each.iter().map(|lengths| lengths.0);
                let queries = match self.device_lengths {
                    // No sequence is longer than all rows, and the host knows no more.
                    true => queries.fold(PACKED_PADDING, usize::saturating_add),
                    false => queries.max().unwrap_or(0),
                };
                [queries, self.longest_keys()]
            }
        };
        [
            queries.div_ceil(lists.queries().max(1)),
            keys.div_ceil(lists.keys().max(1)),
        ]
    }

    /// The number of pairs of a block of queries and a block of keys in all lists, or of rows if there are more, which bounds the work of
    /// drawing them.
    pub(super) fn blocks_to_draw(&self) -> u128 {
        let Some(lists) = self.scoring.blocks else {
            return 0;
        };
        let of_list = self.blocks_of_a_list(&lists).map(|count| count as u128);
        let lists = lists.count(self.batch(), self.heads.query) as u128;
        of_list[0]
            .saturating_mul(of_list[1].max(1))
            .saturating_mul(lists)
    }

    /// Offsets and indices of lists of blocks. A row has as many blocks as the case says, or else any number, none included; some rows
    /// end early, by a number below 0, and some lists have rows behind the last block of queries.
    fn draw_blocks(&self, lists: &BlockLists) -> (Vec<i32>, Vec<i32>) {
        let mut random = Random::new(self.seed ^ 0xb15c);
        let [rows, blocks] = self.blocks_of_a_list(lists);
        let given = lists.blocks_of_a_row();
        let spare = if given.is_some() { 0 } else { random.below(2) };
        let rows = rows + spare;
        let (mut offsets, mut indices) = (vec![0], Vec::new());
        for _ in 0..rows * lists.count(self.batch(), self.heads.query) {
            let shown = match given {
                Some(shown) => shown.min(blocks),
                None => [0, blocks, random.below(blocks + 1)][random.below(3)],
            };
            // The next one is taken with the chance that the rest of the row leaves it.
            let mut left = shown;
            for block in 0..blocks {
                if random.below(blocks - block) < left {
                    indices.push(number(block));
                    left -= 1;
                }
            }
            if given.is_none() && random.below(4) == 0 {
                indices.extend([-1, i32::MIN]);
            }
            offsets.push(number(indices.len()));
        }
        (offsets, indices)
    }

    /// The random numbers of dropout.
    fn dropout_state(&self) -> DropoutState {
        let mut random = Random::new(self.seed ^ 0xd209);
        let mut number = || random.below(1 << 20) as u32;
        let align = DropoutState::ALIGNMENT;
        DropoutState {
            sequence: number(),
            head: number(),
            query: align * number(),
            key: align * number(),
            ..DropoutState::new(self.seed, number().into())
        }
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

    /// The entries of the table and the number of pages: pages, or runs of them, in random order. Entries that no key needs are numbers
    /// of no page.
    fn draw_pages(
        &self,
        page_rows: usize,
        layout: TableLayout,
        keys: &[usize],
    ) -> (Vec<i32>, usize) {
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
        (entries, pages)
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
        let case_of = |runs: usize| -> Case {
            let text =
                format!("b2 q1 k1000 h2 d64 f16 pages=4 runs={runs} lengths=1000,600 seed=3");
            text.parse().unwrap()
        };
        let pages_of = |case: &Case| -> Vec<usize> {
            let call = case.call();
            let table = call.pages().unwrap();
            let each = [250, 150].into_iter().enumerate();
            each.flat_map(|(sequence, count)| (0..count).map(move |column| (sequence, column)))
                .map(|(sequence, column)| table.page(sequence, column).unwrap())
                .collect()
        };
        let neighbours = |pages: &[usize]| {
            let steps = pages.windows(2);
            steps.filter(|pair| pair[0] + 1 == pair[1]).count()
        };
        for (runs, least, most) in [(1, 0, 20), (8, 340, 360), (1000, 399, 399)] {
            let case = case_of(runs);
            let pages = pages_of(&case);
            let count = case.lists().pages().unwrap();
            let found = neighbours(&pages);
            assert!((least..=most).contains(&found), "runs of {runs}: {found}");
            let mut sorted = pages.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert!(sorted.len() == 400 && sorted.iter().all(|&page| page < count));
        }
    }
}
