//! How a call is described and checked.

use crate::blocks::BlocksRequest;
use crate::call::Terms;
use crate::lengths::{KEYS, LengthsRequest, QUERIES, Source, expect_sequences};
use crate::pages::{BLOCK_TABLE, TableRequest};
use crate::slots::UNWANTED;
use crate::{
    AlibiShape, BlockLists, Blocks, Call, DIMENSIONS, DropoutState, ElementType, Elements, Heads,
    Invalid, Kind, Layout, Layouts, LengthElement, Numbers, Operand, Operations, PAGE_DIMENSIONS,
    Request, Result, SCALES, Scoring, Splits, TableLayout, Types, check_alone, expect_countable,
    expect_presence, expect_same, expect_scales,
};

/// Describes a [`Call`]; made by [`Call::builder`].
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct CallBuilder<'a> {
    terms: Terms,
    lengths: Requests<'a>,
}

/// The lengths and pages that a caller gives.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Requests<'a> {
    queries: LengthsRequest<'a>,
    keys: LengthsRequest<'a>,
    table: Option<TableRequest<'a>>,
    dropout: Request<'a>,
    blocks: BlocksRequest<'a>,
}

impl Requests<'_> {
    /// As [`CallBuilder::kept`].
    fn kept(&self) -> Option<Requests<'static>> {
        Some(Requests {
            queries: self.queries.kept()?,
            keys: self.keys.kept()?,
            table: match &self.table {
                Some(table) => Some(table.kept()?),
                None => None,
            },
            dropout: self.dropout.kept()?,
            blocks: self.blocks.kept()?,
        })
    }
}

impl Call {
    /// Starts the description of attention between tensors of these layouts and types; an [`ElementType`] stands for tensors that all have
    /// it.
    pub fn builder<'a>(
        q: &Layout,
        k: &Layout,
        v: &Layout,
        types: impl Into<Types>,
    ) -> CallBuilder<'a> {
        CallBuilder::new(q, k, v, types.into())
    }
}

impl<'a> CallBuilder<'a> {
    pub(super) fn new(q: &Layout, k: &Layout, v: &Layout, types: Types) -> Self {
        let mut layouts = Layouts::default();
        for (operand, layout) in [(Operand::Q, q), (Operand::K, k), (Operand::V, v)] {
            layouts[operand as usize] = Some(*layout);
        }
        CallBuilder {
            terms: Terms {
                types,
                layouts,
                scoring: Scoring::default(),
                splits: Splits::default(),
                scale_counts: [1, 1],
                want_lse: true,
                aligned: true,
                aligned_scores: true,
            },
            lengths: Requests::default(),
        }
    }

    /// The layout of a tensor. A bias and a key mask are `[batch, queries, heads, keys]`, where batch, queries and heads may be 1 for all;
    /// they become options, and take dense tensors. Default of the output: dense, in the storage order of `q`.
    ///
    /// Values of keys that a key mask hides count 0 times, so they must be finite: 0 times a NaN or an infinity is NaN. Lengths hide keys
    /// whose values may be anything.
    pub fn layout(mut self, operand: Operand, layout: Layout) -> Self {
        self.set_layout(operand, layout);
        self
    }

    /// [`layout`](Self::layout) in place.
    pub fn set_layout(&mut self, operand: Operand, layout: Layout) {
        if let Some(slot) = self.terms.layouts.get_mut(operand as usize) {
            *slot = Some(layout);
        }
        if operand.kind() == Kind::Scores {
            self.terms.scoring = self.terms.scoring.with(operand);
        }
    }

    /// The number of values of a list that is an option, or of scales. As many slopes as q has heads are one for each
    /// head; more, or none for an empty batch, are one for each batch entry and head.
    pub fn count(mut self, operand: Operand, count: usize) -> Self {
        let terms = &mut self.terms;
        if let Some(side) = SCALES.iter().position(|scale| *scale == operand) {
            terms.scale_counts[side] = count;
            return self;
        }
        if operand == Operand::Slopes {
            let heads = terms.layouts[Operand::Q as usize].map_or(0, |q| q.heads());
            terms.scoring.alibi = Some(match (1..=heads).contains(&count) {
                true => AlibiShape::PerHead,
                false => AlibiShape::PerBatchHead,
            });
        }
        terms.scoring = terms.scoring.with(operand);
        self
    }

