//! Cache writes on the CPU.

use std::sync::Mutex;

use bytemuck::Pod;
use warptile_kernels::Operand;

use crate::cpu::SharedMut;
use crate::cpu::stop::Stop;
use crate::cpu::threads::in_parallel;
use crate::error::Result;
use crate::spec::{
    Append, Element, HostInputs, HostOutputs, Invalid, host, scale_of, with_element,
};

/// Writes keys and values into a cache on the CPU. See [`Append`] for the rules.
///
/// # Errors
/// Memory that is not that of the description, and numbers that are in device memory. [`Error::Stopped`](crate::Error::Stopped) if the
/// caller's [`Stop`] was requested.
pub fn append_cpu(
    append: &Append,
    inputs: &HostInputs<'_>,
    outputs: HostOutputs<'_>,
) -> Result<()> {
    with_element!(append.element(), T => typed::<T>(append, inputs, outputs))
}

fn typed<T: Element>(
    append: &Append,
    inputs: &HostInputs<'_>,
    outputs: HostOutputs<'_>,
) -> Result<()> {
    let scaled = append.types().scaled();
    host::check(append.expected(), scaled, inputs, Some(&outputs))?;
    if let Some(values_at) = outputs.values_at() {
        check_apart(append, values_at)?;
    }
    match scaled {
        None => write::<T, T>(append, inputs, outputs, &|x, _| x),
        Some(element) => {
            let scales = |operand| {
                inputs
                    .elements::<f32>(operand)
                    .map(Option::unwrap_or_default)
            };
            let scales = [scales(Operand::KScale)?, scales(Operand::VScale)?];
            let stored = |x: T, place: Place| {
                let scales = scales[usize::from(!place.is_key)];
                element.quantize(x.to_f32(), scale_of(scales, place.head))
            };
            write::<T, u8>(append, inputs, outputs, &stored)
        }
    }
}

/// Whose element is stored.
#[derive(Clone, Copy)]
struct Place {
    is_key: bool,
    head: usize,
}

/// `stored`: what the cache holds of a number.
fn write<T: Element, C: Pod + Send>(
    append: &Append,
    inputs: &HostInputs<'_>,
    mut outputs: HostOutputs<'_>,
    stored: &(impl Fn(T, Place) -> C + Sync),
) -> Result<()> {
    let new = |operand| inputs.elements::<T>(operand).map(Option::unwrap_or_default);
    let (k, v) = (new(Operand::K)?, new(Operand::V)?);
    // Slices that start where their tensors do; those of a cache in one tensor are one memory.
    let values_at = outputs.values_at().unwrap_or(0);
    let keys = SharedMut::new(outputs.take::<C>(Operand::KPages)?.unwrap_or_default());
    let values = outputs.take::<C>(Operand::VPages)?.map(SharedMut::new);
    let values = values.as_ref().unwrap_or(&keys);
    let q_in = inputs.elements::<T>(Operand::Q)?;
    let q_out = match outputs.take::<T>(Operand::QOut)? {
        None => outputs.take::<T>(Operand::Q)?,
        out => out,
    };
    let q_out = q_out.map(SharedMut::new);

    let tokens = tokens(append);
    let pairs = append.rotary().map_or(0, |rotary| rotary.size() / 2);
    let mut angles = vec![[0.0; 2]; tokens.len() * pairs];
    if let Some(rotary) = append.rotary() {
        let of_tokens = SharedMut::new(&mut angles);
        let failed = Mutex::new(Ok(()));
        in_parallel(tokens.len(), |index| {
            // SAFETY: the pairs of one token, within the list; each index comes once.
            let to = unsafe { of_tokens.slice(index * pairs, pairs) };
            if let Err(error) = rotary.angles_at(tokens[index].position, inputs, to)
                && let Ok(mut failed) = failed.lock()
            {
                *failed = Err(error);
            }
        })?;
        failed.into_inner().unwrap_or(Ok(()))?;
    }
    let rotate = |index: usize, row: &mut [T]| {
        if let Some(rotary) = append.rotary() {
            rotary.turn(row, &angles[index * pairs..][..pairs]);
        }
    };

    // A head at a time, because rows of different heads never meet, while two rows may go to one slot.
    let (query_heads, kv_heads) = (append.heads().query, append.heads().key_value);
    let stop = Stop::current();
    in_parallel(query_heads + 2 * kv_heads, |head| {
        let mut rotated = Vec::new();
        let tokens = tokens.iter().take_while(|_| !stop.is_requested());
        for (index, token) in tokens.enumerate() {
            if head < query_heads {
                let (Some(layout), Some(out)) = (append.layout(Operand::Q), &q_out) else {
                    continue;
                };
                let to = append.layout(Operand::QOut).unwrap_or(layout);
                let (from, to) = (
                    layout.offset(token.entry, token.row, head),
                    to.offset(token.entry, token.row, head),
                );
                // SAFETY: the buffers hold the layouts, no two rows of an output layout overlap (the builder has checked), and
                // each row and head comes once.
                let to = unsafe { out.slice(to, layout.head_dim()) };
                if let Some(q) = q_in {
                    to.copy_from_slice(&q[from..from + layout.head_dim()]);
                }
                rotate(index, to);
                continue;
            }
            let Some((page, row)) = token.place else {
                continue;
            };
            let head = head - query_heads;
            let (cache, start, new, new_layout, pages, is_key) = match head.checked_sub(kv_heads) {
                None => (&keys, 0, k, append.k(), append.k_pages(), true),
                Some(_) => (values, values_at, v, append.v(), append.v_pages(), false),
            };
            let (head, size) = (head % kv_heads, new_layout.head_dim());
            if size == 0 {
                continue;
            }
            let from = new_layout.offset(token.entry, token.row, head);
            // SAFETY: page and row are within the layout, which the memory holds; rows of different heads, and of keys and
            // values, do not overlap (checked), and this task has all rows of one head of one of them.
            let to = unsafe { cache.slice(start + pages.offset(page, row, head), size) };
            rotated.clear();
            rotated.extend_from_slice(&new[from..from + size]);
            if is_key {
                rotate(index, &mut rotated);
            }
            for (to, &x) in to.iter_mut().zip(&rotated) {
                *to = stored(x, Place { is_key, head });
            }
        }
    })
}

