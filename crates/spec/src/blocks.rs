//! Which blocks of keys each block of queries sees.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use crate::call::counted;
use crate::{
    Invalid, Mask, Numbers, Operand, Request, Result, SideLengths, expect_countable, expect_same,
};

/// How lists of blocks are arranged: the sizes of the blocks, and which sequences and heads have lists of their own.
///
/// A list has a row for each block of queries: the blocks of keys that these queries see, in ascending order. The mask holds inside of
/// them. [`BlockList`] is such lists in host memory. Prints and parses as `64x128,batch,head`, or `64x128,batch=4,head=8` where the numbers
/// of sequences and heads are known, with about how many blocks a row has at the end, where that is known.
///
/// ```
/// use warptile_spec::BlockLists;
///
/// let lists: BlockLists = "64x128,head,12".parse()?;
/// assert_eq!(lists, BlockLists::new(64, 128).per_head().each(12));
/// # Ok::<(), warptile_spec::ParseBlockListsError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct BlockLists {
    queries: u32,
    keys: u32,
    per_batch: bool,
    per_head: bool,
    /// The sequences and query heads that have lists of their own, where they are known.
    owners: [Option<u32>; 2],
    each: Option<u32>,
}

impl BlockLists {
    /// One list for all sequences and heads, of blocks of 64 or 128 queries and of 64 or 128 keys.
    pub const fn new(queries: u32, keys: u32) -> Self {
        BlockLists {
            queries,
            keys,
            per_batch: false,
            per_head: false,
            owners: [None; 2],
            each: None,
        }
    }

    /// Each sequence has lists of its own.
    pub const fn per_batch(self) -> Self {
        BlockLists {
            per_batch: true,
            ..self
        }
    }

    /// Each query head has lists of its own.
    pub const fn per_head(self) -> Self {
        BlockLists {
            per_head: true,
            ..self
        }
    }

    /// Lists of this many sequences and query heads, which share their lists where the number is 1. A call of other numbers is refused.
    pub const fn of(self, batch: u32, heads: u32) -> Self {
        BlockLists {
            per_batch: batch != 1,
            per_head: heads != 1,
            owners: [
                if batch != 1 { Some(batch) } else { None },
                if heads != 1 { Some(heads) } else { None },
            ],
            ..self
        }
    }

    /// A row has about this many blocks. The planner goes by it; lists in host memory are counted.
    pub const fn each(self, blocks: u32) -> Self {
        BlockLists {
            each: Some(blocks),
            ..self
        }
    }

    /// Queries of a block.
    pub const fn queries(&self) -> usize {
        self.queries as usize
    }

    /// Keys of a block.
    pub const fn keys(&self) -> usize {
        self.keys as usize
    }

    /// About how many blocks a row has, if that is known.
    pub const fn blocks_of_a_row(&self) -> Option<usize> {
        match self.each {
            Some(blocks) => Some(blocks as usize),
            None => None,
        }
    }

    /// Lists of a batch and its query heads.
    pub const fn count(&self, batch: usize, heads: usize) -> usize {
        let of_batch = if self.per_batch { batch } else { 1 };
        of_batch.saturating_mul(if self.per_head { heads } else { 1 })
    }

    /// Which of the lists belongs to a sequence and a query head.
    pub const fn number(&self, batch: usize, head: usize, heads: usize) -> usize {
        match (self.per_batch, self.per_head) {
            (false, false) => 0,
            (true, false) => batch,
            (false, true) => head,
            (true, true) => batch * heads + head,
        }
    }

