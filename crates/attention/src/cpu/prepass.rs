//! The pre-pass of the backward pass on the CPU.

use std::f32::consts::LOG2_E;

use warptile_kernels::Operand;

use crate::cpu::SharedMut;
use crate::cpu::stop::Stop;
use crate::cpu::threads::in_parallel;
use crate::error::Result;
use crate::spec::{Element, HostInputs, HostOutputs, Layout, Prepass, View, host, with_element};

/// Computes a pre-pass on the CPU. See [`Prepass`] for the rules.
///
/// # Errors
/// Memory that is not that of the description; [`Error::Stopped`](crate::Error::Stopped) if the caller's [`Stop`](crate::cpu::Stop) was
/// requested.
pub fn prepass_cpu(
    prepass: &Prepass,
    inputs: &HostInputs<'_>,
    outputs: HostOutputs<'_>,
) -> Result<()> {
    with_element!(prepass.element(), T => typed::<T>(prepass, inputs, outputs))
}

fn typed<T: Element>(
    prepass: &Prepass,
    inputs: &HostInputs<'_>,
    mut outputs: HostOutputs<'_>,
) -> Result<()> {
    host::check(prepass.expected(), None, inputs, Some(&outputs))?;
    let tensor = |operand| inputs.elements::<T>(operand).map(Option::unwrap_or_default);
    let lse = inputs.elements::<f32>(Operand::Lse)?.unwrap_or_default();
    let mut floats = |operand| outputs.take::<f32>(operand).map(Option::unwrap_or_default);
    let results = [floats(Operand::Delta)?, floats(Operand::ScaledLse)?];
    let rows = [tensor(Operand::Out)?, tensor(Operand::DOut)?];
    rows_into(
        prepass,
        rows,
        lse,
        inputs.elements::<f32>(Operand::DLse)?,
        results,
    )
}

/// The numbers of query rows, from the output and its gradient.
pub(super) fn rows_into<T: Element>(
    prepass: &Prepass,
    [out, d_out]: [&[T]; 2],
    lse: &[f32],
    d_lse: Option<&[f32]>,
    [delta, scaled_lse]: [&mut [f32]; 2],
) -> Result<()> {
    if prepass.is_empty() {
        // There may be as many sequences and heads as numbers go.
        return Ok(());
    }
    delta.fill(0.0);
    scaled_lse.fill(f32::INFINITY);
    let stop = Stop::current();
    let (delta, scaled_lse) = (SharedMut::new(delta), SharedMut::new(scaled_lse));
    let [_, row_count, heads, _] = prepass.out().shape;
    in_parallel(prepass.batch() * heads, |index| {
        let (batch, head) = (index / heads, index % heads);
        let (first, len) = prepass.rows().sequence(batch);
        let entry = match prepass.rows().is_packed() {
            true => 0,
            false => batch,
        };
        let start = prepass.start(batch, head);
        // SAFETY: the rows of one sequence and head, whose place is theirs alone; each index comes once.
        let [delta, scaled_lse] = [&delta, &scaled_lse].map(|to| unsafe { to.slice(start, len) });
        let row_of =
            |data, layout: &Layout, row| View::new(data, *layout).row(entry, first + row, head);
        for row in (0..len).take_while(|_| !stop.is_requested()) {
            let (x, y) = (
                row_of(out, prepass.out(), row),
                row_of(d_out, prepass.d_out(), row),
            );
            delta[row] =
                { x.iter().zip(y) }.fold(0.0, |sum, (x, y)| x.to_f32().mul_add(y.to_f32(), sum));
            let at = (entry * heads + head) * row_count + first + row;
            if lse[at].abs() > Prepass::LARGEST_LSE {
                continue;
            }
            scaled_lse[row] = lse[at] * LOG2_E;
            delta[row] -= d_lse.map_or(0.0, |d_lse| d_lse[at]);
        }
    })
}
