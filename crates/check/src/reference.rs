//! The definition of attention, written down naively: what every other path is compared with.

mod floors;
mod gradients;
mod in_order;
mod matrix;
mod row;
#[cfg(test)]
mod tests;

use warptile::cpu::Stop;
use warptile::spec::{Call, HostInputs, Operand, View};
use warptile::{Layout, with_element};

use crate::compiled::Compiled;
use crate::error::{Error, Result, limited};
use crate::parallel;
use matrix::Dense;
use row::{Computation, Options, Row, RowRest};

pub(crate) use gradients::{GradientReferences, gradients, terms_of_bias};
pub(crate) use in_order::in_order;

/// Most elements of a tensor that a reference takes: 2 GiB in `f64`.
const MAX_ELEMENTS: u128 = 1 << 28;

/// Most multiply-adds of a reference: minutes on a few cores.
pub(crate) const MAX_WORK: f64 = (1_u64 << 38) as f64;

/// Most multiply-adds of a call whose gradients have a reference.
pub(crate) const MAX_GRADIENT_WORK: f64 = MAX_WORK / 4.0;

/// Output and lse of a problem, in `f64`.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceOutput {
    /// Dense `[batch, length, heads, head size]`, whatever the problem's output layout; packed: `[rows, heads, head size]`. The head
    /// size is that of v.
    /// Rows that belong to no sequence are 0.
    pub out: Vec<f64>,
    /// `[batch, heads, length]`; packed: `[heads, rows]`. Rows that belong to no sequence are 0.
    pub lse: Vec<f64>,
}

/// The exact result of a problem, the result of the plain computation in its element type, and the error that no
/// computation can be expected to avoid.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct References {
    pub(crate) exact: ReferenceOutput,
    /// `out` with scores, probabilities and output rounded to the element type, as between three separate kernels; `lse` of
    /// scores rounded to `f32`, in which every path computes it.
    pub(crate) rounded: ReferenceOutput,
    /// Error to be expected of each element, in the order of `exact`: see [`Computation::floors`].
    pub(crate) out_floor: Vec<f32>,
    pub(crate) lse_floor: Vec<f32>,
}

/// Computes a call from its definition in `f64`, parallel over rows but otherwise naive. Scores beyond the range of `f32`
/// count as its largest finite number, which is what the fast paths can represent. A key whose bias is minus infinity is
/// hidden, as if by the key mask. Quantized keys and values are multiplied by their scales in `f64`, which is exact.
///
/// # Errors
/// [`Error::Call`] if a tensor does not fit the call, [`Error::TooLarge`] or [`Error::TooMuchWork`] if it would
/// take too much memory or time; [`Error::Call`] with [`warptile::Error::Stopped`] once the caller's [`Stop`] is requested.
pub fn reference(call: &Call, inputs: &HostInputs<'_>) -> Result<ReferenceOutput> {
    with_element!(call.element(), T => Ok(compute::<T>(call, inputs, false)?.exact))
}

