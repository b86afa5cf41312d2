//! New keys and values written into a cache, rotated on the way.

use std::sync::Arc;

use crate::cpu::{SharedMut, in_parallel};
use crate::gpu::{Access, Expected};
use crate::layout::MAX_LEN;
use crate::lengths::{KEYS, LengthsRequest, Names, Request, SideLengths};
use crate::ops::rotary::{Angles, Rotary, Tables};
use crate::ops::slot;
use crate::{Element, ElementType, Error, Layout, Result};

/// What errors call the lengths of the new rows.
const NEW_ROWS: Names = Names {
    tensor: "k",
    offsets: "row_offsets",
    used: "row_lengths",
};

/// Numbers that a write brings along.
#[derive(Debug, Clone, Default)]
pub(crate) enum List<T> {
    #[default]
    None,
    Host(Arc<[T]>),
    /// In device memory, where nobody has checked them.
    Device,
}

impl<T> List<T> {
    pub(crate) fn on_host(&self) -> Option<&[T]> {
        match self {
            List::Host(list) => Some(list),
            _ => None,
        }
    }

    pub(crate) const fn is_given(&self) -> bool {
        !matches!(self, List::None)
    }
}

/// Where each slot of a write stands in [`Append::expected`].
pub(crate) mod at {
    pub(crate) const Q: usize = 0;
    pub(crate) const Q_OUT: usize = 1;
    pub(crate) const K: usize = 2;
    pub(crate) const V: usize = 3;
    pub(crate) const K_PAGES: usize = 4;
    pub(crate) const V_PAGES: usize = 5;
    pub(crate) const SLOTS: usize = 6;
    pub(crate) const BLOCK_TABLE: usize = 7;
    pub(crate) const ROW_OFFSETS: usize = 8;
    pub(crate) const ROW_LENGTHS: usize = 9;
    pub(crate) const KEY_LENGTHS: usize = 10;
    pub(crate) const POSITIONS: usize = 11;
    pub(crate) const COS: usize = 12;
    pub(crate) const SIN: usize = 13;
    pub(crate) const COUNT: usize = 14;
}

/// The description of a cache write, checked: layouts, where rows go, and rotation. What [`append_cpu`] and
/// [`PreparedAppend`](crate::gpu::PreparedAppend) take.
///
/// New keys and values are rows of two tensors: `[batch, rows, heads, head size]`, or the tokens of all sequences one after
/// the other, `[1, tokens, heads, head size]`. A cache is pages, `[pages, page rows, heads, head size]` with any strides: heads
/// before rows, or keys and values interleaved in one tensor, are only strides. A dense cache is one page for each sequence.
///
/// Where rows go:
/// - By slots ([`AppendBuilder::slots`]): row `i` goes to slot `slots[i]`, which is `page * page rows + row`. Rows with -1 or any
///   other slot that does not exist go nowhere. This is vLLM's `reshape_and_cache_flash`.
/// - By lengths ([`AppendBuilder::key_lengths`]): the rows of sequence `b` go after the `key_lengths[b]` rows that it has, to the
///   pages that row `b` of the block table names; without a table page `b` is its only one. Rows beyond the last column of the
///   table, or in pages that do not exist, go nowhere.
///
/// Nothing outside of the cache is ever written, whatever the numbers on a device are. If two rows go to one slot, either may stay
/// there on a GPU; on the CPU the last does.
#[derive(Debug, Clone)]
pub struct Append {
    element: ElementType,
    q: Option<Layout>,
    q_out: Option<Layout>,
    k: Layout,
    v: Layout,
    k_pages: Layout,
    v_pages: Layout,
    slots: List<i64>,
    table: List<i32>,
    columns: usize,
    rows: SideLengths,
    batch: usize,
    before: SideLengths,
    positions: List<i32>,
    wide_positions: bool,
    rotary: Option<Rotary>,
    expected: Vec<Expected>,
}

