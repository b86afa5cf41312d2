//! New keys and values written into a cache, rotated on the way.

mod cpu;

use std::sync::Arc;

use crate::extents::{expect_countable, expect_same};
use crate::gpu::{Access, AppendArgument, Expected};
use crate::lengths::{KEYS, LengthsRequest, Names, Request, SideLengths};
use crate::ops::rotary::{Angles, Rotary, check_places, check_positions};
use crate::ops::slot;
use crate::quantized::{Quantization, QuantizedType, key_size};
use crate::{ElementType, Error, Heads, Layout, Numbers, Result};

pub use cpu::{AppendOperands, CacheMut, CacheOperand, QueriesMut, append_cpu};

/// What errors call the lengths of the new rows.
const NEW_ROWS: Names = Names {
    tensor: "k",
    offsets: AppendArgument::RowOffsets.name(),
    used: AppendArgument::RowLengths.name(),
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
    quantized: Option<Quantization>,
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
    quantized: Option<Quantization>,
    /// What the host knows of key lengths that are on a device.
    known_lengths: Option<&'a [i32]>,
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
    fn keep(self, argument: AppendArgument, needed: usize) -> Result<List<T>> {
        match self {
            Wanted::None => Ok(List::None),
            Wanted::Host(list) if list.len() != needed => Err(Error::Count {
                argument: argument.name(),
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
            quantized: None,
            known_lengths: None,
        }
    }

    /// Element type of all tensors, but for those of a quantized cache.
    #[must_use]
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// How the cache is quantized; `None` if it has the elements of k and v.
    #[must_use]
    pub const fn quantized(&self) -> Option<Quantization> {
        self.quantized
    }

    /// The type of a quantized cache.
    #[must_use]
    pub const fn quantized_type(&self) -> Option<QuantizedType> {
        Quantization::element_of(self.quantized)
    }

    /// Size in bytes of an element of the cache.
    pub(crate) const fn cache_size(&self) -> usize {
        key_size(self.element, self.quantized_type())
    }

    /// The heads and their sizes; without queries there are no query heads.
    #[must_use]
    pub const fn heads(&self) -> Heads {
        heads(self.q.as_ref(), &self.k, &self.v)
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

    /// Checks the types of what is given beside the tensors: tables of another type, and positions of another size, than the description
    /// has.
    ///
    /// # Errors
    /// [`Error::ElementMismatch`] for the tables, [`Error::Presence`] for the positions.
    pub fn check_types(
        &self,
        tables: Option<ElementType>,
        wide_positions: Option<bool>,
    ) -> Result<()> {
        if wide_positions.is_some_and(|wide| wide != self.wide_positions) {
            return Err(Error::Presence {
                argument: "positions",
                rule: "has numbers of another size than the call was built for",
            });
        }
        match (tables, self.rotary.as_ref().map(Rotary::angles)) {
            (Some(found), Some(Angles::Tables { element, .. })) if found != *element => {
                Err(Error::ElementMismatch {
                    argument: "cos",
                    expected: *element,
                    found,
                })
            }
            _ => Ok(()),
        }
    }

    /// The arguments of a raw launch, in the order of [`AppendArgument`]: as
    /// [`Call::memory`](crate::Call::memory).
    pub fn memory(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> + '_ {
        self.expected.iter().map(Expected::needed)
    }

    /// In the order of [`AppendArgument`].
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
        self.known_lengths = None;
        self
    }

    /// What the host knows of lengths that are in device memory now; of a launch that is captured and repeated they may be others.
    pub(crate) fn known_lengths(mut self, lengths: &'a [i32]) -> Self {
        self.known_lengths = Some(lengths);
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
        self.rows.packed_on_device(sequences, longest);
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
    /// place in its sequence. [Tables](Rotary::with_tables) have a row for each position.
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

    /// How the cache is quantized: what it holds is the nearest to each number divided by its scale, after the rotation. Default: it has
    /// the elements of k and v.
    pub fn quantized(mut self, quantized: impl Into<Option<Quantization>>) -> Self {
        self.quantized = quantized.into();
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
        let [entries, row_count, ..] = self.k.shape;
        let heads = heads(self.q.as_ref(), &self.k, &self.v);
        let [pages, page_rows, ..] = self.k_pages.shape;
        let (rows, batch) = self.rows.check(NEW_ROWS, entries, row_count)?;
        expect_countable("k", "batch", batch)?;

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
        if by_lengths && !self.table.is_given() {
            let expected = ("a cache without a block table", [batch]);
            expect_same("k_pages", [pages], expected, ["batch"])?;
        }
        let capacity = match self.table.is_given() {
            true => self.columns.saturating_mul(page_rows),
            false => page_rows,
        };
        expect_countable("block_table", "length", capacity)?;
        let before = LengthsRequest {
            used: self.before,
            ..LengthsRequest::default()
        };
        let (before, _) = before.check(KEYS, batch, capacity)?;
        check_room(&rows, &before, batch, capacity)?;

        // Rotation.
        if let Some(rotary) = &self.rotary
            && rotary.size() > heads.dim
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

        if let Some(quantized) = self.quantized {
            quantized.check(heads.key_value)?;
        }
        let element = self.element;
        let size = element.size();
        let cache_size = key_size(element, Quantization::element_of(self.quantized));
        let query_shape = [entries, row_count, heads.query, heads.dim];
        let shape_of_pages = |size| [pages, page_rows, heads.key_value, size];
        let token_count = entries.saturating_mul(row_count);
        let entry_count = batch.saturating_mul(self.columns);
        let slots = self.slots.keep(AppendArgument::Slots, token_count)?;
        let table = self.table.keep(AppendArgument::BlockTable, entry_count)?;
        let positions = self
            .positions
            .keep(AppendArgument::Positions, token_count)?;
        if let Some(end) = self.rotary.as_ref().and_then(Rotary::table_rows) {
            match &positions {
                List::Host(list) => check_positions(list, (&rows, batch, row_count), end)?,
                List::Device => {}
                List::None => {
                    let lengths = before.used().on_host().or(self.known_lengths);
                    check_places(lengths.unwrap_or_default(), &rows, end)?;
                }
            }
        }
        let mut expected = Vec::with_capacity(AppendArgument::COUNT);
        for argument in AppendArgument::ALL {
            let name = argument.name();
            let tensor =
                |layout: &Layout, shape, access| slot(name, layout, ("k", shape), size, access);
            let of_cache = |layout: &Layout, shape| {
                slot(name, layout, ("k", shape), cache_size, Access::Write)
            };
            let unwanted = |access| Expected::list(name, false, 0, 4, access);
            let list = |wanted: bool, count: usize, size: u64, on_host: bool| {
                Expected::list(name, wanted, count, size, Access::Read).on_host(on_host)
            };
            let of_rows = |numbers: &Numbers, count: usize| {
                list(numbers.is_given(), count, 4, numbers.on_host().is_some())
            };
            expected.push(match argument {
                AppendArgument::Q => match &self.q {
                    Some(q) if self.q_out.is_some() => tensor(q, query_shape, Access::Read)?,
                    Some(q) => tensor(q, query_shape, Access::Write)?,
                    None => unwanted(Access::Read),
                },
                AppendArgument::QOut => match &self.q_out {
                    Some(out) => tensor(out, query_shape, Access::Write)?,
                    None => unwanted(Access::Write),
                },
                AppendArgument::K => tensor(&self.k, self.k.shape, Access::Read)?,
                AppendArgument::V => {
                    let shape = [entries, row_count, heads.key_value, heads.value_dim];
                    tensor(&self.v, shape, Access::Read)?
                }
                AppendArgument::KPages => of_cache(&self.k_pages, shape_of_pages(heads.dim))?,
                AppendArgument::VPages => {
                    let (found, expected) = ([self.v_pages.head_dim()], [heads.value_dim]);
                    expect_same(name, found, ("v", expected), ["head size"])?;
                    of_cache(&self.v_pages, shape_of_pages(heads.value_dim))?
                }
                AppendArgument::Slots => {
                    let on_host = slots.on_host().is_some();
                    list(slots.is_given(), token_count, 8, on_host)
                }
                AppendArgument::BlockTable => {
                    let on_host = table.on_host().is_some();
                    list(table.is_given(), entry_count, 4, on_host)
                }
                AppendArgument::RowOffsets => of_rows(rows.offsets(), batch + 1),
                AppendArgument::RowLengths => of_rows(rows.used(), batch),
                AppendArgument::KeyLengths => of_rows(before.used(), batch),
                AppendArgument::Positions => {
                    let size = if self.wide_positions { 8 } else { 4 };
                    let on_host = positions.on_host().is_some();
                    list(positions.is_given(), token_count, size, on_host)
                }
                AppendArgument::KScale | AppendArgument::VScale => {
                    let count = self.quantized.map_or(0, |each| match argument {
                        AppendArgument::KScale => each.k_scales,
                        _ => each.v_scales,
                    });
                    list(count > 0, count, 4, false)
                }
                AppendArgument::Cos | AppendArgument::Sin => {
                    match self.rotary.as_ref().map(Rotary::angles) {
                        Some(Angles::Tables {
                            element: of_table,
                            layout,
                        }) => angle_table(name, *of_table, layout, element)?,
                        _ => unwanted(Access::Read),
                    }
                }
            });
        }
        Ok(Append {
            element,
            q: self.q,
            q_out: self.q_out,
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
            quantized: self.quantized,
            expected,
        })
    }
}

/// The queries have the head size of the keys.
const fn heads(q: Option<&Layout>, k: &Layout, v: &Layout) -> Heads {
    let query = match q {
        Some(q) => q.heads(),
        None => 0,
    };
    Heads {
        query,
        ..Heads::of(k, k, v)
    }
}

/// A table of angles, in `f32` or of the tensors' elements.
fn angle_table(
    argument: &'static str,
    found: ElementType,
    layout: &Layout,
    expected: ElementType,
) -> Result<Expected> {
    if ![ElementType::F32, expected].contains(&found) {
        return Err(Error::ElementMismatch {
            argument,
            expected,
            found,
        });
    }
    let size = found.size();
    Ok(Expected::tensor(
        argument,
        layout,
        size,
        Access::Read,
        size as u64,
    ))
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
