//! Operands of a call on the CPU, with their types.

use warptile_kernels::Operand;

use crate::spec::{Call, Element, HostInputs, Result, View};

/// Inputs of a call that were found to be the call's.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, T> {
    pub(super) q: View<'a, T>,
    pub(super) keys: KeyViews<'a, T>,
    inputs: &'a HostInputs<'a>,
}

/// Keys and values: of the queries' type, or the bits of numbers of a scaled one.
#[derive(Clone, Copy)]
pub(super) enum KeyViews<'a, T> {
    Same([View<'a, T>; 2]),
    Scaled([View<'a, u8>; 2]),
}

impl<'a, T: Element> Operands<'a, T> {
    /// The inputs passed [`Call::check_inputs`].
    pub(super) fn new(call: &Call, inputs: &'a HostInputs<'a>) -> Result<Self> {
        fn view<'a, U: bytemuck::Pod>(
            call: &Call,
            inputs: &HostInputs<'a>,
            operand: Operand,
        ) -> Result<View<'a, U>> {
            let elements = inputs.elements(operand)?.unwrap_or_default();
            let layout = call.layout(operand).copied();
            Ok(View::new(
                elements,
                layout.unwrap_or(crate::spec::Layout::EMPTY),
            ))
        }
        // The other inputs start where their elements can.
        inputs.elements::<T>(Operand::Bias)?;
        Ok(Operands {
            q: view(call, inputs, Operand::Q)?,
            keys: match call.types().scaled() {
                None => KeyViews::Same([
                    view(call, inputs, Operand::K)?,
                    view(call, inputs, Operand::V)?,
                ]),
                Some(_) => KeyViews::Scaled([
                    view(call, inputs, Operand::K)?,
                    view(call, inputs, Operand::V)?,
                ]),
            },
            inputs,
        })
    }

    /// The elements of an operand that not every call has.
    pub(super) fn get<U: bytemuck::Pod>(&self, operand: Operand) -> Option<&'a [U]> {
        // What could fail was tried before.
        self.inputs.elements(operand).ok().flatten()
    }
}
