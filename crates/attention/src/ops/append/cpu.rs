//! Cache writes on the CPU.

use std::sync::Mutex;

use bytemuck::Pod;
use warptile_kernels::{Operand, Operations};

use super::Append;
use crate::cpu::{SharedMut, in_parallel};
use crate::e4m3::E4m3;
use crate::host::{HostInputs, HostOutputs, check_type};
use crate::scales::{SCALES, check_list, scale_of};
use crate::{Element, ElementType, Error, Result};

/// Writes keys and values into a cache on the CPU. See [`Append`] for the rules.
///
/// # Errors
/// Memory that is not that of the description, and numbers that are in device memory.
pub fn append_cpu(
    append: &Append,
    inputs: &HostInputs<'_>,
    outputs: HostOutputs<'_>,
) -> Result<()> {
    match append.element() {
        ElementType::F16 => typed::<half::f16>(append, inputs, outputs),
        ElementType::Bf16 => typed::<half::bf16>(append, inputs, outputs),
        // No write has new rows of a scaled type.
        _ => typed::<f32>(append, inputs, outputs),
    }
}

fn typed<T: Element>(
    append: &Append,
    inputs: &HostInputs<'_>,
    outputs: HostOutputs<'_>,
) -> Result<()> {
    check_inputs(append, inputs, &outputs)?;
    match append.types().scaled() {
        None => write::<T, T>(append, inputs, outputs, &|x, _| x),
        Some(_) => {
            let scales = |operand| {
                inputs
                    .elements::<f32>(operand)
                    .map(Option::unwrap_or_default)
            };
            let scales = [scales(Operand::KScale)?, scales(Operand::VScale)?];
            let stored = |x: T, place: Place| {
                let scales = scales[usize::from(!place.is_key)];
                E4m3::quantize(x.to_f32(), scale_of(scales, place.head)).to_bits()
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
        });
        failed.into_inner().unwrap_or(Ok(()))?;
    }
    let rotate = |index: usize, row: &mut [T]| {
        if let Some(rotary) = append.rotary() {
            rotary.turn(row, &angles[index * pairs..][..pairs]);
        }
    };

    // A head at a time, because rows of different heads never meet, while two rows may go to one slot.
    let (query_heads, kv_heads) = (append.heads().query, append.heads().key_value);
    in_parallel(query_heads + 2 * kv_heads, |head| {
        let mut rotated = Vec::new();
        for (index, token) in tokens.iter().enumerate() {
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
            let head = head % kv_heads;
            let from = new_layout.offset(token.entry, token.row, head);
            // SAFETY: page and row are within the layout, which the memory holds; rows of different heads, and of keys and
            // values, do not overlap (checked), and this task has all rows of one head of one of them.
            let to = unsafe {
                cache.slice(start + pages.offset(page, row, head), new_layout.head_dim())
            };
            rotated.clear();
            rotated.extend_from_slice(&new[from..from + new_layout.head_dim()]);
            if is_key {
                rotate(index, &mut rotated);
            }
            for (to, &x) in to.iter_mut().zip(&rotated) {
                *to = stored(x, Place { is_key, head });
            }
        }
    });
    Ok(())
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

/// Checks that all memory is what the description needs, and no more.
fn check_inputs(append: &Append, inputs: &HostInputs<'_>, outputs: &HostOutputs<'_>) -> Result<()> {
    for operand in Operand::of(Operations::APPEND) {
        let (argument, expected) = (operand.name(), &append.expected()[operand]);
        let is_list = append.host_numbers().any(|(other, _)| other == operand);
        if is_list {
            continue;
        }
        if SCALES.contains(&operand) {
            let scales = inputs.elements::<f32>(operand)?;
            if scales.is_some() != expected.wanted {
                return Err(Error::Scales {
                    argument,
                    keys: append.types().scaled(),
                });
            }
        }
        let (needed, size) = (expected.bytes.reach() as usize, expected.size as usize);
        let is_written = expected.access == crate::gpu::Access::Write;
        let given = match is_written {
            true => outputs.get(operand, size),
            false => inputs
                .get(operand)
                .map(|slice| (slice.bytes.len(), slice.element)),
        };
        let device_list = operand as usize >= Operand::TENSORS && expected.element.is_none();
        if expected.wanted && device_list {
            return Err(Error::Presence {
                argument,
                rule: "is on a GPU, but the tensors are in host memory",
            });
        }
        crate::call::expect_presence(argument, expected.wanted, given.is_some())?;
        let Some((bytes, element)) = given else {
            continue;
        };
        check_type(argument, expected.element, element)?;
        crate::extents::expect_room(argument, needed / size, bytes / size)?;
        if SCALES.contains(&operand) {
            let scales = inputs.elements::<f32>(operand)?.unwrap_or_default();
            if scales.len() != needed / size {
                return Err(Error::Count {
                    argument,
                    found: scales.len(),
                    needed: needed / size,
                });
            }
            check_list(operand, scales)?;
        }
    }
    match outputs.values_at() {
        Some(values_at) => check_apart(append, values_at),
        None => Ok(()),
    }
}

/// Checks that keys and values of a cache in one tensor have memory of their own.
fn check_apart(append: &Append, values_at: usize) -> Result<()> {
    let size = append.types().k.size() as u64;
    let keys = &append.expected()[Operand::KPages].bytes;
    let values = &append.expected()[Operand::VPages].bytes;
    match keys.may_meet(0, values, (values_at as u64).saturating_mul(size)) {
        true => Err(Error::OutputOverlaps {
            argument: "k_pages",
            other: "v_pages".to_owned(),
        }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;

    #[test]
    fn values_in_the_memory_of_keys_need_room_for_their_elements() {
        let (row, pages) = (Layout::bshd([1, 1, 1, 8]), Layout::bshd([1, 4, 1, 8]));
        let append = Append::builder(ElementType::F16, [&row, &row], [&pages, &pages])
            .slots(&[0])
            .build()
            .unwrap();
        let new = [0_u8; 16];
        let inputs = HostInputs::default()
            .with(Operand::K, &new)
            .with(Operand::V, &new);
        // 32 elements of two bytes for the keys, and one too few for the values.
        let mut cache = [0_u8; 126];
        let outputs = HostOutputs::cache_in_one(&mut cache, 32);
        let error = append_cpu(&append, &inputs, outputs).unwrap_err();
        assert_eq!(
            error.to_string(),
            "v_pages needs a buffer of 32 elements for its shape and strides, but has 31"
        );
    }
}
