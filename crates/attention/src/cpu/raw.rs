//! Calls on host memory by its address: what bindings for other languages have.

use std::ptr::NonNull;

use warptile_kernels::{ElementType, Operand, Slots};

use crate::cpu::{append_cpu, backward_cpu, forward_cpu, merge_cpu};
use crate::error::Result;
use crate::spec::{
    Access, Append, Backward, Call, Element, Expected, HostInputs, HostOutputs, Invalid, Layout,
    Merge, with_element,
};

/// Bytes of host memory, aligned for their elements and within the address space. Nothing says that they are there: only unsafe functions
/// touch them.
#[derive(Debug, Clone, Copy)]
pub struct HostMemory {
    argument: &'static str,
    start: *mut u8,
    len: usize,
}

// SAFETY: an address is a number; who has slices made of it answers for the threads.
unsafe impl Send for HostMemory {}

// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// `len` bytes of an argument. If there are none, the address may be any.
    ///
    /// # Errors
    /// [`Invalid::Misaligned`], or [`Invalid::LayoutTooLarge`] for more than memory can have. Null is as misaligned as an odd address.
    pub fn new(
        argument: &'static str,
        start: *mut u8,
        len: usize,
        alignment: usize,
    ) -> Result<Self> {
        if len == 0 {
            let start = NonNull::<u128>::dangling().as_ptr().cast();
            return Ok(HostMemory {
                argument,
                start,
                len,
            });
        }
        let end = start.addr().checked_add(len);
        if end.is_none() || isize::try_from(len).is_err() {
            return Err(Invalid::LayoutTooLarge { argument }.into());
        }
        match !start.is_null() && start.addr().is_multiple_of(alignment) {
            true => Ok(HostMemory {
                argument,
                start,
                len,
            }),
            false => Err(Invalid::Misaligned {
                argument,
                address: start.addr() as u64,
                alignment: alignment as u64,
            }
            .into()),
        }
    }

    /// `count` elements of an argument.
    ///
    /// # Errors
    /// As [`HostMemory::new`].
    pub fn of<T>(argument: &'static str, start: *const T, count: usize) -> Result<Self> {
        let len = count.saturating_mul(size_of::<T>());
        HostMemory::new(argument, start.cast_mut().cast(), len, align_of::<T>())
    }

    /// The elements that a layout reaches, gaps included.
    ///
    /// # Errors
    /// As [`HostMemory::new`].
    pub fn tensor(
        argument: &'static str,
        start: *mut u8,
        layout: &Layout,
        element: ElementType,
    ) -> Result<Self> {
        // A reach beyond the address space is larger than memory.
        let count = layout.required_len().unwrap_or(usize::MAX);
        let len = count.saturating_mul(element.size());
        HostMemory::new(argument, start, len, element.size())
    }

    /// The memory as a slice, without the bytes after the last whole element.
    ///
    /// # Safety
    /// The memory is there, holds values of `T`, for which it is aligned, and is not written while the slice lives.
    pub unsafe fn slice<'a, T>(&self) -> &'a [T] {
        // SAFETY: not null and no larger than memory, by `new`; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / size_of::<T>()) }
    }

    /// As [`slice`](Self::slice), for writing.
    ///
    /// # Safety
    /// As [`slice`](Self::slice), and nothing else reads the memory while the slice lives.
    pub unsafe fn slice_mut<'a, T>(&self) -> &'a mut [T] {
        // SAFETY: as in `slice`.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len / size_of::<T>()) }
    }

    /// Returns true if both have a byte in common.
    fn meets(&self, other: &HostMemory) -> bool {
        let [start, other_start] = [self, other].map(|memory| memory.start.addr());
        let is_empty = self.len == 0 || other.len == 0;
        !is_empty && start < other_start + other.len && other_start < start + self.len
    }
}

/// Memory for each operand that a description needs on the CPU besides its lists of whole numbers.
pub type Memory = Slots<Option<HostMemory>>;

/// As [`forward_cpu`].
///
/// # Errors
/// As [`check`] and [`forward_cpu`].
///
/// # Safety
/// The memory is there. Until this returns nothing else writes the inputs, or reads or writes the outputs, gaps between rows included.
pub unsafe fn forward(call: &Call, memory: &Memory) -> Result<()> {
    // SAFETY: the caller's promise.
    let (inputs, outputs) = unsafe { views(memory, call.expected(), None) }?;
    forward_cpu(call, &inputs, outputs)
}

/// Checks that the outputs of a call share no memory with anything, gaps between rows included.
///
/// # Errors
/// [`Invalid::SharesMemory`].
pub fn check(call: &Call, memory: &Memory) -> Result<()> {
    check_apart(memory, call.expected())
}

/// As [`backward_cpu`].
///
/// # Errors
/// As [`check`] and [`backward_cpu`].
///
/// # Safety
/// As [`forward`].
pub unsafe fn backward(backward: &Backward, memory: &Memory) -> Result<()> {
    // SAFETY: the caller's promise.
    let (inputs, outputs) = unsafe { views(memory, backward.expected(), None) }?;
    backward_cpu(backward, &inputs, outputs)
}

