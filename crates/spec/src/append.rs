//! New keys and values written into a cache, rotated on the way.

use std::sync::Arc;

use crate::call::following;
use crate::lengths::{KEYS, LengthsRequest, Names};
use crate::rotary::{check_places, check_positions};
use crate::slots::UNWANTED;
use crate::{
    Access, Angles, Count, DIMENSIONS, ElementType, Elements, Expected, Heads, Invalid, Kind,
    Layout, Layouts, Numbers, Operand, Operations, PAGE_DIMENSIONS, Request, Result, Rotary,
    SideLengths, Slots, Types, check_alone, check_types, expect_countable, expect_same,
    expect_scales,
};

/// The operands that have the lengths of the new rows.
const NEW_ROWS: Names = Names {
    tensor: Operand::K,
    offsets: Operand::RowOffsets,
    used: Operand::RowLengths,
};

/// The checked description of a cache write: layouts, destinations of rows, and rotation. `append_cpu` and
/// `Prepared` take it.
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
/// Nothing outside the cache is ever written, even if numbers on a device are out of range. If two rows go to one slot, either may
/// stay there on a GPU; on the CPU the last does.
#[derive(Debug, Clone)]
pub struct Append {
    types: Types,
    layouts: Layouts,
    slots: Numbers<Arc<[i64]>>,
    table: Numbers<Arc<[i32]>>,
    columns: usize,
    rows: SideLengths,
    batch: usize,
    before: SideLengths,
    positions: Numbers<Arc<[i32]>>,
    wide_positions: bool,
    rotary: Option<Rotary>,
    expected: Slots<Expected>,
}

/// Describes an [`Append`]; made by [`Append::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct AppendBuilder<'a> {
    types: Types,
    layouts: Layouts,
    slots: Request<'a, i64>,
    table: Request<'a>,
    columns: usize,
    rows: LengthsRequest<'a>,
    before: Request<'a>,
    positions: Request<'a>,
    wide_positions: bool,
    rotary: Option<Rotary>,
    scale_counts: [usize; 2],
    /// Key lengths that the host knows although they are on a device.
    known_lengths: Option<&'a [i32]>,
}

/// Checks the number of values on the host, and keeps them.
fn kept<T: Copy>(
    request: Request<'_, T>,
    operand: Operand,
    needed: usize,
) -> Result<Numbers<Arc<[T]>>> {
    match request {
        Numbers::Host(list) if list.len() != needed => {
            Err(Invalid::count(operand.name(), list.len(), needed))
        }
        other => Ok(other.keep()),
    }
}

