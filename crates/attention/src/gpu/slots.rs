//! The places in memory that a forward launch reads and writes.

use crate::call::Call;
use crate::error::Result;
use crate::gpu::arguments::{Addresses, Argument};
use crate::gpu::memory::{Access, Expected, Strided, check};
use crate::layout::Layout;
use crate::lengths::Numbers;

impl Addresses {
    /// Checks the addresses against what a call expects; see [`check`].
    pub(crate) fn check(&self, expected: &[Expected; Argument::COUNT]) -> Result<()> {
        check(expected, &self.list())
    }
}

impl Call {
    /// The arguments of a raw launch, in the order of [`Argument`]: the name of each, and the bytes that its memory must have from its
    /// address on; `None` if it must not be given. For those who launch on memory whose size they know.
    pub fn memory(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> {
        expected(self, false).into_iter().map(|slot| slot.needed())
    }
}

/// What a call expects of each argument. `needs_alignment`: the kernels move 16 bytes at a time.
pub(crate) fn expected(call: &Call, needs_alignment: bool) -> [Expected; Argument::COUNT] {
    use Access::{Read, Write};
    let size = call.element().size() as u64;
    let (queries, keys, scoring) = (call.queries(), call.keys(), call.scoring());
    let batch = call.batch();
    Argument::ALL.map(|argument| {
        let name = argument.name();
        let tensor = |layout: &Layout, access| {
            let alignment = if needs_alignment { 16 } else { size };
            Expected::tensor(name, layout, size as usize, access, alignment)
        };
        let list =
            |wanted: bool, count: usize, access| Expected::list(name, wanted, count, 4, access);
        let key_size = call.key_size();
        let keys_of = |layout: &Layout| {
            let alignment = if needs_alignment { 16 } else { key_size as u64 };
            Expected::tensor(name, layout, key_size, Read, alignment)
        };
        let scales = |count: Option<usize>| list(count.is_some(), count.unwrap_or(0), Read);
        let lengths = |numbers: &Numbers, count: usize| {
            list(numbers.is_given(), count, Read).on_host(numbers.on_host().is_some())
        };
        let score = |layout: Option<&Layout>, size: u64| Expected {
            bytes: layout.map_or(Strided::list(0), |layout| Strided::elements(layout, size)),
            ..Expected::list(name, layout.is_some(), 0, size, Read)
        };
        match argument {
            Argument::Q => tensor(call.q(), Read),
            Argument::K => keys_of(call.k()),
            Argument::V => keys_of(call.v()),
            Argument::Out => tensor(call.out(), Write),
            Argument::Lse => list(call.wants_lse(), call.lse_len(), Write),
            Argument::QueryOffsets => lengths(queries.offsets(), batch + 1),
            Argument::KeyOffsets => lengths(keys.offsets(), batch + 1),
            Argument::QueryLengths => lengths(queries.used(), batch),
            Argument::KeyLengths => lengths(keys.used(), batch),
            Argument::Slopes => list(
                scoring.alibi.is_some(),
                scoring.slope_count(batch, call.heads().query),
                Read,
            ),
            Argument::Sinks => list(scoring.sinks, call.heads().query, Read),
            Argument::Bias => score(call.bias(), size),
            Argument::KeyMask => score(call.key_mask(), 1),
            Argument::KScale => scales(call.quantized().map(|each| each.k_scales)),
            Argument::VScale => scales(call.quantized().map(|each| each.v_scales)),
            Argument::BlockTable => {
                let table = call.pages();
                let bytes = table.map_or(Strided::list(0), |pages| {
                    Strided::elements(&pages.layout().elements(), 4)
                });
                let expected = Expected {
                    bytes,
                    ..list(table.is_some(), 0, Read)
                };
                expected.on_host(table.is_some_and(|pages| pages.table().on_host().is_some()))
            }
        }
    })
}