    /// Lists from that of a sequence to the next one's, and from that of a query head to the next one's.
    pub const fn steps(&self, heads: usize) -> [usize; 2] {
        [self.number(1, 0, heads), self.number(0, 1, heads)]
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// [`Invalid::Number`].
    pub(crate) fn validate(&self) -> Result<()> {
        let known = |size| [64, 128].contains(&size);
        match known(self.queries) && known(self.keys) {
            true => Ok(()),
            false => Err(Invalid::number(
                "blocks",
                format!("{}x{}", self.queries, self.keys),
                "64 or 128 queries and 64 or 128 keys a block",
            )),
        }
    }
}

impl fmt::Display for BlockLists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.queries, self.keys)?;
        let owned = [(self.per_batch, "batch"), (self.per_head, "head")];
        for ((owned, word), count) in owned.into_iter().zip(self.owners) {
            match count {
                Some(count) => write!(f, ",{word}={count}")?,
                None if owned => write!(f, ",{word}")?,
                None => {}
            }
        }
        match self.each {
            Some(blocks) => write!(f, ",{blocks}"),
            None => Ok(()),
        }
    }
}

/// A text that is no [`BlockLists`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{:?} does not say how blocks are listed, as 64x128 or 64x64,batch,head,12 do",
    crate::Excerpt::new(.0)
)]
pub struct ParseBlockListsError(String);

impl FromStr for BlockLists {
    type Err = ParseBlockListsError;

    /// Parses what `Display` prints.
    fn from_str(text: &str) -> std::result::Result<Self, ParseBlockListsError> {
        let parse = || {
            let mut words = text.split(',');
            let (queries, keys) = words.next()?.split_once('x')?;
            let mut lists = BlockLists::new(queries.parse().ok()?, keys.parse().ok()?);
            for word in words {
                let (name, count) = match word.split_once('=') {
                    Some((name, count)) => (name, Some(count.parse().ok()?)),
                    None => (word, None),
                };
                match name {
                    _ if lists.each.is_some() => return None,
                    "batch" if !lists.per_batch && !lists.per_head => {
                        (lists.per_batch, lists.owners[0]) = (true, count);
                    }
                    "head" if !lists.per_head => {
                        (lists.per_head, lists.owners[1]) = (true, count);
                    }
                    _ => lists.each = Some(word.parse().ok()?),
                }
            }
            Some(lists)
        };
        parse().ok_or_else(|| ParseBlockListsError(text.to_owned()))
    }
}

/// Lists of blocks in host memory.
///
/// Row `r` of list `l` is the numbers `indices[offsets[l * rows + r]..offsets[l * rows + r + 1]]`: in ascending order, each once. A number
/// below 0 ends the row early, so that rows may have room for more. A row without blocks gives 0, and an lse of minus infinity. The lists
/// of a sequence's heads follow each other.
///
/// ```
/// use warptile_spec::{BlockList, BlockLists};
///
/// // Of 3 blocks of queries and 4 of keys: every other one.
/// let mask: Vec<bool> = (0..12).map(|i| (i / 4 + i % 4) % 2 == 0).collect();
/// let list = BlockList::from_mask(BlockLists::new(64, 64), [1, 1, 3, 4], &mask)?;
/// assert_eq!(list.offsets(), [0, 2, 4, 6]);
/// assert_eq!(list.indices(), [0, 2, 1, 3, 0, 2]);
/// # Ok::<(), warptile_spec::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use]
pub struct BlockList {
    lists: BlockLists,
    offsets: Vec<i32>,
    indices: Vec<i32>,
}

impl BlockList {
    /// Lists by their numbers, as BSR matrices and CSR matrices of blocks have them. A call checks them.
    pub fn new(lists: BlockLists, offsets: Vec<i32>, indices: Vec<i32>) -> Self {
        BlockList {
            lists,
            offsets,
            indices,
        }
    }

