//! The places in memory that a forward launch reads and writes.

use crate::call::Call;
use crate::error::Result;
use crate::gpu::memory::{Access, Expected, Strided, check};
use crate::layout::Layout;
use crate::lengths::Numbers;

/// Device addresses of one launch; 0 is "not given".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Addresses {
    /// Queries.
    pub q: u64,
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
    /// Receives the output. Gaps between strided rows, and rows that no sequence owns, are left alone.
    pub out: u64,
    /// Receives the lse as `f32`, `[batch, heads, length]`; for packed queries `[heads, rows]`.
    pub lse: u64,
    /// `batch + 1` row offsets of packed queries, as `i32` or `u32`.
    pub query_offsets: u64,
    /// `batch + 1` row offsets of packed keys and values.
    pub key_offsets: u64,
    /// Used rows of each sequence's queries.
    pub query_lengths: u64,
    /// Used rows of each sequence's keys and values.
    pub key_lengths: u64,
    /// ALiBi slopes as `f32`.
    pub slopes: u64,
    /// Sinks as `f32`, one per query head.
    pub sinks: u64,
    /// The additive bias, in the tensors' element type.
    pub bias: u64,
    /// The key mask, a byte each; 0 hides.
    pub key_mask: u64,
    /// Numbers of the pages of keys and values, as `i32` or `u32`.
    pub block_table: u64,
}

/// How many slots there are.
pub(crate) const SLOTS: usize = 14;

impl Addresses {
    /// In the order of [`expected`].
    pub(crate) fn list(&self) -> [u64; SLOTS] {
        [
            self.q,
            self.k,
            self.v,
            self.out,
            self.lse,
            self.query_offsets,
            self.key_offsets,
            self.query_lengths,
            self.key_lengths,
            self.slopes,
            self.sinks,
            self.bias,
            self.key_mask,
            self.block_table,
        ]
    }

    pub(crate) fn from_list(list: [u64; SLOTS]) -> Self {
        let [
            q,
            k,
            v,
            out,
            lse,
            query_offsets,
            key_offsets,
            query_lengths,
            key_lengths,
            slopes,
            sinks,
            bias,
            key_mask,
            block_table,
        ] = list;
        Addresses {
            q,
            k,
            v,
            out,
            lse,
            query_offsets,
            key_offsets,
            query_lengths,
            key_lengths,
            slopes,
            sinks,
            bias,
            key_mask,
            block_table,
        }
    }

    /// Checks the addresses against what a call expects; see [`check`].
    pub(crate) fn check(&self, expected: &[Expected; SLOTS]) -> Result<()> {
        check(expected, &self.list())
    }
}

impl Call {
    /// The arguments of a raw launch, in the order of [`Addresses`]: the name of each, and the bytes that its memory must have from its
    /// address on; `None` if it must not be given. For those who launch on memory whose size they know.
    pub fn memory(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> {
        expected(self, false).into_iter().map(|slot| slot.needed())
    }
}

/// What a call expects, in the order of [`Addresses::list`]. `needs_alignment`: the kernels move 16 bytes at a time.
pub(crate) fn expected(call: &Call, needs_alignment: bool) -> [Expected; SLOTS] {
    use Access::{Read, Write};
    let element = call.element();
    let size = element.size() as u64;
    let row_alignment = if needs_alignment { 16 } else { size };
    let tensor = |name, layout: &Layout, access| {
        Expected::tensor(name, layout, element, access, row_alignment)
    };
    let list =
        |name, wanted: bool, count: usize, access| Expected::list(name, wanted, count, 4, access);
    let lengths = |name, numbers: &Numbers, count: usize| {
        list(name, numbers.is_given(), count, Read).on_host(numbers.on_host().is_some())
    };
    let score = |name, layout: Option<&Layout>, size: u64| Expected {
        bytes: layout.map_or(Strided::list(0), |layout| Strided::elements(layout, size)),
        ..Expected::list(name, layout.is_some(), 0, size, Read)
    };
    let (queries, keys, scoring) = (call.queries(), call.keys(), call.scoring());
    let batch = call.batch();
    [
        tensor("q", call.q(), Read),
        tensor("k", call.k(), Read),
        tensor("v", call.v(), Read),
        tensor("out", call.out(), Write),
        list("lse", call.wants_lse(), call.lse_len(), Write),
        lengths("query_offsets", queries.offsets(), batch + 1),
        lengths("key_offsets", keys.offsets(), batch + 1),
        lengths("query_lengths", queries.used(), batch),
        lengths("key_lengths", keys.used(), batch),
        list(
            "alibi_slopes",
            scoring.alibi.is_some(),
            scoring.slope_count(batch, call.heads()),
            Read,
        ),
        list("sinks", scoring.sinks, call.heads(), Read),
        score("bias", call.bias(), size),
        score("key_mask", call.key_mask(), 1),
        Expected {
            bytes: call.pages().map_or(Strided::list(0), |pages| {
                Strided::elements(&pages.layout().elements(), 4)
            }),
            ..list("block_table", call.pages().is_some(), 0, Read)
        }
        .on_host(
            call.pages()
                .is_some_and(|pages| pages.table().on_host().is_some()),
        ),
    ]
}