impl Append {
    /// A write of keys and values of layouts `k` and `v` into pages of layouts `k_pages` and `v_pages`. The types of keys and values are
    /// those of the cache; the type of the queries is that of all other tensors.
    pub fn builder<'a>(
        types: impl Into<Types>,
        [k, v]: [&Layout; 2],
        [k_pages, v_pages]: [&Layout; 2],
    ) -> AppendBuilder<'a> {
        let mut layouts = Layouts::default();
        for (operand, layout) in [
            (Operand::K, k),
            (Operand::V, v),
            (Operand::KPages, k_pages),
            (Operand::VPages, v_pages),
        ] {
            layouts[operand as usize] = Some(*layout);
        }
        AppendBuilder {
            types: types.into(),
            layouts,
            slots: Numbers::None,
            table: Numbers::None,
            columns: 0,
            rows: LengthsRequest::default(),
            before: Numbers::None,
            positions: Numbers::None,
            wide_positions: false,
            rotary: None,
            scale_counts: [1, 1],
            known_lengths: None,
        }
    }

    /// The type of the cache, as that of keys and values, and of all other tensors.
    pub const fn types(&self) -> Types {
        self.types
    }

    /// Element type of all tensors, except those of a quantized cache.
    pub const fn element(&self) -> ElementType {
        self.types.q
    }

    /// The layout of a tensor, if the write has it.
    pub fn layout(&self, operand: Operand) -> Option<&Layout> {
        self.layouts.get(operand as usize)?.as_ref()
    }

    /// The layout of a tensor that every write has.
    const fn required(&self, operand: Operand) -> &Layout {
        match &self.layouts[operand as usize] {
            Some(layout) => layout,
            None => &Layout::EMPTY,
        }
    }

    /// The heads and their sizes; without queries the number of query heads is 0.
    pub const fn heads(&self) -> Heads {
        heads(
            self.layouts[Operand::Q as usize].as_ref(),
            self.k(),
            self.v(),
        )
    }

    /// Layout of the new keys.
    pub const fn k(&self) -> &Layout {
        self.required(Operand::K)
    }

    /// Layout of the new values.
    pub const fn v(&self) -> &Layout {
        self.required(Operand::V)
    }

    /// Layout of the cache's keys.
    pub const fn k_pages(&self) -> &Layout {
        self.required(Operand::KPages)
    }

    /// Layout of the cache's values.
    pub const fn v_pages(&self) -> &Layout {
        self.required(Operand::VPages)
    }

    /// The rotation, if there is one.
    pub const fn rotary(&self) -> Option<&Rotary> {
        self.rotary.as_ref()
    }

    /// Sequences.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// Columns of the block table: the most pages of a sequence; 0 without a table.
    pub const fn columns(&self) -> usize {
        self.columns
    }

    /// The most rows that a sequence can have: by the columns of the table, or of a page if there is none.
    pub fn capacity(&self) -> usize {
        self.before.rows()
    }

    /// Where the new rows lie, and how many each sequence has.
    pub const fn rows(&self) -> &SideLengths {
        &self.rows
    }

    /// The rows that sequences have before the write, of as many as there can be.
    pub const fn before(&self) -> &SideLengths {
        &self.before
    }

    /// Which row of the pages each new row becomes.
    pub const fn slots(&self) -> &Numbers<Arc<[i64]>> {
        &self.slots
    }

    /// The pages of each sequence.
    pub const fn table(&self) -> &Numbers<Arc<[i32]>> {
        &self.table
    }

    /// Where each new row stands, for its rotation.
    pub const fn positions(&self) -> &Numbers<Arc<[i32]>> {
        &self.positions
    }

    /// Returns true if positions on the device have 64 bits.
    pub const fn wide_positions(&self) -> bool {
        self.wide_positions
    }

    /// The numbers that are in host memory, each as bytes.
    pub fn host_numbers(&self) -> impl Iterator<Item = (Operand, &[u8])> {
        let lists = [
            (Operand::BlockTable, self.table.on_host()),
            (Operand::RowOffsets, self.rows.offsets().on_host()),
            (Operand::RowLengths, self.rows.used().on_host()),
            (Operand::KeyLengths, self.before.used().on_host()),
            (Operand::Positions, self.positions.on_host()),
        ];
        let slots = self.slots.on_host().map(bytemuck::cast_slice);
        let slots = slots.map(|bytes| (Operand::NewSlots, bytes));
        { lists.into_iter() }
            .filter_map(|(operand, list)| Some((operand, bytemuck::cast_slice(list?))))
            .chain(slots)
    }

    /// The operands of a raw launch, as [`Call::memory`](crate::Call::memory) has them.
    pub fn memory(&self) -> impl Iterator<Item = (Operand, Option<u64>)> + '_ {
        Operand::of(Operations::APPEND).map(|operand| (operand, self.expected[operand].needed()))
    }

    /// The number of elements of an operand from its first to its last, gaps included; 0 if the write does not have it.
    pub fn reach(&self, operand: Operand) -> usize {
        let expected = &self.expected[operand];
        (expected.bytes.reach() / expected.size) as usize
    }

    /// The requirements on the memory of each operand.
    pub const fn expected(&self) -> &Slots<Expected> {
        &self.expected
    }
}

impl<'a> AppendBuilder<'a> {
    /// Row `i` of k and v, counted through the batch, goes to slot `slots[i]`.
    pub fn slots(mut self, slots: &'a [i64]) -> Self {
        self.slots = Numbers::Host(slots);
        self
    }