/// Describes an [`Append`]; made by [`Append::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct AppendBuilder<'a> {
    element: ElementType,
    q: Option<Layout>,
    q_out: Option<Layout>,
    k: Layout,
    v: Layout,
    k_pages: Layout,
    v_pages: Layout,
    slots: Wanted<'a, i64>,
    table: Wanted<'a, i32>,
    columns: usize,
    rows: LengthsRequest<'a>,
    before: Request<'a>,
    positions: Wanted<'a, i32>,
    wide_positions: bool,
    rotary: Option<Rotary>,
}

/// A list as the caller describes it.
#[derive(Debug, Clone, Copy)]
enum Wanted<'a, T> {
    None,
    Host(&'a [T]),
    Device,
}

impl<T: Copy> Wanted<'_, T> {
    fn is_given(&self) -> bool {
        !matches!(self, Wanted::None)
    }

    /// Checks the number of values on the host, and keeps them.
    fn keep(self, argument: &'static str, needed: usize) -> Result<List<T>> {
        match self {
            Wanted::None => Ok(List::None),
            Wanted::Host(list) if list.len() != needed => Err(Error::Count {
                argument,
                found: list.len(),
                needed,
            }),
            Wanted::Host(list) => Ok(List::Host(list.into())),
            Wanted::Device => Ok(List::Device),
        }
    }
}

impl Append {
    /// A write of keys and values of layouts `k` and `v` into pages of layouts `k_pages` and `v_pages`.
    pub fn builder<'a>(
        element: ElementType,
        [k, v]: [&Layout; 2],
        [k_pages, v_pages]: [&Layout; 2],
    ) -> AppendBuilder<'a> {
        AppendBuilder {
            element,
            q: None,
            q_out: None,
            k: *k,
            v: *v,
            k_pages: *k_pages,
            v_pages: *v_pages,
            slots: Wanted::None,
            table: Wanted::None,
            columns: 0,
            rows: LengthsRequest::default(),
            before: Request::None,
            positions: Wanted::None,
            wide_positions: false,
            rotary: None,
        }
    }

    /// Element type of all tensors.
    #[must_use]
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// Layout of the queries, if there are any.
    #[must_use]
    pub const fn q(&self) -> Option<&Layout> {
        self.q.as_ref()
    }

    /// Layout of where rotated queries go, unless that is where they are.
    #[must_use]
    pub const fn q_out(&self) -> Option<&Layout> {
        self.q_out.as_ref()
    }

    /// Layout of the new keys.
    #[must_use]
    pub const fn k(&self) -> &Layout {
        &self.k
    }

    /// Layout of the new values.
    #[must_use]
    pub const fn v(&self) -> &Layout {
        &self.v
    }

    /// Layout of the cache's keys.
    #[must_use]
    pub const fn k_pages(&self) -> &Layout {
        &self.k_pages
    }

    /// Layout of the cache's values.
    #[must_use]
    pub const fn v_pages(&self) -> &Layout {
        &self.v_pages
    }

    /// The rotation, if there is one.
    #[must_use]
    pub const fn rotary(&self) -> Option<&Rotary> {
        self.rotary.as_ref()
    }

    /// Sequences.
    #[must_use]
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// Columns of the block table: the most pages of a sequence; 0 without a table.
    #[must_use]
    pub const fn columns(&self) -> usize {
        self.columns
    }

    /// The most rows that a sequence can have: by the columns of the table, or of a page if there is none.
    pub(crate) fn capacity(&self) -> usize {
        self.before.rows()
    }

    pub(crate) const fn rows(&self) -> &SideLengths {
        &self.rows
    }

    pub(crate) const fn before(&self) -> &SideLengths {
        &self.before
    }

    pub(crate) const fn slots(&self) -> &List<i64> {
        &self.slots
    }

    pub(crate) const fn table(&self) -> &List<i32> {
        &self.table
    }

    pub(crate) const fn positions(&self) -> &List<i32> {
        &self.positions
    }

    pub(crate) const fn wide_positions(&self) -> bool {
        self.wide_positions
    }

    /// In the order of [`at`].
    pub(crate) fn expected(&self) -> &[Expected] {
        &self.expected
    }
}