    /// Lists the blocks that are true in a mask of shape `[batch or 1, query heads or 1, blocks of queries, blocks of keys]`. Sequences and
    /// heads share their lists where the extent is 1, and have lists of their own otherwise, regardless of what `lists` says. A call of
    /// another number of sequences or heads is refused.
    ///
    /// # Errors
    /// [`Invalid::Count`] if the mask does not have as many elements as its shape; [`Invalid::TooLong`].
    pub fn from_mask(lists: BlockLists, shape: [usize; 4], mask: &[bool]) -> Result<Self> {
        let [batch, heads, rows, columns] = shape;
        let rows = batch.saturating_mul(heads).saturating_mul(rows);
        for (dimension, found) in [("batch", batch), ("heads", heads), ("rows", rows)] {
            expect_countable("mask", dimension, found)?;
        }
        let needed = rows.saturating_mul(columns);
        if mask.len() != needed {
            return Err(Invalid::count("mask", mask.len(), needed));
        }
        let lists = lists.of(batch as u32, heads as u32);
        let row = |row: usize| (0..columns).filter(move |column| mask[row * columns + column]);
        Ok(Self::from_rows(lists, (0..rows).map(row)))
    }

    /// Lists a block if some of its queries sees a key: one of the `first_keys` first ones, or one that the mask shows. `lengths`: queries
    /// and keys. The call's own mask still holds inside: for the first keys it must not be a window.
    ///
    /// # Errors
    /// [`Invalid::Number`] if the blocks have a size that no call takes; [`Invalid::TooLong`].
    pub fn window(
        lists: BlockLists,
        mask: Mask,
        first_keys: usize,
        [queries, keys]: [usize; 2],
    ) -> Result<Self> {
        lists.validate()?;
        expect_countable("window", "queries", queries)?;
        expect_countable("window", "keys", keys)?;
        let (rows, columns) = (lists.queries(), lists.keys());
        let row = |first: usize| {
            let last = queries.min(first + rows) - 1;
            let [start, end] = [first, last].map(|row| mask.visible(row, queries, keys));
            // Rows in between may see keys where the outer ones see none.
            let blocks = match start.start < end.end {
                true => start.start / columns..end.end.div_ceil(columns),
                false => usize::MAX..usize::MAX,
            };
            let first = first_keys.min(keys).div_ceil(columns);
            match first < blocks.start {
                true => (0..first, blocks),
                false => (0..first.max(blocks.end), 0..0),
            }
        };
        let rows = (0..queries).step_by(rows).map(row);
        let listed = { rows.clone() }.map(|(first, blocks)| first.len() + blocks.len());
        expect_countable("window", "blocks", listed.sum())?;
        let rows = rows.map(|(first, blocks)| first.chain(blocks));
        Ok(Self::from_rows(lists, rows))
    }

    /// Lists the blocks of documents that lie end to end in a sequence, where each sees itself.
    ///
    /// # Errors
    /// [`Invalid::Number`] if the blocks have a size that no call takes; [`Invalid::Lengths`] if a document other than the last does not
    /// consist of whole blocks; [`Invalid::TooLong`].
    pub fn documents(lists: BlockLists, lengths: &[usize]) -> Result<Self> {
        lists.validate()?;
        let (queries, keys) = (lists.queries(), lists.keys());
        let mut rows: Vec<Range<usize>> = Vec::new();
        let (mut start, mut listed) = (0_usize, 0);
        for (index, &length) in lengths.iter().enumerate() {
            let is_last = index + 1 == lengths.len();
            if !is_last && !length.is_multiple_of(queries.max(keys)) {
                return Err(Invalid::Lengths {
                    argument: "documents",
                    index,
                    rule: format!(
                        "is {length}; a document that others follow has a multiple of {} rows, as blocks have",
                        queries.max(keys)
                    ),
                });
            }
            let end = start.saturating_add(length);
            expect_countable("documents", "length", end)?;
            let blocks = start / keys..end.div_ceil(keys);
            let more = length.div_ceil(queries);
            listed += more * blocks.len();
            expect_countable("documents", "blocks", listed)?;
            rows.resize(rows.len() + more, blocks);
            start = end;
        }
        Ok(Self::from_rows(lists, rows.into_iter()))
    }