    /// As [`slots`](Self::slots), in device memory.
    pub fn device_slots(mut self) -> Self {
        self.slots = Numbers::Device(0);
        self
    }

    /// Row offsets, lengths, positions of 32 bits, or with [`columns`](Self::columns) the entries of a block table.
    pub fn numbers(mut self, operand: Operand, numbers: Request<'a>) -> Self {
        match operand {
            Operand::RowOffsets => self.rows.set_offsets(numbers),
            Operand::RowLengths => self.rows.used = numbers,
            Operand::KeyLengths => self.before = numbers,
            Operand::BlockTable => self.table = numbers,
            Operand::Positions => {
                self.positions = numbers;
                self.wide_positions = false;
            }
            _ => {}
        }
        self
    }

    /// The columns of the block table whose entries are given by [`numbers`](Self::numbers): the most pages of a sequence.
    pub fn columns(mut self, columns: usize) -> Self {
        self.columns = columns;
        self
    }

    /// The rows of sequence `b` go after the `lengths[b]` rows that it has.
    pub fn key_lengths(self, lengths: &'a [i32]) -> Self {
        self.numbers(Operand::KeyLengths, Numbers::Host(lengths))
    }

    /// As [`key_lengths`](Self::key_lengths), in device memory as `i32` or `u32`.
    pub fn device_key_lengths(mut self, sequences: usize) -> Self {
        self.known_lengths = None;
        self.numbers(Operand::KeyLengths, Numbers::Device(sequences))
    }

    /// Lengths that the host knows to be in device memory now; repeated launches of a captured graph may find other ones.
    pub fn known_lengths(mut self, lengths: &'a [i32]) -> Self {
        self.known_lengths = Some(lengths);
        self
    }

    /// Row `j` of sequence `b` lies in page `table[b * columns + j / page rows]`. Numbers of pages that do not exist, such as -1,
    /// stand for no page.
    pub fn block_table(self, table: &'a [i32], columns: usize) -> Self {
        self.numbers(Operand::BlockTable, Numbers::Host(table))
            .columns(columns)
    }

    /// As [`block_table`](Self::block_table), in device memory as `i32` or `u32`.
    pub fn device_block_table(self, columns: usize) -> Self {
        self.numbers(Operand::BlockTable, Numbers::Device(0))
            .columns(columns)
    }

    /// Sequence `b` has the rows `offsets[b]..offsets[b + 1]` of a k and v whose batch extent is 1.
    pub fn packed(self, offsets: &'a [i32]) -> Self {
        self.numbers(Operand::RowOffsets, Numbers::Host(offsets))
    }

    /// As [`packed`](Self::packed), with the `sequences + 1` offsets in device memory; no sequence is taken to have more than
    /// `longest` new rows.
    pub fn device_packed(mut self, sequences: usize, longest: usize) -> Self {
        self.rows.packed_on_device(sequences, longest);
        self
    }

    /// Limits each sequence's new rows to the first `lengths[b]`; the others are neither written nor rotated.
    pub fn row_lengths(self, lengths: &'a [i32]) -> Self {
        self.numbers(Operand::RowLengths, Numbers::Host(lengths))
    }

    /// As [`row_lengths`](Self::row_lengths), in device memory.
    pub fn device_row_lengths(self, sequences: usize) -> Self {
        self.numbers(Operand::RowLengths, Numbers::Device(sequences))
    }

    /// Rotates the keys on their way into the cache, and the queries.
    pub fn rotary(mut self, rotary: Rotary) -> Self {
        self.rotary = Some(rotary);
        self
    }

    /// Sets the position by which each row of k, counted through the batch, is rotated; a negative one counts as 0. Default: its
    /// place in its sequence. [Tables](Rotary::with_tables) have a row for each position.
    pub fn positions(self, positions: &'a [i32]) -> Self {
        self.numbers(Operand::Positions, Numbers::Host(positions))
    }