impl<'a> AppendBuilder<'a> {
    /// Row `i` of k and v, counted through the batch, goes to slot `slots[i]`.
    pub fn slots(mut self, slots: &'a [i64]) -> Self {
        self.slots = Wanted::Host(slots);
        self
    }

    /// As [`slots`](Self::slots), in device memory.
    pub fn device_slots(mut self) -> Self {
        self.slots = Wanted::Device;
        self
    }

    /// The rows of sequence `b` go after the `lengths[b]` rows that it has.
    pub fn key_lengths(mut self, lengths: &'a [i32]) -> Self {
        self.before = Request::Host(lengths);
        self
    }

    /// As [`key_lengths`](Self::key_lengths), in device memory as `i32` or `u32`.
    pub fn device_key_lengths(mut self, sequences: usize) -> Self {
        self.before = Request::Device(sequences);
        self
    }

    /// Row `j` of sequence `b` lies in page `table[b * columns + j / page rows]`. Numbers of pages that do not exist, such as -1,
    /// stand for no page.
    pub fn block_table(mut self, table: &'a [i32], columns: usize) -> Self {
        self.table = Wanted::Host(table);
        self.columns = columns;
        self
    }

    /// As [`block_table`](Self::block_table), in device memory as `i32` or `u32`.
    pub fn device_block_table(mut self, columns: usize) -> Self {
        self.table = Wanted::Device;
        self.columns = columns;
        self
    }

    /// Sequence `b` has the rows `offsets[b]..offsets[b + 1]` of a k and v whose batch extent is 1.
    pub fn packed(mut self, offsets: &'a [i32]) -> Self {
        self.rows.offsets = Request::Host(offsets);
        self
    }

    /// As [`packed`](Self::packed), with the `sequences + 1` offsets in device memory; no sequence is taken to have more than
    /// `longest` new rows.
    pub fn device_packed(mut self, sequences: usize, longest: usize) -> Self {
        self.rows.offsets = Request::Device(sequences.saturating_add(1));
        self.rows.longest = Some(longest);
        self
    }

    /// Of each sequence's new rows only the first `lengths[b]` exist; the others are neither written nor rotated.
    pub fn row_lengths(mut self, lengths: &'a [i32]) -> Self {
        self.rows.used = Request::Host(lengths);
        self
    }

    /// As [`row_lengths`](Self::row_lengths), in device memory.
    pub fn device_row_lengths(mut self, sequences: usize) -> Self {
        self.rows.used = Request::Device(sequences);
        self
    }

    /// Rotates the keys on their way into the cache, and the queries.
    pub fn rotary(mut self, rotary: Rotary) -> Self {
        self.rotary = Some(rotary);
        self
    }

    /// Of each row of k, counted through the batch, the position by which it is rotated; a negative one counts as 0. Default: its
    /// place in its sequence.
    pub fn positions(mut self, positions: &'a [i32]) -> Self {
        self.positions = Wanted::Host(positions);
        self.wide_positions = false;
        self
    }

    /// As [`positions`](Self::positions), in device memory: as `i64` if `wide`, else as `i32` or `u32`.
    pub fn device_positions(mut self, wide: bool) -> Self {
        self.positions = Wanted::Device;
        self.wide_positions = wide;
        self
    }

    /// Rotates queries too: of k's batch and rows, any number of heads. In place, or into `out`.
    pub fn queries(mut self, q: Layout, out: Option<Layout>) -> Self {
        self.q = Some(q);
        self.q_out = out;
        self
    }

