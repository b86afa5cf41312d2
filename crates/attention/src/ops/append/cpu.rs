//! Cache writes on the CPU.

use super::Append;
use crate::cpu::{SharedMut, in_parallel};
use crate::gpu::AppendArgument;
use crate::ops::rotary::{Angles, Rotary, Tables};
use crate::quantized::{Quantization, QuantizedType, check_key_type, scale_of};
use crate::{Element, ElementType, Error, Result};

/// Keys and values of a cache in host memory.
#[derive(Debug)]
pub enum CacheMut<'a, C> {
    /// Keys, values.
    Apart(&'a mut [C], &'a mut [C]),
    /// In one tensor, the values so many elements after the keys.
    Together(&'a mut [C], usize),
}

/// What is written: a cache of the elements of the new rows, or a quantized one.
#[derive(Debug)]
pub enum CacheOperand<'a, T> {
    /// Of the same elements. A [`CacheMut`] is one.
    Same(CacheMut<'a, T>),
    /// The bits of numbers of a type, with the scales of keys and of values: each one number, or one for each key/value head.
    Quantized(CacheMut<'a, u8>, QuantizedType, [&'a [f32]; 2]),
}

impl<'a, T> From<CacheMut<'a, T>> for CacheOperand<'a, T> {
    fn from(cache: CacheMut<'a, T>) -> Self {
        CacheOperand::Same(cache)
    }
}

/// Queries in host memory.
#[derive(Debug)]
pub enum QueriesMut<'a, T> {
    /// Rotated where they are.
    InPlace(&'a mut [T]),
    /// Rotated into the second slice.
    Into(&'a [T], &'a mut [T]),
}

/// The memory of a cache write on the CPU, in the layouts of an [`Append`].
#[derive(Debug)]
pub struct AppendOperands<'a, T> {
    /// New keys.
    pub k: &'a [T],
    /// New values.
    pub v: &'a [T],
    /// The cache.
    pub cache: CacheOperand<'a, T>,
    /// Queries, if the description has them.
    pub queries: Option<QueriesMut<'a, T>>,
    /// Tables of the rotation, if it has some.
    pub tables: Option<Tables<'a, T>>,
}

/// Writes keys and values into a cache on the CPU. See [`Append`] for the rules.
///
/// # Errors
/// Slices that are not those of the description, and numbers that are in device memory.
pub fn append_cpu<T: Element>(append: &Append, operands: AppendOperands<'_, T>) -> Result<()> {
    check_operands(append, &operands)?;
    let AppendOperands {
        k,
        v,
        cache,
        queries,
        tables,
    } = operands;
    match cache {
        CacheOperand::Same(memory) => write(append, [k, v], queries, tables, memory, &|x, _| x),
        CacheOperand::Quantized(memory, element, scales) => {
            let stored = |x: T, place: Place| {
                let scales = scales[usize::from(!place.is_key)];
                element.quantize(x.to_f32(), scale_of(scales, place.head))
            };
            write(append, [k, v], queries, tables, memory, &stored);
        }
    }
    Ok(())
}

/// Whose element is stored.
#[derive(Clone, Copy)]
struct Place {
    is_key: bool,
    head: usize,
}

