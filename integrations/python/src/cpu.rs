//! Calls on the CPU: slices over other libraries' memory.

use std::ops::Range;
use std::ptr::NonNull;

use warptile::kernels::Kind;
use warptile::{Call, HostInputs, HostOutputs, Operand, Slots, forward_cpu};

use crate::array::Described;
use crate::errors::{Failure, Result};

/// An operand on the CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Memory<'a> {
    Array(&'a Described),
    /// Numbers of our own.
    Floats(&'a [f32]),
}

pub(crate) type Places<'a> = Slots<Option<Memory<'a>>>;

/// Computes a call.
///
/// # Safety
/// Each array's elements are in memory and stay there until this returns, and nobody writes any of them or reads those that are written
/// meanwhile.
pub(crate) unsafe fn forward(call: &Call, places: &Places<'_>) -> Result<()> {
    let reach = |operand| call.reach(operand);
    check(places, reach)?;
    // SAFETY: the caller's promise; what is written overlaps nothing.
    let (inputs, outputs) = unsafe { split(places, HostOutputs::default(), reach) }?;
    Ok(forward_cpu(call, &inputs, outputs)?)
}

/// The inputs, and `outputs` with the other operands that are written. `reach`: elements of an operand, gaps included.
///
/// # Safety
/// As [`forward`], as long as the slices live; [`check`] has found nothing wrong. Gaps between rows of an output are in its slice, but are
/// neither read nor written.
pub(crate) unsafe fn split<'a>(
    places: &Places<'a>,
    mut outputs: HostOutputs<'a>,
    reach: impl Fn(Operand) -> usize,
) -> Result<(HostInputs<'a>, HostOutputs<'a>)> {
    let mut inputs = HostInputs::default();
    for (operand, memory) in places.given() {
        match memory {
            Memory::Floats(values) => inputs.set(operand, values),
            Memory::Array(array) => {
                let (start, len) = bytes(array, reach(operand))?;
                // SAFETY: `bytes` has checked alignment and size; the rest is the caller's promise.
                unsafe {
                    if operand.is_written() {
                        let slice = std::slice::from_raw_parts_mut(start, len);
                        outputs = outputs.with(operand, slice);
                    } else {
                        inputs.set(operand, std::slice::from_raw_parts(start, len));
                    }
                }
            }
        }
    }
    Ok((inputs, outputs))
}

/// The first elements of an array, gaps included.
///
/// # Safety
/// The array has those elements, of type `T` or of its size if any bits are a value, and nobody writes them while the slice lives.
pub(crate) unsafe fn slice<T>(array: &Described, len: usize) -> Result<&[T]> {
    let start = place(array, len, size_of::<T>(), align_of::<T>())?;
    // SAFETY: `place` has checked alignment and size; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}

/// As [`slice()`], for writing.
///
/// # Safety
/// As [`slice()`], and nobody reads them either.
#[expect(
    clippy::mut_from_ref,
    reason = "the array is described by the reference, not held in it"
)]
pub(crate) unsafe fn slice_mut<T>(array: &Described, len: usize) -> Result<&mut [T]> {
    let start = place(array, len, size_of::<T>(), align_of::<T>())?;
    // SAFETY: as in `slice`.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) })
}

/// The bytes of an array's first elements: the first of them, and their number.
pub(crate) fn bytes(array: &Described, len: usize) -> Result<(*mut u8, usize)> {
    // Elements of every type are aligned to their size.
    let size = array.dtype.size() as usize;
    Ok((place(array, len, size, size)?, len * size))
}

/// Where an array's first elements are, after a check that elements of this size and alignment can be there.
fn place(array: &Described, len: usize, size: usize, alignment: usize) -> Result<*mut u8> {
    let name = array.name;
    if len == 0 {
        return Ok(NonNull::<u64>::dangling().as_ptr().cast());
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
    Ok(array.address as *mut u8)
}

/// The addresses of an array's first elements, gaps included; none if there are no elements.
fn memory(array: &Described, len: usize) -> Option<Range<u64>> {
    let bytes = (len as u64).saturating_mul(array.dtype.size());
    (len > 0).then_some(array.address..array.address.saturating_add(bytes))
}

/// Whether the first elements of two arrays share memory, gaps included.
pub(crate) fn overlap((a, a_len): (&Described, usize), (b, b_len): (&Described, usize)) -> bool {
    match (memory(a, a_len), memory(b, b_len)) {
        (Some(a), Some(b)) => a.start < b.end && b.start < a.end,
        _ => false,
    }
}

/// Fails if an output shares memory with another array.
pub(crate) fn expect_apart(output: (&Described, usize), other: (&Described, usize)) -> Result<()> {
    match overlap(output, other) {
        true => Err(Failure::Invalid(format!(
            "{} shares memory with {}; an output needs memory of its own",
            output.0.name, other.0.name
        ))),
        false => Ok(()),
    }
}

/// Checks that all arrays are where elements of their types can be, and that outputs share no memory with anything, gaps between their rows
/// included. The keys and values of a cache may be interleaved.
pub(crate) fn check(places: &Places<'_>, reach: impl Fn(Operand) -> usize) -> Result<()> {
    let mut arrays = Vec::with_capacity(Operand::COUNT);
    for (operand, memory) in places.given() {
        if let Memory::Array(array) = memory {
            let len = reach(operand);
            bytes(array, len)?;
            arrays.push((operand, (*array, len)));
        }
    }
    for &(output, at) in arrays.iter().filter(|(operand, _)| operand.is_written()) {
        for &(other, other_at) in &arrays {
            let is_cache = [output, other]
                .iter()
                .all(|operand| operand.kind() == Kind::Keys);
            // Two outputs are compared once.
            if !other.is_written() || (other > output && !is_cache) {
                expect_apart(at, other_at)?;
            }
        }
    }
    Ok(())
}