    /// Checks everything and freezes the description.
    ///
    /// # Errors
    /// An [`Error`] that names the argument and the rule it breaks.
    pub fn build(self) -> Result<Append> {
        let [entries, row_count, heads, head_dim] = self.k.shape;
        let value_dim = self.v.head_dim();
        let [pages, page_rows, ..] = self.k_pages.shape;
        let (rows, batch) = self.rows.check(NEW_ROWS, entries, row_count)?;
        if batch > MAX_LEN {
            return Err(Error::TooLong {
                argument: "k",
                dimension: "batch",
                found: batch,
                limit: MAX_LEN,
            });
        }

        // Where rows go.
        let by_lengths = self.before.is_given();
        let missing = |argument, rule| Err(Error::Presence { argument, rule });
        match (self.slots.is_given(), by_lengths) {
            (true, true) => return missing("key_lengths", "is given, but rows go to slots"),
            (false, false) => return missing("slots", "is missing, and so is key_lengths"),
            _ => {}
        }
        if self.table.is_given() && !by_lengths {
            return missing("block_table", "is given, but rows go to slots");
        }
        if by_lengths && !self.table.is_given() && pages != batch {
            return Err(Error::Mismatch {
                argument: "k_pages",
                dimension: "batch",
                found: pages,
                other: "a cache without a block table",
                expected: batch,
            });
        }
        let capacity = match self.table.is_given() {
            true => self.columns.saturating_mul(page_rows),
            false => page_rows,
        };
        if capacity > MAX_LEN {
            return Err(Error::TooLong {
                argument: "block_table",
                dimension: "length",
                found: capacity,
                limit: MAX_LEN,
            });
        }
        let before = LengthsRequest {
            used: self.before,
            ..LengthsRequest::default()
        };
        let (before, _) = before.check(KEYS, batch, capacity)?;
        check_room(&rows, &before, batch, capacity)?;

        // Rotation.
        if let Some(rotary) = &self.rotary
            && rotary.size() > head_dim
        {
            return Err(Error::RotarySize {
                size: rotary.size(),
            });
        }
        if self.rotary.is_none() && (self.q.is_some() || self.positions.is_given()) {
            return missing("rotary", "is missing, but queries or positions are given");
        }
        if self.rotary.is_some() && !by_lengths && !self.positions.is_given() {
            return missing(
                "positions",
                "is missing: slots do not tell the places of rows",
            );
        }

        let element = self.element;
        let tensor = |argument, layout: &Layout, shape, access| {
            slot(argument, layout, ("k", shape), element, access)
        };
        let unwanted = |argument, access| Expected::list(argument, false, 0, 4, access);
        let query_heads = self.q.map_or(0, |q| q.heads());
        let query_shape = [entries, row_count, query_heads, head_dim];
        let (q_access, q_out) = match self.q_out {
            Some(_) => (Access::Read, self.q_out),
            None => (Access::Write, None),
        };
        let token_count = entries.saturating_mul(row_count);
        let list = |argument, wanted: bool, count: usize, size: u64, on_host: bool| {
            Expected::list(argument, wanted, count, size, Access::Read).on_host(on_host)
        };
        let of_rows = |argument, list_of: &crate::Numbers, count: usize| {
            list(
                argument,
                list_of.is_given(),
                count,
                4,
                list_of.on_host().is_some(),
            )
        };
        let slots = self.slots.keep("slots", token_count)?;
        let table = self
            .table
            .keep("block_table", batch.saturating_mul(self.columns))?;
        let positions = self.positions.keep("positions", token_count)?;
        let position_size = if self.wide_positions { 8 } else { 4 };
        let angle_table = |argument| match self.rotary.as_ref().map(Rotary::angles) {
            Some(&Angles::Tables {
                element: of_table,
                layout,
            }) => {
                if ![ElementType::F32, element].contains(&of_table) {
                    return Err(Error::ElementMismatch {
                        argument,
                        expected: element,
                        found: of_table,
                    });
                }
                let size = of_table.size() as u64;
                Ok(Expected::tensor(
                    argument,
                    &layout,
                    of_table,
                    Access::Read,
                    size,
                ))
            }
            _ => Ok(unwanted(argument, Access::Read)),
        };
        // In the order of `at`.
        let expected = vec![
            match &self.q {
                Some(q) => tensor("q", q, query_shape, q_access)?,
                None => unwanted("q", Access::Read),
            },
            match &q_out {
                Some(out) => tensor("q_out", out, query_shape, Access::Write)?,
                None => unwanted("q_out", Access::Write),
            },
            tensor("k", &self.k, self.k.shape, Access::Read)?,
            tensor(
                "v",
                &self.v,
                [entries, row_count, heads, value_dim],
                Access::Read,
            )?,
            tensor(
                "k_pages",
                &self.k_pages,
                [pages, page_rows, heads, head_dim],
                Access::Write,
            )?,
            tensor(
                "v_pages",
                &self.v_pages,
                [pages, page_rows, heads, value_dim],
                Access::Write,
            )?,
            list(
                "slots",
                slots.is_given(),
                token_count,
                8,
                slots.on_host().is_some(),
            ),
            list(
                "block_table",
                table.is_given(),
                batch.saturating_mul(self.columns),
                4,
                table.on_host().is_some(),
            ),
            of_rows(NEW_ROWS.offsets, rows.offsets(), batch + 1),
            of_rows(NEW_ROWS.used, rows.used(), batch),
            of_rows(KEYS.used, before.used(), batch),
            list(
                "positions",
                positions.is_given(),
                token_count,
                position_size,
                positions.on_host().is_some(),
            ),
            angle_table("cos")?,
            angle_table("sin")?,
        ];
        Ok(Append {
            element,
            q: self.q,
            q_out,
            k: self.k,
            v: self.v,
            k_pages: self.k_pages,
            v_pages: self.v_pages,
            slots,
            table,
            columns: self.columns,
            rows,
            batch,
            before,
            positions,
            wide_positions: self.wide_positions,
            rotary: self.rotary,
            expected,
        })
    }
}