    fn from_rows<R: Iterator<Item = usize>>(
        lists: BlockLists,
        rows: impl Iterator<Item = R>,
    ) -> Self {
        let (mut offsets, mut indices) = (vec![0], Vec::new());
        for row in rows {
            // A number that does not fit is beyond every sequence.
            indices.extend(row.filter_map(|block| i32::try_from(block).ok()));
            offsets.push(i32::try_from(indices.len()).unwrap_or(i32::MAX));
        }
        BlockList {
            lists,
            offsets,
            indices,
        }
    }

    /// How the lists are arranged.
    pub const fn lists(&self) -> BlockLists {
        self.lists
    }

    /// Where each row begins in [`indices`](Self::indices), and where the last one ends.
    pub fn offsets(&self) -> &[i32] {
        &self.offsets
    }

    /// The numbers of the blocks.
    pub fn indices(&self) -> &[i32] {
        &self.indices
    }
}

/// The lists of a checked call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    lists: BlockLists,
    offsets: Numbers<Arc<[i32]>>,
    indices: Numbers<Arc<[i32]>>,
    /// Numbers of both.
    counts: [usize; 2],
    rows: usize,
    heads: usize,
}

impl Blocks {
    /// How the lists are arranged.
    pub const fn lists(&self) -> BlockLists {
        self.lists
    }

    /// Where rows begin.
    pub const fn offsets(&self) -> &Numbers<Arc<[i32]>> {
        &self.offsets
    }

    /// The numbers of the blocks.
    pub const fn indices(&self) -> &Numbers<Arc<[i32]>> {
        &self.indices
    }

    /// How many offsets there are, and how many indices.
    pub const fn counts(&self) -> [usize; 2] {
        self.counts
    }

    /// Rows of a list.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// The blocks that a query sees, in ascending order; none where only the device knows them.
    pub fn of(&self, batch: usize, head: usize, position: usize) -> &[i32] {
        let list = self.lists.number(batch, head, self.heads);
        self.row(list * self.rows + position / self.lists.queries())
    }

    fn row(&self, row: usize) -> &[i32] {
        let (Some(offsets), Some(indices)) = (self.offsets.on_host(), self.indices.on_host())
        else {
            return &[];
        };
        // Checked when the call was built.
        let row = &indices[offsets[row] as usize..offsets[row + 1] as usize];
        &row[..length(row)]
    }

    /// Returns true if a query sees the block of a key, as far as the host knows.
    pub fn show(&self, batch: usize, head: usize, position: usize, key: usize) -> bool {
        let block = key / self.lists.keys();
        let seen = self.of(batch, head, position);
        seen.binary_search_by(|&one| (one as usize).cmp(&block))
            .is_ok()
    }

    /// Pairs of queries and keys of a sequence that are visible, over all heads.
    pub(crate) fn visible_pairs(
        &self,
        batch: usize,
        [queries, keys]: [usize; 2],
        mask: Mask,
    ) -> u128 {
        let own = if self.lists.per_head { self.heads } else { 1 };
        let mut pairs = 0_u128;
        for head in 0..own {
            for first in (0..queries).step_by(self.lists.queries()) {
                let end = queries.min(first + self.lists.queries());
                for &block in self.of(batch, head, first) {
                    let from = block as usize * self.lists.keys();
                    let to = keys.min(from + self.lists.keys());
                    let seen = |row: usize| {
                        let visible = mask.visible(row, queries, keys);
                        visible.end.min(to).saturating_sub(visible.start.max(from))
                    };
                    let all = to.saturating_sub(from);
                    pairs += match seen(first) == all && seen(end - 1) == all {
                        true => all as u128 * (end - first) as u128,
                        false => (first..end).map(|row| seen(row) as u128).sum(),
                    };
                }
            }
        }
        pairs * (self.heads / own) as u128
    }
}