/// As [`append_cpu`]. The keys and values of a cache may lie in one tensor, the values after the keys.
///
/// # Errors
/// As [`check`] and [`append_cpu`].
///
/// # Safety
/// As [`forward`].
pub unsafe fn append(append: &Append, memory: &Memory) -> Result<()> {
    let (mut memory, mut values_at) = (*memory, None);
    if let (Some(keys), Some(values)) = (memory[Operand::KPages], memory[Operand::VPages])
        && keys.meets(&values)
    {
        let size = append.types().k.size();
        let distance = { values.start.addr().checked_sub(keys.start.addr()) }
            .filter(|distance| distance.is_multiple_of(size));
        let Some(distance) = distance else {
            return Err(Invalid::SharesMemory {
                argument: values.argument,
                other: keys.argument,
                rule: ", but does not come after it in one tensor",
            }
            .into());
        };
        values_at = Some(distance / size);
        // Both end within the address space, and the sum is below twice the larger one, as they meet.
        let len = keys.len.max(distance + values.len);
        memory[Operand::KPages] = Some(HostMemory { len, ..keys });
        memory[Operand::VPages] = None;
    }
    // SAFETY: the caller's promise.
    let (inputs, outputs) = unsafe { views(&memory, append.expected(), values_at) }?;
    append_cpu(append, &inputs, outputs)
}

/// As [`merge_cpu`]; `parts` are the outputs and lse.
///
/// # Errors
/// As [`check`] and [`merge_cpu`].
///
/// # Safety
/// As [`forward`].
pub unsafe fn merge(
    merge: &Merge,
    parts: &[[HostMemory; 2]],
    out: HostMemory,
    lse: Option<HostMemory>,
) -> Result<()> {
    let outputs: Vec<HostMemory> = [Some(out), lse].into_iter().flatten().collect();
    for (index, output) in outputs.iter().enumerate() {
        let mut others = outputs[index + 1..].iter().chain(parts.as_flattened());
        expect_apart(output, &mut others)?;
    }
    // SAFETY: the caller's promise; outputs overlap nothing.
    unsafe { with_element!(merge.element(), T => merge_typed::<T>(merge, parts, out, lse)) }
}

/// # Safety
/// As [`merge`], and outputs overlap nothing.
unsafe fn merge_typed<T: Element>(
    merge: &Merge,
    parts: &[[HostMemory; 2]],
    out: HostMemory,
    lse: Option<HostMemory>,
) -> Result<()> {
    // SAFETY: the caller's promise; any bits are a value of `T`.
    unsafe {
        let parts: Vec<(&[T], &[f32])> = { parts.iter() }
            .map(|[out, lse]| (out.slice(), lse.slice()))
            .collect();
        merge_cpu(
            merge,
            &parts,
            out.slice_mut(),
            lse.map(|lse| lse.slice_mut()),
        )
    }
}

/// The inputs and outputs of a call. `values_at`: elements from the first key to the first value of a cache that has both in one piece of
/// memory.
///
/// # Safety
/// As [`forward`], as long as the slices live.
unsafe fn views<'a>(
    memory: &Memory,
    expected: &Slots<Expected>,
    values_at: Option<usize>,
) -> Result<(HostInputs<'a>, HostOutputs<'a>)> {
    check_apart(memory, expected)?;
    let mut inputs = HostInputs::default();
    let mut outputs = values_at.map_or_else(HostOutputs::default, |at| {
        HostOutputs::cache_in_one::<u8>(&mut [], at)
    });
    for (operand, memory) in memory.given() {
        // SAFETY: the caller's promise; outputs overlap nothing.
        unsafe {
            match expected[operand].access {
                Access::Write => outputs = outputs.with::<u8>(operand, memory.slice_mut()),
                Access::Read => inputs.set::<u8>(operand, memory.slice()),
            }
        }
    }
    Ok((inputs, outputs))
}

fn check_apart(memory: &Memory, expected: &Slots<Expected>) -> Result<()> {
    let is_written = |operand: Operand| expected[operand].access == Access::Write;
    for (operand, output) in memory.given().filter(|(operand, _)| is_written(*operand)) {
        let others = { memory.given() }
            // Two outputs are compared once.
            .filter(|(other, _)| !is_written(*other) || *other > operand)
            .map(|(_, other)| other);
        expect_apart(output, others)?;
    }
    Ok(())
}

fn expect_apart<'a>(
    output: &HostMemory,
    mut others: impl Iterator<Item = &'a HostMemory>,
) -> Result<()> {
    match others.find(|other| output.meets(other)) {
        None => Ok(()),
        Some(other) => Err(Invalid::SharesMemory {
            argument: output.argument,
            other: other.argument,
            rule: "; an output needs memory of its own, on the CPU with the gaps between its rows",
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_do_not_meet_and_one_shared_byte_does() {
        let memory = [0_u8; 32];
        let place = |start: usize, len| HostMemory::of("x", memory[start..].as_ptr(), len).unwrap();
        assert!(!place(0, 16).meets(&place(16, 16)));
        assert!(place(0, 17).meets(&place(16, 16)));
        assert!(!place(4, 0).meets(&place(0, 16)));
        assert!(expect_apart(&place(0, 8), [place(8, 8), place(7, 0)].iter()).is_ok());
        assert!(expect_apart(&place(0, 8), [place(9, 8), place(7, 1)].iter()).is_err());
    }

    #[test]
    fn null_misaligned_and_endless_memory_is_refused() {
        let words = [0_u32; 4];
        let start = words.as_ptr();
        assert!(HostMemory::of("x", start, 4).is_ok());
        assert!(HostMemory::of("x", std::ptr::null::<u32>(), 1).is_err());
        assert!(HostMemory::of("x", std::ptr::null::<u32>(), 0).is_ok());
        assert!(HostMemory::of("x", start.wrapping_byte_add(2), 1).is_err());
        assert!(HostMemory::of("x", start, usize::MAX / 2).is_err());
        let last = std::ptr::without_provenance::<u32>(usize::MAX - 3);
        assert!(HostMemory::of("x", last, 4).is_err());
    }
}