    /// Row offsets, used lengths, lists of blocks, the words of a [`DropoutState`], or with [`table_layout`](Self::table_layout) the
    /// entries of a block table.
    pub fn numbers(mut self, operand: Operand, numbers: Request<'a>) -> Self {
        match operand {
            Operand::QueryOffsets => self.lengths.queries.set_offsets(numbers),
            Operand::KeyOffsets => self.lengths.keys.set_offsets(numbers),
            Operand::QueryLengths => self.lengths.queries.used = numbers,
            Operand::KeyLengths => self.lengths.keys.used = numbers,
            Operand::DropoutState => self.lengths.dropout = numbers,
            Operand::BlockOffsets => self.lengths.blocks.offsets = numbers,
            Operand::BlockIndices => self.lengths.blocks.indices = numbers,
            Operand::BlockTable => {
                let layout = self
                    .lengths
                    .table
                    .map_or([0, 0].into(), |table| table.layout);
                self.lengths.table = Some(TableRequest {
                    entries: numbers,
                    layout,
                });
            }
            _ => {}
        }
        self
    }

    /// A list by its operand: [`numbers`](Self::numbers), or [`count`](Self::count) where only the count matters.
    pub fn given(self, operand: Operand, request: Request<'a>) -> Self {
        match operand.elements() {
            Elements::I32 => self.numbers(operand, request),
            _ => self.count(operand, request.count().unwrap_or(0)),
        }
    }

    /// The layout of the block table whose entries are given by [`numbers`](Self::numbers).
    pub fn table_layout(mut self, layout: impl Into<TableLayout>) -> Self {
        let entries = self
            .lengths
            .table
            .map_or(Numbers::None, |table| table.entries);
        self.lengths.table = Some(TableRequest {
            entries,
            layout: layout.into(),
        });
        self
    }

    /// How the blocks are listed whose numbers are given by [`numbers`](Self::numbers): which blocks of keys each block of queries sees.
    /// The kernels clamp lists on the device: a number below 0 ends a row, and one past the last block of a sequence's keys is left out.
    pub fn block_lists(mut self, lists: BlockLists) -> Self {
        self.terms.scoring.blocks = Some(lists);
        self
    }

    /// The options, besides those that follow from operands that were given before. Default: none.
    pub fn scoring(mut self, scoring: Scoring) -> Self {
        let given = self.terms.scoring;
        self.terms.scoring = Scoring {
            alibi: scoring.alibi.or(given.alibi),
            blocks: given.blocks.or(scoring.blocks),
            operands: scoring.operands | given.operands,
            ..scoring
        };
        self
    }

    /// Where keys are cut into ranges that are computed apart. Default: evenly.
    pub fn splits(mut self, splits: Splits) -> Self {
        self.terms.splits = splits;
        self
    }

    /// Queries and keys are packed: [`packed_queries`](Self::packed_queries) and [`packed_keys`](Self::packed_keys).
    pub fn packed(self, query_offsets: &'a [i32], key_offsets: &'a [i32]) -> Self {
        self.packed_queries(query_offsets).packed_keys(key_offsets)
    }

    /// The queries of different sequences lie one after the other along the rows of a q whose batch extent is 1. Sequence `b`
    /// has rows `offsets[b]..offsets[b + 1]`. Rows past the last offset are padding: never read, never written.
    pub fn packed_queries(self, offsets: &'a [i32]) -> Self {
        self.numbers(Operand::QueryOffsets, Numbers::Host(offsets))
    }

    /// As [`packed_queries`](Self::packed_queries), of k and v.
    pub fn packed_keys(self, offsets: &'a [i32]) -> Self {
        self.numbers(Operand::KeyOffsets, Numbers::Host(offsets))
    }