/// Checks that new rows fit after those that a sequence has, as far as the host knows both.
fn check_room(
    rows: &SideLengths,
    before: &SideLengths,
    batch: usize,
    capacity: usize,
) -> Result<()> {
    let Some(lengths) = before.used().on_host() else {
        return Ok(());
    };
    if rows.on_device() {
        return Ok(());
    }
    for (index, &length) in lengths.iter().enumerate().take(batch) {
        let (_, new) = rows.sequence(index);
        if length as usize + new > capacity {
            return Err(Error::Lengths {
                argument: KEYS.used,
                index,
                rule: format!(
                    "is {length}, and {new} rows follow, but there is room for {capacity}"
                ),
            });
        }
    }
    Ok(())
}

/// The cache's keys and values in host memory, or anything else that comes in twos and may lie in one piece of memory.
#[derive(Debug)]
pub enum CacheMut<'a, T> {
    /// Keys, values.
    Apart(&'a mut [T], &'a mut [T]),
    /// In one tensor, the values so many elements after the keys.
    Together(&'a mut [T], usize),
}

/// Queries in host memory.
#[derive(Debug)]
pub enum QueriesMut<'a, T> {
    /// Rotated where they are.
    InPlace(&'a mut [T]),
    /// Rotated into the second slice.
    Into(&'a [T], &'a mut [T]),
}

/// The memory of a cache write on the CPU, in the layouts of an [`Append`].
#[derive(Debug)]
pub struct AppendOperands<'a, T> {
    /// New keys.
    pub k: &'a [T],
    /// New values.
    pub v: &'a [T],
    /// The cache.
    pub cache: CacheMut<'a, T>,
    /// Queries, if the description has them.
    pub queries: Option<QueriesMut<'a, T>>,
    /// Tables of the rotation, if it has some.
    pub tables: Option<Tables<'a, T>>,
}

