//! How a call is described and checked.

use crate::call::{Call, Terms};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::extents::{check_alone, expect_countable, expect_same};
use crate::heads::Heads;
use crate::layout::{DIMENSIONS, Layout, PAGE_DIMENSIONS};
use crate::lengths::{KEYS, LengthsRequest, QUERIES, Request};
use crate::operands::LengthElement;
use crate::pages::{BLOCK_TABLE, TableLayout, TableRequest};
use crate::quantized::Quantization;
use crate::scoring::Scoring;
use crate::splits::Splits;

/// Describes a [`Call`]; made by [`Call::builder`].
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct CallBuilder<'a> {
    terms: Terms,
    out: Option<Layout>,
    lengths: Requests<'a>,
}

/// What a caller says of lengths and pages.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Requests<'a> {
    queries: LengthsRequest<'a>,
    keys: LengthsRequest<'a>,
    table: Option<TableRequest<'a>>,
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
        })
    }
}

impl<'a> CallBuilder<'a> {
    pub(super) fn new(q: &Layout, k: &Layout, v: &Layout, element: ElementType) -> Self {
        CallBuilder {
            terms: Terms {
                element,
                q: *q,
                k: *k,
                v: *v,
                bias: None,
                key_mask: None,
                scoring: Scoring::default(),
                splits: Splits::default(),
                quantized: None,
                want_lse: true,
                aligned: true,
            },
            out: None,
            lengths: Requests::default(),
        }
    }

    /// The options. Default: none.
    pub fn scoring(mut self, scoring: Scoring) -> Self {
        self.terms.scoring = scoring;
        self
    }

    /// Where keys are cut into ranges that are computed apart. Default: evenly.
    pub fn splits(mut self, splits: Splits) -> Self {
        self.terms.splits = splits;
        self
    }

    /// How keys and values are quantized. Default: they are of the queries' type.
    pub fn quantized(mut self, quantized: impl Into<Option<Quantization>>) -> Self {
        self.terms.quantized = quantized.into();
        self
    }

    /// Queries and keys are packed: [`packed_queries`](Self::packed_queries) and [`packed_keys`](Self::packed_keys).
    pub fn packed(self, query_offsets: &'a [i32], key_offsets: &'a [i32]) -> Self {
        self.packed_queries(query_offsets).packed_keys(key_offsets)
    }

    /// The queries of different sequences lie one after the other along the rows of a q whose batch extent is 1. Sequence `b`
    /// has rows `offsets[b]..offsets[b + 1]`. Rows past the last offset are padding: never read, never written.
    pub fn packed_queries(mut self, offsets: &'a [i32]) -> Self {
        self.lengths.queries.offsets = Request::Host(offsets);
        self
    }

    /// As [`packed_queries`](Self::packed_queries), of k and v.
    pub fn packed_keys(mut self, offsets: &'a [i32]) -> Self {
        self.lengths.keys.offsets = Request::Host(offsets);
        self
    }

    /// Of each sequence's queries only the first `lengths[b]` are computed.
    pub fn query_lengths(mut self, lengths: &'a [i32]) -> Self {
        self.lengths.queries.used = Request::Host(lengths);
        self
    }

    /// Of each sequence's keys only the first `lengths[b]` exist. The bottom-right alignment of masks and ALiBi counts from
    /// them.
    pub fn key_lengths(mut self, lengths: &'a [i32]) -> Self {
        self.lengths.keys.used = Request::Host(lengths);
        self
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
    pub fn device_query_lengths(mut self, sequences: usize) -> Self {
        self.lengths.queries.used = Request::Device(sequences);
        self
    }

    /// As [`key_lengths`](Self::key_lengths), on the device.
    pub fn device_key_lengths(mut self, sequences: usize) -> Self {
        self.lengths.keys.used = Request::Device(sequences);
        self
    }

    /// No sequence is taken to have more keys than this. Where only the device knows the lengths, a bound nearer to them than
    /// the rows there are lets a better kernel be chosen, and less work be launched.
    pub fn longest_keys(mut self, longest: usize) -> Self {
        self.lengths.keys.longest = Some(longest);
        self
    }

    /// Keys and values are paged: k and v have layouts of pages, rows of a page (1 to 256), heads, head size, and the table has
    /// for each sequence the numbers of its pages in order. Its entries past the last key of a sequence mean nothing, and neither
    /// do the rows of a page past it. [`key_lengths`](Self::key_lengths) say how many keys there are; without them, as many as
    /// the table has pages for.
    pub fn block_table<L: LengthElement>(
        mut self,
        table: &'a [L],
        layout: impl Into<TableLayout>,
    ) -> Self {
        self.lengths.table = Some(TableRequest {
            entries: Request::Host(bytemuck::cast_slice(table)),
            layout: layout.into(),
        });
        self
    }

    /// As [`block_table`](Self::block_table), with a table of `i32` or `u32` on the device. The kernels clamp the numbers that
    /// they read there.
    pub fn device_block_table(mut self, layout: impl Into<TableLayout>) -> Self {
        let layout = layout.into();
        self.lengths.table = Some(TableRequest {
            entries: Request::Device(layout.elements().reach()),
            layout,
        });
        self
    }

    pub(crate) fn lengths(
        mut self,
        queries: LengthsRequest<'a>,
        keys: LengthsRequest<'a>,
        table: Option<TableRequest<'a>>,
    ) -> Self {
        self.lengths = Requests {
            queries,
            keys,
            table,
        };
        self
    }

    /// The same for keeping, to find the call again by; `None` if it has a list on the host, which is another in most calls.
    pub(crate) fn kept(&self) -> Option<CallBuilder<'static>> {
        Some(CallBuilder {
            lengths: self.lengths.kept()?,
            terms: self.terms,
            out: self.out,
        })
    }