/// Computes the values that a result is judged by; without `rounded` only the exact ones.
pub(crate) fn compute<T: Compiled>(
    call: &Call,
    inputs: &HostInputs<'_>,
    rounded: bool,
) -> Result<References> {
    call.check_inputs(inputs)?;
    check_size(call, MAX_WORK)?;
    let stop = Stop::current();
    stop.check()?;
    let [k, v] = [Operand::K, Operand::V].map(|operand| in_order::<T>(call, inputs, operand));
    let (k, v) = (k?, v?);
    let (k, v) = (k.view(), v.view());
    let floats = |operand| inputs.elements::<f32>(operand);
    let q = inputs.elements::<T>(Operand::Q)?.unwrap_or_default();
    let (heads, size) = (call.heads().query, call.out().head_dim());
    let rows = call.q().rows();
    let keys = Dense::copy(k, floats(Operand::KScale)?, true);
    let computation = Computation {
        call,
        queries: Dense::copy(View::new(q, *call.q()), None, false),
        key_norms: match rounded {
            true => keys.norms(),
            false => Vec::new(),
        },
        keys,
        values: Dense::copy(v, floats(Operand::VScale)?, false),
        options: Options::<T>::new(call, inputs)?,
        rounded,
    };
    stop.check()?;
    let mut sequence_of = vec![None; call.q().batch() * rows];
    for sequence in call.sequences() {
        let start = sequence.q_entry * rows + sequence.q_start;
        sequence_of[start..start + sequence.q_len].fill(Some(sequence));
    }

    let places = sequence_of.len() * heads;
    let mut exact = vec![0.0; places * size];
    let mut rounded_out = exact.clone();
    let mut out_floor = vec![0.0; exact.len()];
    let mut rest = vec![RowRest::default(); places];
    let all = exact
        .chunks_mut(size)
        .zip(rounded_out.chunks_mut(size))
        .zip(out_floor.chunks_mut(size))
        .zip(&mut rest)
        .enumerate()
        .map(|(index, (((out, rounded_out), out_floor), rest))| Row {
            index,
            out,
            rounded_out,
            out_floor,
            rest,
        });
    parallel::for_each(all, call.flops() as f64 / 2.0, |row| {
        let (place, head) = (row.index / heads, row.index % heads);
        if let Some(sequence) = sequence_of[place] {
            let position = place - sequence.q_entry * rows - sequence.q_start;
            computation.attend(&sequence, position, head, row);
        }
    });
    stop.check()?;

    Ok(References {
        exact: ReferenceOutput {
            out: exact,
            lse: by_head(call).map(|index| rest[index].lse).collect(),
        },
        rounded: ReferenceOutput {
            out: rounded_out,
            lse: by_head(call).map(|index| rest[index].rounded_lse).collect(),
        },
        out_floor,
        lse_floor: by_head(call).map(|index| rest[index].lse_floor).collect(),
    })
}

/// Indices of `[entry, row, head]` in the order of an lse, `[entry, head, row]`.
pub(crate) fn by_head(call: &Call) -> impl Iterator<Item = usize> {
    let [entries, heads, rows] = call.lse_shape();
    (0..entries).flat_map(move |entry| {
        (0..heads)
            .flat_map(move |head| (0..rows).map(move |row| (entry * rows + row) * heads + head))
    })
}

/// Fails if a reference of the call would take too much memory, or more than `max_work` multiply-adds.
pub(crate) fn check_size(call: &Call, max_work: f64) -> Result<()> {
    for layout in [call.q(), call.k(), call.v(), call.out()] {
        limited("elements in a tensor", elements(layout), MAX_ELEMENTS)?;
    }
    limited("sequences", call.batch() as u128, MAX_ELEMENTS)?;
    if call.pages().is_some() {
        let row = call.k().head_dim().max(call.v().head_dim()) * call.heads().key_value;
        let keys = call.batch() as u128 * call.key_len() as u128;
        limited(
            "elements of keys in all pages",
            keys * row as u128,
            MAX_ELEMENTS,
        )?;
    }
    let work = call.flops() as f64 / 2.0;
    if work > max_work {
        return Err(Error::TooMuchWork {
            found: work,
            limit: max_work,
        });
    }
    Ok(())
}

/// As [`check_size`], for gradients; with `wants_bias` also that of the bias, whose reference has a number for each of its elements.
pub(crate) fn check_gradient_size(call: &Call, wants_bias: bool, max_work: f64) -> Result<()> {
    check_size(call, max_work)?;
    let of_bias = { call.gradient_layout(Operand::DBias) }.filter(|_| wants_bias);
    of_bias.map_or(Ok(()), |layout| {
        let found = elements(&layout);
        limited("elements in the gradient of the bias", found, MAX_ELEMENTS)
    })
}

fn elements(layout: &Layout) -> u128 {
    let extents = layout.shape.iter().map(|&extent| extent as u128);
    extents.product()
}