    /// Limits each sequence's queries to the first `lengths[b]`.
    pub fn query_lengths(self, lengths: &'a [i32]) -> Self {
        self.numbers(Operand::QueryLengths, Numbers::Host(lengths))
    }

    /// Limits each sequence's keys to the first `lengths[b]`. The bottom-right alignment of masks and ALiBi counts from
    /// them.
    pub fn key_lengths(self, lengths: &'a [i32]) -> Self {
        self.numbers(Operand::KeyLengths, Numbers::Host(lengths))
    }

    /// The queries are packed, and their `sequences + 1` offsets are on the device; no sequence is taken to be longer than
    /// `longest`. The kernels clamp what they read there.
    pub fn device_query_offsets(mut self, sequences: usize, longest: usize) -> Self {
        self.lengths.queries.packed_on_device(sequences, longest);
        self
    }

    /// As [`device_query_offsets`](Self::device_query_offsets), of k and v.
    pub fn device_key_offsets(mut self, sequences: usize, longest: usize) -> Self {
        self.lengths.keys.packed_on_device(sequences, longest);
        self
    }

    /// As [`query_lengths`](Self::query_lengths), on the device.
    pub fn device_query_lengths(self, sequences: usize) -> Self {
        self.numbers(Operand::QueryLengths, Numbers::Device(sequences))
    }

    /// As [`key_lengths`](Self::key_lengths), on the device.
    pub fn device_key_lengths(self, sequences: usize) -> Self {
        self.numbers(Operand::KeyLengths, Numbers::Device(sequences))
    }

    /// No sequence is taken to have more queries than this. Fewer than the rows of a dense tensor are an error where no lengths are given.
    pub fn longest_queries(mut self, longest: usize) -> Self {
        self.lengths.queries.longest = Some(longest);
        self
    }

    /// No sequence is taken to have more keys than this. Where only the device knows the lengths, a bound nearer to them than
    /// the rows there are lets a better kernel be chosen, and less work be launched. Fewer than the rows of a dense tensor are an error where
    /// no lengths are given.
    pub fn longest_keys(mut self, longest: usize) -> Self {
        self.lengths.keys.longest = Some(longest);
        self
    }

    /// [`longest_queries`](Self::longest_queries) and [`longest_keys`](Self::longest_keys), where they are known.
    pub fn longest(mut self, [queries, keys]: [Option<usize>; 2]) -> Self {
        self.lengths.queries.longest = queries.or(self.lengths.queries.longest);
        self.lengths.keys.longest = keys.or(self.lengths.keys.longest);
        self
    }

    /// Keys and values are paged: k and v have layouts of pages, rows of a page (1 to 256), heads, head size, and the table has
    /// for each sequence the numbers of its pages in order. Its entries past the last key of a sequence mean nothing, and neither
    /// do the rows of a page past it. [`key_lengths`](Self::key_lengths) say how many keys there are; without them, as many as
    /// the table has pages for.
    pub fn block_table<L: LengthElement>(
        self,
        table: &'a [L],
        layout: impl Into<TableLayout>,
    ) -> Self {
        self.numbers(
            Operand::BlockTable,
            Numbers::Host(bytemuck::cast_slice(table)),
        )
        .table_layout(layout)
    }

    /// As [`block_table`](Self::block_table), with a table of `i32` or `u32` on the device. The kernels clamp the numbers that
    /// they read there.
    pub fn device_block_table(self, layout: impl Into<TableLayout>) -> Self {
        let layout = layout.into();
        let entries = Numbers::Device(layout.elements().reach());
        self.numbers(Operand::BlockTable, entries)
            .table_layout(layout)
    }