/// Blocks of a row up to the number that ends it.
fn length(row: &[i32]) -> usize {
    row.iter().position(|&one| one < 0).unwrap_or(row.len())
}

/// The lists as the caller gives them, before they are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BlocksRequest<'a> {
    pub offsets: Request<'a>,
    pub indices: Request<'a>,
}

impl BlocksRequest<'_> {
    /// A copy that owns its data; `None` if it has a list on the host.
    pub(crate) fn kept(&self) -> Option<BlocksRequest<'static>> {
        Some(BlocksRequest {
            offsets: self.offsets.kept()?,
            indices: self.indices.kept()?,
        })
    }

    /// Checks the lists of a batch against its lengths, and blocks against the rows of keys, unless these are in pages. Lists on the host
    /// are counted.
    pub(crate) fn check(
        self,
        lists: BlockLists,
        [batch, heads]: [usize; 2],
        queries: &SideLengths,
        key_rows: Option<usize>,
    ) -> Result<Blocks> {
        let calls = [("batch", batch), ("heads", heads)];
        for ((dimension, expected), found) in calls.into_iter().zip(lists.owners) {
            let found = found.map_or(expected, |found| found as usize);
            expect_same("blocks", [found], ("q", [expected]), [dimension])?;
        }
        let count = lists.count(batch, heads);
        let found = self.offsets.count().unwrap_or(0);
        let needed = queries.bound.div_ceil(lists.queries());
        // Of no list, rows of any number.
        let rows = found.saturating_sub(1).checked_div(count).unwrap_or(needed);
        let name = Operand::BlockOffsets.name();
        if found == 0 || rows < needed || rows * count + 1 != found {
            return Err(Invalid::Lengths {
                argument: name,
                index: found,
                rule: format!(
                    "ends the list: {} have as many rows each, {needed} or more for blocks of {} queries, and one number more is \
                     needed than there are rows",
                    counted(count, "list"),
                    lists.queries()
                ),
            });
        }
        // These have been checked; plans do not depend on them.
        let owners = [None; 2];
        let mut lists = BlockLists { owners, ..lists };
        if self.offsets.on_device() != self.indices.on_device() {
            return Err(Invalid::presence(
                Operand::BlockIndices.name(),
                "lies elsewhere than block_offsets: both are in host memory, or both on the device",
            ));
        }
        // Kernels count in steps of some at once.
        let numbers = self.indices.count().unwrap_or(0);
        expect_countable(Operand::BlockIndices.name(), "numbers", numbers)?;
        if let (Numbers::Host(offsets), Numbers::Host(indices)) = (self.offsets, self.indices) {
            let blocks = key_rows.map_or(usize::MAX, |rows| rows.div_ceil(lists.keys()));
            let listed = check_lists(offsets, indices, blocks)?;
            let each = listed.div_ceil((rows * count).max(1));
            lists = lists.each(u32::try_from(each).unwrap_or(u32::MAX));
        }
        Ok(Blocks {
            lists,
            counts: [found, numbers],
            offsets: self.offsets.keep(),
            indices: self.indices.keep(),
            rows,
            heads,
        })
    }
}

