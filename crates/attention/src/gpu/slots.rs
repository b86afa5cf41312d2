//! The places in memory that a forward launch reads and writes.

use warptile_kernels::{ElementType, Kind, Operand, Operations, Slots};

use crate::call::Call;
use crate::gpu::memory::{Access, Expected, Strided};
use crate::numbers::Numbers;

impl Call {
    /// The operands of a raw launch, each with the bytes that its memory must have from its address on; `None` if it must not be given. For
    /// those who launch on memory whose size they know.
    pub fn memory(&self) -> impl Iterator<Item = (Operand, Option<u64>)> {
        let expected = expected(self, false);
        Operand::of(Operations::FORWARD).map(move |operand| (operand, expected[operand].needed()))
    }
}

/// What a call expects of each operand. `needs_alignment`: the kernels move 16 bytes at a time.
pub(crate) fn expected(call: &Call, needs_alignment: bool) -> Slots<Expected> {
    Slots::from_fn(|operand| {
        let element = call.type_of(operand);
        let is_ours = operand.operations().meet(Operations::FORWARD);
        let wanted = is_ours && call.has(operand);
        let size = match operand.kind() {
            Kind::Scores if element.is_none() => 1,
            _ => element.map_or(4, ElementType::size) as u64,
        };
        let bytes = match (call.layout(operand), operand) {
            (Some(layout), _) if operand.moves_rows() => Strided::rows(layout, size),
            (Some(layout), _) => Strided::elements(layout, size),
            (None, Operand::BlockTable) => call.pages().map_or(Strided::list(0), |pages| {
                Strided::elements(&pages.layout().elements(), size)
            }),
            (None, _) if wanted => Strided::list((call.reach(operand) as u64).saturating_mul(size)),
            (None, _) => Strided::list(0),
        };
        Expected {
            name: operand.name(),
            wanted,
            access: match operand.is_written() {
                true => Access::Write,
                false => Access::Read,
            },
            bytes,
            alignment: match needs_alignment && operand.moves_rows() {
                true => 16,
                false => size,
            },
            size,
            element,
            on_host: matches!(call.numbers(operand), Some(Numbers::Host(_))),
        }
    })
}
