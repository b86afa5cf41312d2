//! Keys and values in pages, and the table that gives pages to sequences.

use std::ops::Range;
use std::sync::Arc;

use crate::call::counted;
use crate::lengths::{KEYS, LengthsRequest};
use crate::{
    Invalid, Layout, MAX_PAGE_ROWS, Numbers, Operand, Request, Result, SideLengths,
    expect_countable,
};

/// The table's name in messages.
pub(crate) const BLOCK_TABLE: &str = Operand::BlockTable.name();

/// Where the entries of a block table lie: a row for each sequence, of the numbers of its pages in order.
///
/// ```
/// use warptile::spec::TableLayout;
///
/// let dense = TableLayout::from([4, 8]); // 4 sequences of up to 8 pages
/// assert_eq!(dense.row_stride, 8);
/// // The first 4 rows of a table that is made for 1,024 pages a sequence.
/// let part = TableLayout::new([4, 8], 1024);
/// # assert_ne!(dense, part);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct TableLayout {
    /// Sequences, and entries that each may use.
    pub shape: [usize; 2],
    /// Entries from one row's first to the next one's; 0 gives all sequences the same pages.
    pub row_stride: usize,
}

impl TableLayout {
    /// A table whose rows begin `row_stride` entries apart. Nothing is checked here; a [`Call`](crate::Call) checks.
    pub const fn new(shape: [usize; 2], row_stride: usize) -> Self {
        TableLayout { shape, row_stride }
    }

    /// The layout of the pages' elements, for code that handles elements.
    pub const fn elements(&self) -> Layout {
        let [sequences, columns] = self.shape;
        Layout::new([1, sequences, 1, columns], [0, self.row_stride, 0, 1])
    }
}

impl From<[usize; 2]> for TableLayout {
    /// Rows one after the other.
    fn from(shape: [usize; 2]) -> Self {
        TableLayout::new(shape, shape[1])
    }
}

/// The pages that the keys and values of a call lie in.
///
/// Key `j` of sequence `b` is row `j % rows` of page `table[b][j / rows]`, in k and in v.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Pages {
    table: Numbers<Arc<[i32]>>,
    layout: TableLayout,
    rows: usize,
    count: usize,
}

impl Pages {
    /// The block table.
    pub const fn table(&self) -> &Numbers<Arc<[i32]>> {
        &self.table
    }

    /// How the block table lies. Of one on the host, a call keeps only the columns that its longest sequence needs.
    pub const fn layout(&self) -> &TableLayout {
        &self.layout
    }

    /// Keys of a page.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Pages there are.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The page that holds the keys from `column * rows` on of a sequence; `None` if only the device knows, or if the table has
    /// no such entry.
    pub fn page(&self, sequence: usize, column: usize) -> Option<usize> {
        let [sequences, columns] = self.layout.shape;
        if sequence >= sequences || column >= columns {
            return None;
        }
        let entry = sequence * self.layout.row_stride + column;
        usize::try_from(*self.table.on_host()?.get(entry)?).ok()
    }

    /// The pages of some keys of a sequence, with the rows of each that hold them.
    pub fn pieces(
        &self,
        sequence: usize,
        keys: Range<usize>,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let mut key = keys.start;
        std::iter::from_fn(move || {
            if key >= keys.end {
                return None;
            }
            let page = self.page(sequence, key / self.rows)?;
            let row = key % self.rows;
            let count = (self.rows - row).min(keys.end - key);
            key += count;
            Some((page, row..row + count))
        })
    }
}

/// The block table as the caller gives it, before it is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableRequest<'a> {
    pub entries: Request<'a>,
    pub layout: TableLayout,
}

impl TableRequest<'_> {
    /// As [`LengthsRequest::kept`].
    pub(crate) fn kept(&self) -> Option<TableRequest<'static>> {
        Some(TableRequest {
            entries: self.entries.kept()?,
            layout: self.layout,
        })
    }

    /// Checks the table and the lengths of the sequences against the pages, of layout `k`.
    pub(crate) fn check(
        self,
        k: &Layout,
        lengths: LengthsRequest<'_>,
    ) -> Result<(SideLengths, Pages)> {
        let [count, rows, ..] = k.shape;
        if !(1..=MAX_PAGE_ROWS).contains(&rows) {
            return Err(Invalid::Pages {
                argument: "k",
                rule: format!("has pages of {rows} rows; a page has 1 to {MAX_PAGE_ROWS}"),
            });
        }
        if lengths.offsets.count().is_some() {
            return Err(Invalid::presence(
                KEYS.offsets.name(),
                "is given, but keys in pages are not packed",
            ));
        }
        let elements = self.layout.elements();
        elements.validate(BLOCK_TABLE)?;
        elements.check_buffer(BLOCK_TABLE, self.entries.count().unwrap_or(0))?;
        let [sequences, columns] = self.layout.shape;
        let (mut keys, _) = lengths.check(KEYS, sequences, columns.saturating_mul(rows))?;
        keys.rows = keys.bound;
        expect_countable(BLOCK_TABLE, "capacity", keys.bound)?;
        let (table, layout) = match self.entries {
            Numbers::Host(entries) => {
                check_entries(entries, &self.layout, [count, rows], &keys)?;
                kept(entries, self.layout, keys.bound.div_ceil(rows))
            }
            _ => (Numbers::Device(()), self.layout),
        };
        // Numbers on the device are unchecked, and without any page kernels cannot clamp them.
        if count == 0 && keys.bound > 0 && sequences > 0 {
            return Err(Invalid::Pages {
                argument: "k",
                rule: format!(
                    "has no pages, but sequences may have up to {}",
                    counted(keys.bound, "key")
                ),
            });
        }
        let pages = Pages {
            table,
            layout,
            rows,
            count,
        };
        Ok((keys, pages))
    }
}