/// One new row.
struct Token {
    /// Its batch entry and row in k.
    entry: usize,
    row: usize,
    position: i64,
    /// Page and row in the cache.
    place: Option<(usize, usize)>,
}

fn tokens(append: &Append) -> Vec<Token> {
    let [_, row_count, ..] = append.k().shape;
    let [pages, page_rows, ..] = append.k_pages().shape;
    let mut tokens = Vec::new();
    for batch in 0..append.batch() {
        let (first, len) = append.rows().sequence(batch);
        let before = append
            .before()
            .used()
            .on_host()
            .map_or(0, |list| list[batch]);
        let entry = if append.rows().is_packed() { 0 } else { batch };
        for number in 0..len {
            let row = first + number;
            let of_all = entry * row_count + row;
            let in_sequence = before as usize + number;
            let place = match append.slots().on_host() {
                Some(slots) => usize::try_from(slots[of_all])
                    .ok()
                    .filter(|_| page_rows > 0)
                    .map(|slot| (slot / page_rows, slot % page_rows)),
                None if in_sequence < append.capacity() => {
                    let page = match append.table().on_host() {
                        Some(table) => {
                            let column = in_sequence / page_rows;
                            usize::try_from(table[batch * append.columns() + column]).ok()
                        }
                        None => Some(batch),
                    };
                    page.map(|page| (page, in_sequence % page_rows))
                }
                None => None,
            };
            let positions = append.positions().on_host();
            tokens.push(Token {
                entry,
                row,
                position: positions.map_or(in_sequence as i64, |list| i64::from(list[of_all])),
                place: place.filter(|&(page, _)| page < pages),
            });
        }
    }
    tokens
}

/// Checks that keys and values of a cache in one tensor have memory of their own.
fn check_apart(append: &Append, values_at: usize) -> Result<()> {
    let size = append.types().k.size() as u64;
    let keys = &append.expected()[Operand::KPages].bytes;
    let values = &append.expected()[Operand::VPages].bytes;
    match keys.may_meet(0, values, (values_at as u64).saturating_mul(size)) {
        true => Err(Invalid::OutputOverlaps {
            argument: "k_pages",
            other: "v_pages".to_owned(),
        }
        .into()),
        false => Ok(()),
    }
}