/// Writes keys and values into a cache on the CPU. See [`Append`] for the rules.
///
/// # Errors
/// Slices that are not those of the description, and numbers that are in device memory.
pub fn append_cpu<T: Element>(append: &Append, operands: AppendOperands<'_, T>) -> Result<()> {
    check_operands(append, &operands)?;
    let AppendOperands {
        k,
        v,
        cache,
        queries,
        tables,
    } = operands;
    // Slices that start where their tensors do; those of a cache in one tensor are one memory.
    let (keys, values, values_at) = match cache {
        CacheMut::Apart(keys, values) => (SharedMut::new(keys), Some(SharedMut::new(values)), 0),
        CacheMut::Together(memory, values_at) => (SharedMut::new(memory), None, values_at),
    };
    let values = values.as_ref().unwrap_or(&keys);
    let (q_in, q_out) = match queries {
        Some(QueriesMut::InPlace(q)) => (None, Some(SharedMut::new(q))),
        Some(QueriesMut::Into(q, out)) => (Some(q), Some(SharedMut::new(out))),
        None => (None, None),
    };

    let tokens = tokens(append);
    let pairs = append.rotary().map_or(0, |rotary| rotary.size() / 2);
    let mut angles = vec![[0.0; 2]; tokens.len() * pairs];
    if let Some(rotary) = append.rotary() {
        let of_tokens = SharedMut::new(&mut angles);
        in_parallel(tokens.len(), |index| {
            // SAFETY: the pairs of one token, within the list; each index comes once.
            let to = unsafe { of_tokens.slice(index * pairs, pairs) };
            rotary.angles_at(tokens[index].position, tables.as_ref(), to);
        });
    }
    let rotate = |index: usize, row: &mut [T]| {
        if let Some(rotary) = append.rotary() {
            rotary.turn(row, &angles[index * pairs..][..pairs]);
        }
    };

    // A head at a time, because rows of different heads never meet, while two rows may go to one slot.
    let query_heads = append.q().map_or(0, Layout::heads);
    let kv_heads = append.k().heads();
    in_parallel(query_heads + 2 * kv_heads, |head| {
        for (index, token) in tokens.iter().enumerate() {
            if head < query_heads {
                let (Some(layout), Some(out)) = (append.q(), &q_out) else {
                    continue;
                };
                let to = append.q_out().unwrap_or(layout);
                let (from, to) = (
                    layout.offset(token.entry, token.row, head),
                    to.offset(token.entry, token.row, head),
                );
                // SAFETY: the buffers hold the layouts, no two rows of an output layout overlap (the builder has checked), and
                // each row and head comes once.
                let to = unsafe { out.slice(to, layout.head_dim()) };
                if let Some(q) = q_in {
                    to.copy_from_slice(&q[from..from + layout.head_dim()]);
                }
                rotate(index, to);
                continue;
            }
            let Some((page, row)) = token.place else {
                continue;
            };
            let head = head - query_heads;
            let (cache, start, new, new_layout, pages, is_key) = match head.checked_sub(kv_heads) {
                None => (&keys, 0, k, append.k(), append.k_pages(), true),
                Some(_) => (values, values_at, v, append.v(), append.v_pages(), false),
            };
            let head = head % kv_heads;
            let from = new_layout.offset(token.entry, token.row, head);
            // SAFETY: page and row are within the layout, which the memory holds; rows of different heads, and of keys and
            // values, do not overlap (checked), and this task has all rows of one head of one of them.
            let to = unsafe {
                cache.slice(start + pages.offset(page, row, head), new_layout.head_dim())
            };
            to.copy_from_slice(&new[from..from + new_layout.head_dim()]);
            if is_key {
                rotate(index, to);
            }
        }
    });
    Ok(())
}

/// One new row.
struct Token {
    /// Its batch entry and row in k.
    entry: usize,
    row: usize,
    position: i64,
    /// Page and row in the cache.
    place: Option<(usize, usize)>,
}

fn tokens(append: &Append) -> Vec<Token> {
    let [_, row_count, ..] = append.k().shape;
    let [pages, page_rows, ..] = append.k_pages().shape;
    let mut tokens = Vec::new();
    for batch in 0..append.batch() {
        let (first, len) = append.rows().sequence(batch);
        let before = append
            .before()
            .used()
            .on_host()
            .map_or(0, |list| list[batch]);
        let entry = if append.rows().is_packed() { 0 } else { batch };
        for number in 0..len {
            let row = first + number;
            let of_all = entry * row_count + row;
            let in_sequence = before as usize + number;
            let place = match append.slots().on_host() {
                Some(slots) => usize::try_from(slots[of_all])
                    .ok()
                    .filter(|_| page_rows > 0)
                    .map(|slot| (slot / page_rows, slot % page_rows)),
                None if in_sequence < append.capacity() => {
                    let page = match append.table().on_host() {
                        Some(table) => {
                            let column = in_sequence / page_rows;
                            usize::try_from(table[batch * append.columns() + column]).ok()
                        }
                        None => Some(batch),
                    };
                    page.map(|page| (page, in_sequence % page_rows))
                }
                None => None,
            };
            let positions = append.positions().on_host();
            tokens.push(Token {
                entry,
                row,
                position: positions.map_or(in_sequence as i64, |list| i64::from(list[of_all])),
                place: place.filter(|&(page, _)| page < pages),
            });
        }
    }
    tokens
}