/// Checks every entry that some key needs. Where only the device knows how many keys there are, an entry may be one that none
/// needs: kernels clamp them.
fn check_entries(
    entries: &[i32],
    layout: &TableLayout,
    [pages, page_rows]: [usize; 2],
    keys: &SideLengths,
) -> Result<()> {
    if keys.on_device() || keys.bound == 0 {
        return Ok(());
    }
    for sequence in 0..layout.shape[0] {
        let (_, len) = keys.sequence(sequence);
        if len == 0 {
            continue;
        }
        let start = sequence * layout.row_stride;
        let needed = &entries[start..start + len.div_ceil(page_rows)];
        let wrong = |page: &i32| usize::try_from(*page).ok().is_none_or(|page| page >= pages);
        if let Some(column) = needed.iter().position(wrong) {
            return Err(Invalid::Lengths {
                argument: BLOCK_TABLE,
                index: start + column,
                rule: format!(
                    "is {}, but k has {}; it is entry {column} of sequence {sequence}, whose {} need {}",
                    needed[column],
                    counted(pages, "page"),
                    counted(len, "key"),
                    needed.len()
                ),
            });
        }
    }
    Ok(())
}

/// The first columns of a table, which travel with every launch.
fn kept(
    entries: &[i32],
    layout: TableLayout,
    columns: usize,
) -> (Numbers<Arc<[i32]>>, TableLayout) {
    let [sequences, _] = layout.shape;
    if columns == 0 {
        return (Numbers::Host([].into()), TableLayout::from([sequences, 0]));
    }
    // Rows that overlap would take more memory apart.
    if layout.row_stride <= columns {
        let shape = [sequences, columns];
        let layout = TableLayout { shape, ..layout };
        let reach = layout.elements().reach();
        return (Numbers::Host(entries[..reach].into()), layout);
    }
    let rows = (0..sequences).map(|sequence| sequence * layout.row_stride);
    let table = rows.flat_map(|start| &entries[start..start + columns]);
    let layout = TableLayout::from([sequences, columns]);
    (Numbers::Host(table.copied().collect()), layout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, ElementType};
    use quickcheck::quickcheck;

    fn pages(entries: &[i32], layout: TableLayout, lengths: &[i32]) -> Result<Pages> {
        let q = Layout::bshd([lengths.len(), 1, 2, 8]);
        let k = Layout::bshd([9, 4, 2, 8]);
        let call = Call::builder(&q, &k, &k, ElementType::F16)
            .block_table(entries, layout)
            .key_lengths(lengths)
            .build()?;
        Ok(call.pages().unwrap().clone())
    }

    #[test]
    fn only_the_columns_that_some_key_needs_are_kept() {
        let table = [8, 1, -1, -1, 0, 9, -1, -1];
        let pages = pages(&table, TableLayout::from([2, 4]), &[5, 4]).unwrap();
        assert_eq!(pages.layout(), &TableLayout::from([2, 2]));
        assert_eq!(pages.table().on_host(), Some(&[8, 1, 0, 9][..]));
        assert_eq!(pages.page(0, 1), Some(1));
        assert_eq!(pages.page(0, 2), None);
    }

    #[test]
    fn rows_of_a_table_may_overlap_or_lie_apart() {
        let kept = |stride, entries: &[i32]| {
            let pages = pages(entries, TableLayout::new([2, 2], stride), &[8, 7]).unwrap();
            [0, 1].map(|sequence| [0, 1].map(|column| pages.page(sequence, column)))
        };
        let expected = [[Some(3), Some(4)], [Some(3), Some(4)]];
        assert_eq!(kept(0, &[3, 4]), expected);
        assert_eq!(kept(5, &[3, 4, -1, -1, -1, 3, 4]), expected);
        let expected = [[Some(3), Some(4)], [Some(4), Some(5)]];
        assert_eq!(kept(1, &[3, 4, 5]), expected);
    }

    quickcheck! {
        fn pieces_are_the_keys_in_order(table: Vec<u8>, start: u8, len: u8) -> bool {
            let table: Vec<i32> = table.iter().map(|&page| i32::from(page % 9)).collect();
            let all = table.len() * 4;
            let k = Layout::bshd([9, 4, 2, 8]);
            let q = Layout::bshd([1, 1, 2, 8]);
            let call = Call::builder(&q, &k, &k, ElementType::F16)
                .block_table(&table, [1, table.len()])
                .build()
                .unwrap();
            let start = usize::from(start).min(all);
            let keys = start..(start + usize::from(len)).min(all);
            let found: Vec<(usize, usize)> = call
                .pages()
                .unwrap()
                .pieces(0, keys.clone())
                .flat_map(|(page, rows)| rows.map(move |row| (page, row)))
                .collect();
            let expected: Vec<(usize, usize)> =
                keys.map(|key| (table[key / 4] as usize, key % 4)).collect();
            found == expected
        }
    }
}
