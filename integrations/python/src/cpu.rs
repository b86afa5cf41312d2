//! Calls on the CPU: slices over other libraries' memory.

use std::ops::Range;

use half::{bf16, f16};
use warptile::{Call, Element, ElementType, KeyView, Layout, Operands, View, ViewMut, forward_cpu};

use crate::array::Described;
use crate::errors::{Failure, Result};

/// The tensors of a call on the CPU.
#[derive(Debug)]
pub(crate) struct Tensors<'a> {
    pub(crate) q: &'a Described,
    pub(crate) k: &'a Described,
    pub(crate) v: &'a Described,
    pub(crate) out: &'a Described,
    pub(crate) lse: Option<&'a Described>,
    pub(crate) slopes: Option<&'a [f32]>,
    pub(crate) sinks: Option<&'a [f32]>,
    /// Of quantized keys and values.
    pub(crate) scales: Option<[&'a [f32]; 2]>,
    pub(crate) bias: Option<&'a Described>,
    pub(crate) key_mask: Option<&'a Described>,
}

/// Computes a call.
///
/// # Safety
/// Each array's elements are in memory and stay there until this returns, and nobody writes any of them or reads those of `out`
/// and `lse` meanwhile.
pub(crate) unsafe fn forward(call: &Call, tensors: &Tensors<'_>) -> Result<()> {
    check(call, tensors)?;
    // SAFETY: the caller's promise; outputs overlap nothing.
    unsafe {
        match call.element() {
            ElementType::F16 => typed::<f16>(call, tensors),
            ElementType::Bf16 => typed::<bf16>(call, tensors),
            ElementType::F32 => typed::<f32>(call, tensors),
            other => Err(Failure::Type(format!("elements of type {other}"))),
        }
    }
}

/// # Safety
/// As [`forward`]; `out` and `lse` overlap nothing.
unsafe fn typed<T: Element>(call: &Call, tensors: &Tensors<'_>) -> Result<()> {
    let Tensors { q, k, v, out, .. } = tensors;
    let lse_layout = Layout::packed(1, 1, call.lse_len());
    // SAFETY: the layouts are those of the arrays, and the caller's promise. Gaps between rows of an output are in the slice, but are
    // neither read nor written.
    unsafe {
        let mut operands = Operands::none();
        operands.slopes = tensors.slopes;
        operands.sinks = tensors.sinks;
        operands.bias = part(tensors.bias, call.bias())?;
        operands.key_mask = part(tensors.key_mask, call.key_mask())?;
        let out = ViewMut::new(slice_mut::<T>(out, call.out())?, *call.out());
        let lse = match tensors.lse {
            Some(lse) => Some(slice_mut::<f32>(lse, &lse_layout)?),
            None => None,
        };
        let q = View::new(slice::<T>(q, call.q())?, *call.q());
        let [k, v]: [KeyView<'_, T>; 2] = match call.quantized_type().zip(tensors.scales) {
            None => [
                View::new(slice::<T>(k, call.k())?, *call.k()).into(),
                View::new(slice::<T>(v, call.v())?, *call.v()).into(),
            ],
            Some((element, [k_scale, v_scale])) => {
                operands = operands.scales(k_scale, v_scale);
                [
                    KeyView::Quantized(View::new(slice(k, call.k())?, *call.k()), element),
                    KeyView::Quantized(View::new(slice(v, call.v())?, *call.v()), element),
                ]
            }
        };
        forward_cpu(call, q, k, v, &operands, out, lse)?;
    }
    Ok(())
}

/// # Safety
/// As [`slice()`].
unsafe fn part<'a, T>(
    array: Option<&'a Described>,
    layout: Option<&Layout>,
) -> Result<Option<&'a [T]>> {
    match (array, layout) {
        // SAFETY: the caller's promise.
        (Some(array), Some(layout)) => Ok(Some(unsafe { slice(array, layout) }?)),
        _ => Ok(None),
    }
}

/// The elements that a layout reaches.
///
/// # Safety
/// The array has those elements, of type `T` or of its size if any bits are a value, and nobody writes them while the slice lives.
pub(crate) unsafe fn slice<'a, T>(array: &'a Described, layout: &Layout) -> Result<&'a [T]> {
    let (start, len) = place::<T>(array, layout)?;
    // SAFETY: `place` has checked alignment and size; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(start, len) })
}