fn check_operands<T: Element>(append: &Append, operands: &AppendOperands<'_, T>) -> Result<()> {
    if T::TYPE != append.element() {
        return Err(Error::ElementMismatch {
            argument: "k",
            expected: append.element(),
            found: T::TYPE,
        });
    }
    for slot in [
        at::SLOTS,
        at::BLOCK_TABLE,
        at::ROW_OFFSETS,
        at::ROW_LENGTHS,
        at::KEY_LENGTHS,
        at::POSITIONS,
    ] {
        let expected = &append.expected()[slot];
        if expected.wanted && !expected.on_host {
            return Err(Error::Presence {
                argument: expected.name,
                rule: "is on a GPU, but the tensors are in host memory",
            });
        }
    }
    append.k().check_buffer("k", operands.k.len())?;
    append.v().check_buffer("v", operands.v.len())?;
    match &operands.cache {
        CacheMut::Apart(keys, values) => {
            append.k_pages().check_buffer("k_pages", keys.len())?;
            append.v_pages().check_buffer("v_pages", values.len())?;
        }
        CacheMut::Together(memory, values_at) => {
            append.k_pages().check_buffer("k_pages", memory.len())?;
            let values = memory.len().saturating_sub(*values_at);
            append.v_pages().check_buffer("v_pages", values)?;
            check_apart(append, *values_at)?;
        }
    }
    let in_place = append.q_out().is_none();
    let wanted = append.q().is_some();
    crate::call::expect_presence("q", wanted, operands.queries.is_some())?;
    if let (Some(q), Some(queries)) = (append.q(), &operands.queries) {
        match queries {
            QueriesMut::InPlace(slice) => {
                crate::call::expect_presence("q_out", !in_place, false)?;
                q.check_buffer("q", slice.len())?;
            }
            QueriesMut::Into(slice, out) => {
                crate::call::expect_presence("q_out", !in_place, true)?;
                q.check_buffer("q", slice.len())?;
                append
                    .q_out()
                    .unwrap_or(q)
                    .check_buffer("q_out", out.len())?;
            }
        }
    }
    let table = match append.rotary().map(Rotary::angles) {
        Some(Angles::Tables { element, layout }) => Some((*element, layout)),
        _ => None,
    };
    crate::call::expect_presence("cos", table.is_some(), operands.tables.is_some())?;
    if let (Some((element, layout)), Some(tables)) = (table, &operands.tables) {
        let (found, lens) = match tables {
            Tables::F32(cos, sin) => (ElementType::F32, [cos.len(), sin.len()]),
            Tables::Elements(cos, sin) => (T::TYPE, [cos.len(), sin.len()]),
        };
        if found != element {
            return Err(Error::ElementMismatch {
                argument: "cos",
                expected: element,
                found,
            });
        }
        layout.check_buffer("cos", lens[0])?;
        layout.check_buffer("sin", lens[1])?;
    }
    Ok(())
}

/// Checks that keys and values of a cache in one tensor have memory of their own.
fn check_apart(append: &Append, values_at: usize) -> Result<()> {
    let size = append.element().size() as u64;
    let keys = &append.expected()[at::K_PAGES].bytes;
    let values = &append.expected()[at::V_PAGES].bytes;
    match keys.may_meet(0, values, (values_at as u64).saturating_mul(size)) {
        true => Err(Error::OutputOverlaps {
            argument: "k_pages",
            other: "v_pages".to_owned(),
        }),
        false => Ok(()),
    }
}