/// Checks lists in host memory against the blocks of keys that there are; returns how many are listed.
fn check_lists(offsets: &[i32], indices: &[i32], blocks: usize) -> Result<usize> {
    let broken = |operand: Operand, index: usize, rule: String| {
        Err(Invalid::Lengths {
            argument: operand.name(),
            index,
            rule,
        })
    };
    let mut listed = 0;
    for (row, pair) in offsets.windows(2).enumerate() {
        let [start, end] = [pair[0], pair[1]];
        let places = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let Some(places) = places.filter(|(start, end)| start <= end && *end <= indices.len())
        else {
            return broken(
                Operand::BlockOffsets,
                row + 1,
                format!(
                    "is {end} after {start}; offsets must not decrease, and lie from 0 to the {} indices there are",
                    indices.len()
                ),
            );
        };
        let entries = &indices[places.0..places.1];
        let used = length(entries);
        for (place, &block) in entries.iter().enumerate() {
            let before = place.checked_sub(1).map(|before| entries[before]);
            let rule = match before {
                _ if place >= used => match block {
                    0.. => format!("is {block}, but the row ended before it with a number below 0"),
                    _ => continue,
                },
                _ if block as usize >= blocks => {
                    let are = if blocks == 1 { "is" } else { "are" };
                    let blocks = counted(blocks, "block");
                    format!("is {block}, but there {are} {blocks} of keys")
                }
                Some(before) if before >= block => {
                    format!("is {block} after {before}; the blocks of a row must ascend")
                }
                _ => continue,
            };
            return broken(Operand::BlockIndices, places.0 + place, rule);
        }
        listed += used;
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, Diagonal, ElementType, Layout, MAX_LEN, Scoring};
    use quickcheck::quickcheck;

    fn call(lists: BlockLists, offsets: &[i32], indices: &[i32]) -> Result<Call> {
        called(lists, Numbers::Host(offsets), Numbers::Host(indices))
    }

    fn called(lists: BlockLists, offsets: Request<'_>, indices: Request<'_>) -> Result<Call> {
        let q = Layout::bshd([2, 130, 4, 8]);
        let k = Layout::bshd([2, 300, 2, 8]);
        let mut scoring = Scoring::new();
        scoring.blocks = Some(lists);
        Call::builder(&q, &k, &k, ElementType::F16)
            .scoring(scoring)
            .numbers(Operand::BlockOffsets, offsets)
            .numbers(Operand::BlockIndices, indices)
            .build()
    }

    #[test]
    fn kernels_can_count_all_numbers_of_a_list_and_some_more() {
        let on_device = |numbers| {
            called(
                BlockLists::new(64, 64),
                Numbers::Device(4),
                Numbers::Device(numbers),
            )
        };
        assert!(on_device(MAX_LEN).is_ok() && MAX_LEN + 64 < i32::MAX as usize);
        let error = on_device(MAX_LEN + 1).unwrap_err().to_string();
        assert!(
            error.starts_with("block_indices has numbers 1073741825"),
            "{error}"
        );
    }

    #[test]
    fn each_rule_has_an_error_that_names_the_number() {
        let lists = BlockLists::new(64, 64);
        let error = |offsets: &[i32], indices: &[i32]| {
            call(lists, offsets, indices).unwrap_err().to_string()
        };
        for (offsets, indices, expected) in [
            (&[0, 1, 1][..], &[0][..], "block_offsets[3] ends the list"),
            (&[0, 1, 3, 2], &[0, 1, 2], "block_offsets[3] is 2 after 3"),
            (&[0, 0, 0, 4], &[0, 1, 2], "block_offsets[3] is 4 after 0"),
            (&[-1, 0, 0, 1], &[0], "block_offsets[1] is 0 after -1"),
            (
                &[0, 2, 2, 2],
                &[1, 5],
                "block_indices[1] is 5, but there are 5",
            ),
            (&[0, 2, 2, 2], &[1, 1], "block_indices[1] is 1 after 1"),
            (
                &[0, 3, 3, 3],
                &[1, -1, 2],
                "block_indices[2] is 2, but the row ended",
            ),
        ] {
            let found = error(offsets, indices);
            assert!(found.starts_with(expected), "{found}");
        }
        let sizes = call(BlockLists::new(32, 64), &[0; 4], &[]).unwrap_err();
        assert!(sizes.to_string().starts_with("blocks is 32x64"), "{sizes}");
        // More rows than there are blocks of queries, numbers behind the end, one list for each head.
        assert!(call(lists, &[0, 2, 3, 3, 3], &[0, -1, 4]).is_ok());
        assert!(call(lists.per_head(), &[0; 13], &[]).is_ok());
        assert!(call(lists.per_head(), &[0; 12], &[]).is_err());
        assert!(call(lists.per_batch().per_head(), &[0; 25], &[]).is_ok());
    }

    #[test]
    fn lists_are_found_by_sequence_head_and_position() {
        let lists = BlockLists::new(64, 128).per_batch().per_head();
        let offsets: Vec<i32> = (0..=24).collect();
        let indices: Vec<i32> = (0..24).map(|i| i % 3).collect();
        let call = call(lists, &offsets, &indices).unwrap();
        let blocks = call.blocks().unwrap();
        assert_eq!(blocks.of(1, 2, 129), [2]);
        assert!(blocks.show(1, 2, 129, 299) && !blocks.show(1, 2, 127, 299));
        assert_eq!(blocks.lists().blocks_of_a_row(), Some(1));
        // 128, 128 and 44 keys for 64, 64 and 2 queries.
        let pairs = 64 * 128 + 64 * 128 + 2 * 44;
        assert_eq!(call.visible_pairs(), 2 * pairs);
        assert_eq!(call.flops(), 2 * 4 * 2 * pairs * 16);
    }

    #[test]
    fn a_mask_says_which_lists_there_are() {
        let lists = BlockLists::new(64, 64);
        let listed = |lists, shape: [usize; 4]| {
            let mask = vec![true; shape.iter().product()];
            BlockList::from_mask(lists, shape, &mask).unwrap().lists()
        };
        for all in [lists, lists.per_batch().per_head()] {
            assert_eq!(listed(all, [1, 1, 2, 2]), lists);
            assert_eq!(listed(all, [1, 2, 2, 2]), lists.of(1, 2));
            assert_eq!(listed(all, [2, 1, 2, 2]), lists.of(2, 1));
            assert_eq!(listed(all, [2, 2, 2, 2]), lists.of(2, 2));
            assert_eq!(listed(all, [0, 1, 2, 2]), lists.of(0, 1));
        }
        let error = |shape, len| {
            let list = BlockList::from_mask(lists, shape, &vec![true; len]);
            list.unwrap_err().to_string()
        };
        for len in [7, 9] {
            let found = error([1, 2, 2, 2], len);
            assert_eq!(found, format!("mask has {len} values; 8 are needed"));
        }
        let found = error([1, 1, 1, usize::MAX], 4);
        assert!(found.starts_with("mask has 4 values"), "{found}");
        for (shape, dimension) in [
            ([usize::MAX, 2, 4, 4], "batch"),
            ([0, usize::MAX, 4, 4], "heads"),
            ([1, 1, usize::MAX, 0], "rows"),
        ] {
            let found = error(shape, 0);
            let expected = format!("mask has {dimension} 1844674407");
            assert!(found.starts_with(&expected), "{found}");
        }
    }

    #[test]
    fn a_mask_of_other_sequences_or_heads_is_refused() {
        let lists = BlockLists::new(64, 64);
        let call_of = |[batch, heads]: [usize; 2]| {
            let mask = vec![true; batch * heads * 3 * 5];
            let list = BlockList::from_mask(lists, [batch, heads, 3, 5], &mask).unwrap();
            call(list.lists(), list.offsets(), list.indices()).map_err(|error| error.to_string())
        };
        // The call has two sequences and four heads.
        for shape in [[1, 1], [2, 1], [1, 4], [2, 4]] {
            call_of(shape).unwrap();
        }
        for (shape, expected) in [
            ([4, 1], "blocks has batch 4, but q has 2"),
            ([4, 2], "blocks has batch 4, but q has 2"),
            ([1, 8], "blocks has heads 8, but q has 4"),
            ([2, 2], "blocks has heads 2, but q has 4"),
        ] {
            assert_eq!(call_of(shape).unwrap_err(), expected);
        }
    }

    #[test]
    fn windows_have_a_largest_length() {
        let lists = BlockLists::new(64, 64);
        for (lists, lengths, expected) in [
            (lists, [usize::MAX, 64], "window has queries 1844674407"),
            (lists, [64, usize::MAX], "window has keys 1844674407"),
            (
                lists,
                [MAX_LEN / 16, MAX_LEN],
                "window has blocks 1759218604",
            ),
            (BlockLists::new(0, 64), [64, 64], "blocks is 0x64"),
        ] {
            let error = BlockList::window(lists, Mask::none(), 0, lengths);
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn documents_have_a_largest_length() {
        for (lengths, expected) in [
            (&[1 << 62, 1 << 62, 1 << 63][..], "documents has length 46"),
            (&[1 << 30, 1 << 62], "documents has blocks 281474976710656"),
            (&[1 << 20, usize::MAX], "documents has length 1844674407"),
        ] {
            let error = BlockList::documents(BlockLists::new(64, 64), lengths);
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = BlockList::documents(BlockLists::new(64, 0), &[64]).unwrap_err();
        assert!(error.to_string().starts_with("blocks is 64x0"), "{error}");
    }

    #[test]
    fn windows_and_documents_are_lists() {
        let lists = BlockLists::new(64, 64);
        let window = BlockList::window(lists, Mask::window(64, 0), 4, [256, 256]).unwrap();
        assert_eq!(window.offsets(), [0, 1, 3, 6, 9]);
        assert_eq!(window.indices(), [0, 0, 1, 0, 1, 2, 0, 2, 3][..9].to_vec());
        // The windows of the last queries lie past the keys.
        let mask = Mask::window(63, 0).diagonal(Diagonal::TopLeft);
        let past = BlockList::window(lists, mask, 4, [256, 64]).unwrap();
        assert_eq!(past.offsets(), [0, 1, 2, 3, 4]);
        let documents = BlockList::documents(lists, &[128, 64, 70]).unwrap();
        assert_eq!(documents.offsets(), [0, 2, 4, 5, 7, 9]);
        assert_eq!(documents.indices(), [0, 1, 0, 1, 2, 3, 4, 3, 4]);
        let error = BlockList::documents(lists, &[64, 70, 64]).unwrap_err();
        assert!(
            error.to_string().starts_with("documents[1] is 70"),
            "{error}"
        );
    }

    quickcheck! {
        fn text_round_trips(
            queries: u32, keys: u32, flags: u8, batch: Option<u32>, heads: Option<u32>, each: Option<u32>
        ) -> bool {
            let mut lists = BlockLists::new(queries, keys);
            lists.per_batch = flags & 1 != 0;
            lists.per_head = flags & 2 != 0;
            lists.owners[0] = batch.filter(|_| lists.per_batch);
            lists.owners[1] = heads.filter(|_| lists.per_head);
            lists.each = each;
            lists.to_string().parse() == Ok(lists)
        }

        fn a_window_lists_every_block_that_has_a_visible_pair(
            queries: u8, keys: u8, left: u8, right: u8, at: Option<i8>, first_keys: u8
        ) -> bool {
            let lengths = [usize::from(queries), 3 * usize::from(keys)];
            let mask = Mask::window(u32::from(left), u32::from(right));
            let mask = at.map_or(mask, |at| mask.diagonal(Diagonal::At(at.into())));
            let first_keys = usize::from(first_keys);
            let list = BlockList::window(BlockLists::new(64, 64), mask, first_keys, lengths).unwrap();
            (0..lengths[0]).all(|row| {
                let range = list.offsets[row / 64] as usize..list.offsets[row / 64 + 1] as usize;
                let blocks = &list.indices[range];
                let shown = mask.visible(row, lengths[0], lengths[1]);
                shown.chain(0..first_keys.min(lengths[1])).all(|key| blocks.contains(&((key / 64) as i32)))
                    && blocks.is_sorted_by(|a, b| a < b)
            })
        }
    }
}
