//! The places in memory that a forward launch reads and writes.

use crate::{
    Access, Call, ElementType, Expected, HostInputs, HostOutputs, Kind, Numbers, Operand,
    Operations, Result, Slots, Strided, host,
};

impl Call {
    /// The operands of a raw launch, each with the bytes that its memory must have from its address on; `None` if it must not be given. For
    /// those who launch on memory whose size they know.
    pub fn memory(&self) -> impl Iterator<Item = (Operand, Option<u64>)> {
        Operand::of(Operations::FORWARD).map(|operand| (operand, self.expected()[operand].needed()))
    }

    /// Checks the inputs of a call on the host: what is given, its length, and its values where they have a rule.
    ///
    /// # Errors
    /// An [`Invalid`](crate::Invalid) that names the argument and the rule.
    pub fn check_inputs(&self, inputs: &HostInputs<'_>) -> Result<()> {
        self.check_memory(inputs, None)
    }

    /// [`check_inputs`](Self::check_inputs), and the same of outputs.
    pub fn check_memory(
        &self,
        inputs: &HostInputs<'_>,
        outputs: Option<&HostOutputs<'_>>,
    ) -> Result<()> {
        host::check(self.expected(), self.types().scaled(), inputs, outputs)?;
        self.check_key_scales(inputs.elements(Operand::KScale)?.unwrap_or_default())
    }

    /// The requirements on the memory of an operand that the call has.
    pub(crate) fn expect(&self, operand: Operand) -> Expected {
        let element = self.type_of(operand);
        let size = match operand.kind() {
            Kind::Scores if element.is_none() => 1,
            _ => element.map_or(4, ElementType::size) as u64,
        };
        let moves_rows = operand.moves_rows();
        Expected {
            name: operand.name(),
            wanted: true,
            access: match operand.is_written() {
                true => Access::Write,
                false => Access::Read,
            },
            bytes: match (self.layout(operand), operand, self.pages()) {
                (Some(layout), ..) if moves_rows => Strided::rows(layout, size),
                (Some(layout), ..) => Strided::elements(layout, size),
                (None, Operand::BlockTable, Some(pages)) => {
                    Strided::elements(&pages.layout().elements(), size)
                }
                _ => Strided::list((self.reach(operand) as u64).saturating_mul(size)),
            },
            alignment: size,
            moves_rows,
            size,
            element,
            on_host: matches!(self.numbers(operand), Some(Numbers::Host(_))),
        }
    }
}

/// No operand is wanted.
pub(crate) const UNWANTED: Slots<Expected> = {
    let mut slots = Slots::filled(Expected::unwanted(""));
    let mut index = 0;
    while index < Operand::COUNT {
        slots.as_mut_slice()[index] = Expected::unwanted(Operand::ALL[index].name());
        index += 1;
    }
    slots
};