    /// The builder for keeping, to find the call again by; `None` if it has a list on the host, which is another in most calls.
    pub fn kept(&self) -> Option<CallBuilder<'static>> {
        Some(CallBuilder {
            lengths: self.lengths.kept()?,
            terms: self.terms,
        })
    }

    /// The type of the bias's elements: that of the queries, or `f32`. Default: the queries'.
    ///
    /// A bias of `f32` for queries of another type has no backward pass.
    pub fn bias_type(mut self, element: ElementType) -> Self {
        let scoring = &mut self.terms.scoring;
        *scoring = match element {
            ElementType::F32 => scoring.bias_f32(),
            _ => scoring.bias_as_queries(),
        };
        self
    }

    /// Layout of the output: [`layout`](Self::layout).
    pub fn out(self, out: Layout) -> Self {
        self.layout(Operand::Out, out)
    }

    /// Sets whether to compute the lse. Default: yes.
    pub fn want_lse(mut self, want_lse: bool) -> Self {
        self.terms.want_lse = want_lse;
        self
    }

    /// For tensors that may start at addresses that are not multiples of 16 bytes: keeps kernels away that need one.
    pub fn unaligned_addresses(self) -> Self {
        self.aligned_addresses(false)
    }

    /// Sets whether all tensors start at multiples of 16 bytes, as they are taken to by default; see
    /// [`unaligned_addresses`](Self::unaligned_addresses).
    pub fn aligned_addresses(mut self, aligned: bool) -> Self {
        self.terms.aligned = aligned;
        self.aligned_scores(aligned)
    }

    /// Sets whether the bias and the key mask start at multiples of 16 bytes: as [`aligned_addresses`](Self::aligned_addresses) of these
    /// alone. Few kernels need it.
    pub fn aligned_scores(mut self, aligned: bool) -> Self {
        self.terms.aligned_scores = aligned;
        self
    }

    /// Checks everything and freezes the description.
    ///
    /// # Errors
    /// An [`Invalid`] that names the argument and the rule it breaks.
    pub fn build(self) -> Result<Call> {
        let layouts = &self.terms.layouts;
        let of = |operand: Operand| layouts[operand as usize].unwrap_or(Layout::EMPTY);
        let (q, k, v) = (of(Operand::Q), of(Operand::K), of(Operand::V));
        let heads = Heads::of(&q, &k, &v);
        let out = layouts[Operand::Out as usize].unwrap_or_else(|| q.dense_with(v.head_dim()));
        let tensors = [("q", &q), ("k", &k), ("v", &v), ("out", &out)];
        heads.validate()?;
        check_types(self.terms.types)?;
        let [entries, query_rows, ..] = q.shape;
        let [key_entries, key_rows, ..] = k.shape;
        let like_keys = |size| [key_entries, key_rows, heads.key_value, size];
        let key_names = match self.lengths.table {
            Some(_) => PAGE_DIMENSIONS,
            None => DIMENSIONS,
        };
        expect_same("k", k.shape, ("q", like_keys(heads.dim)), key_names)?;
        expect_same("v", v.shape, ("k", like_keys(v.head_dim())), key_names)?;
        let like_queries = |size| [entries, query_rows, heads.query, size];
        expect_same(
            "out",
            out.shape,
            ("q", like_queries(out.head_dim())),
            DIMENSIONS,
        )?;
        expect_same(
            "out",
            out.shape,
            ("v", like_queries(v.head_dim())),
            DIMENSIONS,
        )?;
        for (argument, layout) in tensors {
            check_alone(argument, layout, argument == "out")?;
        }
        let scaled = self.terms.types.scaled();
        expect_scales(scaled, self.terms.scale_counts, heads.key_value)?;
        self.terms.scoring.validate()?;
        self.terms.splits.validate()?;
        let state = Operand::DropoutState;
        let has_state = self.lengths.dropout.is_given();
        expect_presence(state.name(), self.terms.scoring.has(state), has_state)?;
        match self.lengths.dropout {
            Numbers::Host(words) => drop(DropoutState::check(state.name(), words)?),
            Numbers::Device(found) if found != DropoutState::WORDS => {
                return Err(Invalid::count(state.name(), found, DropoutState::WORDS));
            }
            _ => {}
        }
        let (queries, batch) =
            self.lengths
                .queries
                .check_rows(QUERIES, "longest_queries", entries, query_rows)?;
        expect_countable("q", "batch", batch)?;
        let of_queries = (self.lengths.queries.source(QUERIES), batch);
        let (keys, pages) = match self.lengths.table {
            None => {
                let (keys, key_batch) =
                    self.lengths
                        .keys
                        .check_rows(KEYS, "longest_keys", key_entries, key_rows)?;
                expect_sequences((self.lengths.keys.source(KEYS), key_batch), of_queries)?;
                (keys, None)
            }
            Some(table) => {
                let of_keys = (Source::Tensor(BLOCK_TABLE), table.layout.shape[0]);
                expect_sequences(of_keys, of_queries)?;
                let (keys, pages) = table.check(&k, self.lengths.keys)?;
                (keys, Some(pages))
            }
        };
        let mut terms = self.terms;
        if terms.types.q == ElementType::F32 || !terms.scoring.has(Operand::Bias) {
            terms.scoring = terms.scoring.bias_as_queries();
        }
        let of_blocks = self.lengths.blocks;
        for (operand, numbers) in [
            (Operand::BlockOffsets, of_blocks.offsets),
            (Operand::BlockIndices, of_blocks.indices),
        ] {
            let has = terms.scoring.has(operand);
            expect_presence(operand.name(), has, numbers.is_given())?;
        }
        let key_rows = pages.is_none().then_some(keys.rows);
        let blocks = match terms.scoring.blocks {
            Some(lists) => {
                Some(of_blocks.check(lists, [batch, heads.query], &queries, key_rows)?)
            }
            None => None,
        };
        terms.scoring.blocks = blocks.as_ref().map(Blocks::lists);
        let packed = queries.is_packed() || keys.is_packed();
        let score_tensor = |operand: Operand| -> Result<Option<Layout>> {
            let (argument, layout) = (operand.name(), layouts[operand as usize]);
            expect_presence(argument, self.terms.scoring.has(operand), layout.is_some())?;
            match layout {
                Some(_) if packed => Err(Invalid::presence(
                    argument,
                    "needs dense tensors, but the sequences are packed",
                )),
                Some(layout) => {
                    // For paged keys only the length of the longest sequence is known; more columns do no harm.
                    let columns = match &pages {
                        Some(_) => layout.shape[3].max(keys.rows),
                        None => keys.rows,
                    };
                    let shape = [batch, query_rows, heads.query, columns];
                    layout.broadcast_to(argument, shape).map(Some)
                }
                None => Ok(None),
            }
        };
        terms.layouts[Operand::Out as usize] = Some(out);
        let of_scores = |operand: &Operand| operand.kind() == Kind::Scores;
        for operand in Operand::of(Operations::FORWARD).filter(of_scores) {
            terms.layouts[operand as usize] = score_tensor(operand)?;
        }
        let mut call = Call {
            terms,
            batch,
            queries,
            keys,
            pages,
            blocks,
            dropout: self.lengths.dropout.keep(),
            given: 0,
            expected: Box::new(UNWANTED),
        };
        for operand in Operand::of(Operations::FORWARD) {
            if call.describes(operand) {
                call.given |= 1 << operand as u64;
                call.expected[operand] = call.expect(operand);
            }
        }
        Ok(call)
    }
}

/// Checks that kernels for these types can exist: all tensors have the type of q, but that keys and values may both have a scaled one.
pub fn check_types(types: Types) -> Result<()> {
    let Types { q, k, v, out } = types;
    let mismatch = |argument, expected: ElementType, found: ElementType| match found == expected {
        true => Ok(()),
        false => Err(Invalid::ElementMismatch {
            argument,
            expected,
            found,
        }),
    };
    if q.is_scaled() {
        return Err(Invalid::ScaledQueries { element: q });
    }
    if !k.is_scaled() {
        mismatch("k", q, k)?;
    }
    mismatch("v", k, v)?;
    mismatch("out", q, out)
}

#[cfg(test)]
mod tests;