/// As [`slice()`], for writing.
///
/// # Safety
/// As [`slice()`], and nobody reads them either.
#[expect(
    clippy::mut_from_ref,
    reason = "the array is described by the reference, not held in it"
)]
pub(crate) unsafe fn slice_mut<'a, T>(
    array: &'a Described,
    layout: &Layout,
) -> Result<&'a mut [T]> {
    let (start, len) = place::<T>(array, layout)?;
    // SAFETY: as in `slice`.
    Ok(unsafe { std::slice::from_raw_parts_mut(start, len) })
}

/// The elements that a layout reaches, copied.
///
/// # Safety
/// As [`slice()`], for the time of the copy.
pub(crate) unsafe fn copied<T: Copy>(array: &Described, layout: &Layout) -> Result<Vec<T>> {
    // SAFETY: the caller's promise.
    Ok(unsafe { slice::<T>(array, layout) }?.to_vec())
}

/// The first of the elements that a layout reaches, and their number.
pub(crate) fn place<T>(array: &Described, layout: &Layout) -> Result<(*mut T, usize)> {
    match check_place(array, layout, size_of::<T>(), align_of::<T>())? {
        0 => Ok((std::ptr::NonNull::dangling().as_ptr(), 0)),
        len => Ok((array.address as *mut T, len)),
    }
}

/// Checks that elements of this size and alignment can be where the array says; gives their number.
fn check_place(array: &Described, layout: &Layout, size: usize, alignment: usize) -> Result<usize> {
    let name = array.name;
    let len = layout.required_len().ok_or_else(|| {
        Failure::Invalid(format!(
            "{name} has a shape and strides that reach beyond the address space"
        ))
    })?;
    if len == 0 {
        return Ok(0);
    }
    if len > array.reach() {
        return Err(Failure::Invalid(format!(
            "{name} has {} elements, gaps included, but {len} are needed",
            array.reach()
        )));
    }
    if !array.address.is_multiple_of(alignment as u64) {
        return Err(Failure::Invalid(format!(
            "{name} starts at {:#x}, which is not a multiple of {alignment} bytes",
            array.address
        )));
    }
    if len
        .checked_mul(size)
        .is_none_or(|bytes| isize::try_from(bytes).is_err())
    {
        return Err(Failure::Invalid(format!("{name} is larger than memory")));
    }
    Ok(len)
}

/// The addresses that a layout reaches, gaps included; none of an empty one.
fn memory(array: &Described, layout: &Layout) -> Option<Range<u64>> {
    let len = layout.required_len().unwrap_or(usize::MAX) as u64;
    let bytes = len.saturating_mul(array.dtype.size());
    (len > 0).then_some(array.address..array.address.saturating_add(bytes))
}

/// Whether two arrays share memory, gaps included.
pub(crate) fn overlap(a: &Described, a_layout: &Layout, b: &Described, b_layout: &Layout) -> bool {
    match (memory(a, a_layout), memory(b, b_layout)) {
        (Some(a), Some(b)) => a.start < b.end && b.start < a.end,
        _ => false,
    }
}

/// Checks that all arrays are where elements of their types can be, and that the outputs share no memory with anything, gaps between
/// their rows included.
pub(crate) fn check(call: &Call, tensors: &Tensors<'_>) -> Result<()> {
    let lse_layout = Layout::packed(1, 1, call.lse_len());
    let all = [
        (Some(tensors.out), Some(call.out())),
        (tensors.lse, Some(&lse_layout)),
        (Some(tensors.q), Some(call.q())),
        (Some(tensors.k), Some(call.k())),
        (Some(tensors.v), Some(call.v())),
        (tensors.bias, call.bias()),
        (tensors.key_mask, call.key_mask()),
    ];
    for (array, layout) in all {
        if let (Some(array), Some(layout)) = (array, layout) {
            // Elements of every type are aligned to their size.
            let size = array.dtype.size() as usize;
            check_place(array, layout, size, size)?;
        }
    }
    let places = all.map(|(array, layout)| {
        let (array, layout) = (array?, layout?);
        Some((array.name, memory(array, layout)?))
    });
    for (index, output) in places.iter().enumerate().take(2) {
        let Some((name, at)) = output else { continue };
        for (other, other_at) in places.iter().skip(index + 1).flatten() {
            if at.start < other_at.end && other_at.start < at.end {
                return Err(Failure::Invalid(format!(
                    "{name} shares memory with {other}; an output needs memory of its own"
                )));
            }
        }
    }
    Ok(())
}