/// `stored`: what the cache holds of a number.
fn write<T: Element, C: Copy + Send>(
    append: &Append,
    [k, v]: [&[T]; 2],
    queries: Option<QueriesMut<'_, T>>,
    tables: Option<Tables<'_, T>>,
    cache: CacheMut<'_, C>,
    stored: &(impl Fn(T, Place) -> C + Sync),
) {
    // Slices that start where their tensors do; those of a cache in one tensor are one memory.
    let (keys, values, values_at) = match cache {
        CacheMut::Apart(keys, values) => (SharedMut::new(keys), Some(SharedMut::new(values)), 0),
        CacheMut::Together(memory, values_at) => (SharedMut::new(memory), None, values_at),
    };
    let values = values.as_ref().unwrap_or(&keys);
    let (q_in, q_out) = match queries {
        Some(QueriesMut::InPlace(q)) => (None, Some(SharedMut::new(q))),
        Some(QueriesMut::Into(q, out)) => (Some(q), Some(SharedMut::new(out))),
        None => (None, None),
    };

    let tokens = tokens(append);
    let pairs = append.rotary().map_or(0, |rotary| rotary.size() / 2);
    let mut angles = vec![[0.0; 2]; tokens.len() * pairs];
    if let Some(rotary) = append.rotary() {
        let of_tokens = SharedMut::new(&mut angles);
        in_parallel(tokens.len(), |index| {
            // SAFETY: the pairs of one token, within the list; each index comes once.
            let to = unsafe { of_tokens.slice(index * pairs, pairs) };
            rotary.angles_at(tokens[index].position, tables.as_ref(), to);
        });
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
                let (Some(layout), Some(out)) = (append.q(), &q_out) else {
                    continue;
                };
                let to = append.q_out().unwrap_or(layout);
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

fn check_operands<T: Element>(append: &Append, operands: &AppendOperands<'_, T>) -> Result<()> {
    if T::TYPE != append.element() {
        return Err(Error::ElementMismatch {
            argument: "k",
            expected: append.element(),
            found: T::TYPE,
        });
    }
    for argument in [
        AppendArgument::Slots,
        AppendArgument::BlockTable,
        AppendArgument::RowOffsets,
        AppendArgument::RowLengths,
        AppendArgument::KeyLengths,
        AppendArgument::Positions,
    ] {
        let expected = &append.expected()[argument as usize];
        if expected.wanted && !expected.on_host {
            return Err(Error::Presence {
                argument: expected.name,
                rule: "is on a GPU, but the tensors are in host memory",
            });
        }
    }
    let (element, scales) = match &operands.cache {
        CacheOperand::Quantized(_, element, scales) => (Some(*element), Some(*scales)),
        CacheOperand::Same(_) => (None, None),
    };
    check_key_type("k_pages", append.quantized_type(), element)?;
    let (k_scale, v_scale) = (scales.map(|each| each[0]), scales.map(|each| each[1]));
    Quantization::check_scales(append.quantized(), k_scale, v_scale)?;
    append.k().check_buffer("k", operands.k.len())?;
    append.v().check_buffer("v", operands.v.len())?;
    match &operands.cache {
        CacheOperand::Same(memory) => check_memory(append, memory)?,
        CacheOperand::Quantized(memory, ..) => check_memory(append, memory)?,
    }
    let in_place = append.q_out().is_none();
    let wanted = append.q().is_some();
    crate::call::expect_presence("q", wanted, operands.queries.is_some())?;
    if let (Some(q), Some(queries)) = (append.q(), &operands.queries) {
        match queries {
            QueriesMut::InPlace(slice) => {
                crate::call::expect_presence("q_out", !in_place, false)?;
                q.check_buffer("q", slice.len())?;
            }
            QueriesMut::Into(slice, out) => {
                crate::call::expect_presence("q_out", !in_place, true)?;
                q.check_buffer("q", slice.len())?;
                append
                    .q_out()
                    .unwrap_or(q)
                    .check_buffer("q_out", out.len())?;
            }
        }
    }
    let table = match append.rotary().map(Rotary::angles) {
        Some(Angles::Tables { element, layout }) => Some((*element, layout)),
        _ => None,
    };
    crate::call::expect_presence("cos", table.is_some(), operands.tables.is_some())?;
    if let (Some((element, layout)), Some(tables)) = (table, &operands.tables) {
        let (found, lens) = match tables {
            Tables::F32(cos, sin) => (ElementType::F32, [cos.len(), sin.len()]),
            Tables::Elements(cos, sin) => (T::TYPE, [cos.len(), sin.len()]),
        };
        if found != element {
            return Err(Error::ElementMismatch {
                argument: "cos",
                expected: element,
                found,
            });
        }
        layout.check_buffer("cos", lens[0])?;
        layout.check_buffer("sin", lens[1])?;
    }
    Ok(())
}

/// Checks that a cache's memory has the pages of the description.
fn check_memory<C>(append: &Append, memory: &CacheMut<'_, C>) -> Result<()> {
    let (keys, values) = match memory {
        CacheMut::Apart(keys, values) => (keys.len(), values.len()),
        CacheMut::Together(memory, values_at) => {
            check_apart(append, *values_at)?;
            (memory.len(), memory.len().saturating_sub(*values_at))
        }
    };
    append.k_pages().check_buffer("k_pages", keys)?;
    append.v_pages().check_buffer("v_pages", values)
}

/// Checks that keys and values of a cache in one tensor have memory of their own.
fn check_apart(append: &Append, values_at: usize) -> Result<()> {
    let size = append.cache_size() as u64;
    let keys = &append.expected()[AppendArgument::KPages as usize].bytes;
    let values = &append.expected()[AppendArgument::VPages as usize].bytes;
    match keys.may_meet(0, values, (values_at as u64).saturating_mul(size)) {
        true => Err(Error::OutputOverlaps {
            argument: "k_pages",
            other: "v_pages".to_owned(),
        }),
        false => Ok(()),
    }
}