    /// As [`positions`](Self::positions), in device memory: as `i64` if `wide`, else as `i32` or `u32`. A `u32` from 2^31 on counts as 0.
    pub fn device_positions(mut self, wide: bool) -> Self {
        self.positions = Numbers::Device(0);
        self.wide_positions = wide;
        self
    }

    /// Numbers of scales of the keys and of the values of a quantized cache, each 1 or one for each key/value head. Default: 1. The cache
    /// holds the nearest to each number divided by its scale, after the rotation.
    pub fn scale_counts(mut self, counts: [usize; 2]) -> Self {
        self.scale_counts = counts;
        self
    }

    /// Rotates queries too: of k's batch and rows, any number of heads. In place, or into `out`.
    pub fn queries(mut self, q: Layout, out: Option<Layout>) -> Self {
        self.layouts[Operand::Q as usize] = Some(q);
        self.layouts[Operand::QOut as usize] = out;
        self
    }

    /// Checks everything and freezes the description.
    ///
    /// # Errors
    /// An [`Invalid`] that names the argument and the rule it breaks.
    pub fn build(self) -> Result<Append> {
        let layout = |operand: Operand| self.layouts[operand as usize].as_ref();
        let of = |operand| layout(operand).unwrap_or(&Layout::EMPTY);
        let [entries, row_count, ..] = of(Operand::K).shape;
        let heads = heads(layout(Operand::Q), of(Operand::K), of(Operand::V));
        let [pages, page_rows, ..] = of(Operand::KPages).shape;
        let (rows, batch) = self.rows.check(NEW_ROWS, entries, row_count)?;
        expect_countable("k", "batch", batch)?;

        // Where rows go.
        let by_lengths = self.before.is_given();
        let missing = |argument, rule| Err(Invalid::presence(argument, rule));
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
            return Err(Invalid::RotarySize {
                size: rotary.size(),
            });
        }
        if self.rotary.is_none() && (layout(Operand::Q).is_some() || self.positions.is_given()) {
            return missing("rotary", "is missing, but queries or positions are given");
        }
        if self.rotary.is_some() && !by_lengths && !self.positions.is_given() {
            return missing(
                "positions",
                "is missing: slots do not tell the places of rows",
            );
        }

        check_types(self.types)?;
        expect_scales(self.types.scaled(), self.scale_counts, heads.key_value)?;
        let token_count = entries.saturating_mul(row_count);
        let entry_count = batch.saturating_mul(self.columns);
        let slots = kept(self.slots, Operand::NewSlots, token_count)?;
        let table = kept(self.table, Operand::BlockTable, entry_count)?;
        let positions = kept(self.positions, Operand::Positions, token_count)?;
        if let Some(end) = self.rotary.as_ref().and_then(Rotary::table_rows) {
            match &positions {
                Numbers::Host(list) => check_positions(list, (&rows, batch, row_count), end)?,
                Numbers::Device(()) => {}
                Numbers::None => {
                    let lengths = before.used().on_host().or(self.known_lengths);
                    check_places(lengths.unwrap_or_default(), &rows, end)?;
                }
            }
        }
        let mut append = Append {
            types: self.types,
            layouts: self.layouts,
            slots,
            table,
            columns: self.columns,
            rows,
            batch,
            before,
            positions,
            wide_positions: self.wide_positions,
            rotary: self.rotary,
            expected: UNWANTED,
        };
        for operand in Operand::of(Operations::APPEND) {
            append.expected[operand] = append.expect(operand, self.scale_counts)?;
        }
        Ok(append)
    }
}