    /// Layout of the output. Default: dense, in the storage order of `q`.
    pub fn out(mut self, out: Layout) -> Self {
        self.out = Some(out);
        self
    }

    /// Layout of the bias: shape `[batch, queries, heads, keys]`, where batch, queries and heads may be 1 for all. Needed
    /// exactly if the options have one, which takes dense tensors.
    pub fn bias(mut self, bias: Layout) -> Self {
        self.terms.bias = Some(bias);
        self
    }

    /// Layout of the key mask, as [`bias`](Self::bias). Values of hidden keys count 0 times, so they must be finite: 0 times a NaN or an
    /// infinity is NaN. Lengths hide keys whose values may be anything.
    pub fn key_mask(mut self, key_mask: Layout) -> Self {
        self.terms.key_mask = Some(key_mask);
        self
    }

    /// Whether to compute the lse. Default: yes.
    pub fn want_lse(mut self, want_lse: bool) -> Self {
        self.terms.want_lse = want_lse;
        self
    }

    /// For tensors that may start at addresses that are not multiples of 16 bytes: keeps kernels away that need one.
    pub fn unaligned_addresses(mut self) -> Self {
        self.terms.aligned = false;
        self
    }

    /// Checks everything and freezes the description.
    ///
    /// # Errors
    /// An [`Error`] that names the argument and the rule it breaks.
    pub fn build(self) -> Result<Call> {
        let Terms { q, k, v, .. } = self.terms;
        let heads = Heads::of(&q, &k, &v);
        let out = { self.out }.unwrap_or_else(|| q.dense_with(heads.value_dim));
        let tensors = [("q", &q), ("k", &k), ("v", &v), ("out", &out)];
        heads.validate()?;
        let [entries, query_rows, ..] = q.shape;
        let [key_entries, key_rows, ..] = k.shape;
        let like_keys = |size| [key_entries, key_rows, heads.key_value, size];
        let key_names = match self.lengths.table {
            Some(_) => PAGE_DIMENSIONS,
            None => DIMENSIONS,
        };
        expect_same("k", k.shape, ("q", like_keys(heads.dim)), key_names)?;
        expect_same("v", v.shape, ("k", like_keys(heads.value_dim)), key_names)?;
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
            ("v", like_queries(heads.value_dim)),
            DIMENSIONS,
        )?;
        for (argument, layout) in tensors {
            check_alone(argument, layout, argument == "out")?;
        }
        if let Some(quantized) = self.terms.quantized {
            quantized.check(heads.key_value)?;
        }
        self.terms.scoring.validate()?;
        self.terms.splits.validate()?;
        let (queries, batch) = self.lengths.queries.check(QUERIES, entries, query_rows)?;
        expect_countable("q", "batch", batch)?;
        let one_batch = |argument, found| expect_same(argument, [found], ("q", [batch]), ["batch"]);
        let (keys, pages) = match self.lengths.table {
            None => {
                let (keys, key_batch) = self.lengths.keys.check(KEYS, key_entries, key_rows)?;
                one_batch("k", key_batch)?;
                (keys, None)
            }
            Some(table) => {
                one_batch(BLOCK_TABLE, table.layout.shape[0])?;
                let (keys, pages) = table.check(&k, self.lengths.keys)?;
                (keys, Some(pages))
            }
        };
        let packed = queries.is_packed() || keys.is_packed();
        let score_tensor = |argument, wanted, layout: Option<Layout>| {
            super::expect_presence(argument, wanted, layout.is_some())?;
            match layout {
                Some(_) if packed => Err(Error::Presence {
                    argument,
                    rule: "needs dense tensors, but the sequences are packed",
                }),
                Some(layout) => {
                    // Of paged keys there is no number but that of the longest sequence; more columns do no harm.
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
        Ok(Call {
            terms: Terms {
                bias: score_tensor("bias", self.terms.scoring.bias, self.terms.bias)?,
                key_mask: score_tensor(
                    "key_mask",
                    self.terms.scoring.key_mask,
                    self.terms.key_mask,
                )?,
                ..self.terms
            },
            out,
            batch,
            queries,
            keys,
            pages,
        })
    }
}

/// Checks that a tensor lies as the call was told.
pub(crate) fn check_layout(
    argument: &'static str,
    found: &Layout,
    expected: &Layout,
) -> Result<()> {
    expect_same(
        argument,
        found.shape,
        ("the call", expected.shape),
        DIMENSIONS,
    )?;
    if found.strides != expected.strides {
        return Err(Error::StridesDiffer {
            argument,
            expected: expected.strides,
            found: found.strides,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