impl Append {
    /// Checks the layout of an operand and returns the requirements on its memory.
    fn expect(&self, operand: Operand, scale_counts: [usize; 2]) -> Result<Expected> {
        let argument = operand.name();
        let access = match operand {
            Operand::Q if self.layout(Operand::QOut).is_none() => Access::Write,
            _ if operand.is_written() => Access::Write,
            _ => Access::Read,
        };
        if let Kind::List(count) = operand.kind() {
            let token_count = self.k().batch().saturating_mul(self.k().rows());
            let list = |given: bool, on_host: bool, count: usize, size: u64| {
                Expected::list(argument, given, count, size, access).on_host(on_host)
            };
            let of = |numbers: &Numbers<Arc<[i32]>>, count: usize, size: u64| {
                list(numbers.is_given(), numbers.on_host().is_some(), count, size)
            };
            return Ok(match operand {
                Operand::NewSlots => {
                    let on_host = self.slots.on_host().is_some();
                    list(self.slots.is_given(), on_host, token_count, 8)
                }
                Operand::BlockTable => of(&self.table, self.batch.saturating_mul(self.columns), 4),
                Operand::RowOffsets => of(self.rows.offsets(), self.batch + 1, 4),
                Operand::RowLengths => of(self.rows.used(), self.batch, 4),
                Operand::KeyLengths => of(self.before.used(), self.batch, 4),
                Operand::Positions => {
                    let size = if self.wide_positions { 8 } else { 4 };
                    of(&self.positions, token_count, size)
                }
                _ if count == Count::Scales => {
                    let given = self.types.scaled().is_some();
                    let count = scale_counts[usize::from(operand == Operand::VScale)];
                    list(given, false, count, 4).of_type(ElementType::F32)
                }
                _ => match self.rotary.as_ref().map(Rotary::angles) {
                    Some(Angles::Tables { element, layout }) => {
                        angle_table(argument, *element, layout, self.types.q)?
                    }
                    _ => Expected::unwanted(argument),
                },
            });
        }
        let Some(layout) = self.layout(operand) else {
            return Ok(Expected::unwanted(argument));
        };
        let heads = self.heads();
        let [pages, page_rows, ..] = self.k_pages().shape;
        let [entries, row_count, ..] = self.k().shape;
        let of_pages = |size| [pages, page_rows, heads.key_value, size];
        let [key_size, value_size] = heads.dims();
        let shape = match operand {
            Operand::KPages => of_pages(key_size),
            Operand::VPages => {
                let (found, expected) = ([layout.head_dim()], [value_size]);
                expect_same(argument, found, ("v", expected), ["head size"])?;
                of_pages(value_size)
            }
            Operand::V => [entries, row_count, heads.key_value, value_size],
            Operand::K => self.k().shape,
            _ => [entries, row_count, heads.query, key_size],
        };
        let other = match operand {
            Operand::VPages => "k_pages",
            Operand::QOut => "q",
            _ => "k",
        };
        let dimensions = match operand {
            Operand::KPages | Operand::VPages => PAGE_DIMENSIONS,
            _ => DIMENSIONS,
        };
        expect_same(argument, layout.shape, (other, shape), dimensions)?;
        check_alone(argument, layout, access == Access::Write)?;
        let element = self.type_of(operand).unwrap_or(self.types.q);
        let size = element.size();
        Ok(Expected::tensor(argument, layout, size, access, size as u64).of_type(element))
    }

    /// The type of an operand's elements; `None` if they are not elements of tensors, such as whole numbers.
    pub fn type_of(&self, operand: Operand) -> Option<ElementType> {
        match (operand, operand.elements()) {
            (Operand::KPages | Operand::VPages, _) => Some(self.types.k),
            (_, Elements::Queries | Elements::Keys) => Some(self.types.q),
            (_, Elements::F32) => Some(ElementType::F32),
            (_, Elements::Angles) => match self.rotary.as_ref().map(Rotary::angles) {
                Some(Angles::Tables { element, .. }) => Some(*element),
                _ => None,
            },
            _ => None,
        }
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
        return Err(Invalid::ElementMismatch {
            argument,
            expected,
            found,
        });
    }
    let size = found.size();
    let expected = Expected::tensor(argument, layout, size, Access::Read, size as u64);
    Ok(expected.of_type(found))
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
            return Err(Invalid::Lengths {
                argument: KEYS.used.name(),
                index,
                rule: format!(
                    "is {length}, and {}, but there is room for {capacity}",
                    following(new)
                ),
            });
        }
    }
    Ok(())
}
