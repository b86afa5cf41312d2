//! Operands in the caller's memory.

use std::ptr::NonNull;

use attention::kernels::{Count, Elements, Kind};
use attention::{ElementType, HostInputs, HostOutputs, Layout, Numbers, Operand, Request, Slots};

use crate::error::{Failure, Result};
use crate::structs::{Versioned, address, check_pointer};

/// The memory of an operation: a pointer for each of its operands.
pub(crate) trait Memory: Versioned {
    /// Null if it is not given.
    fn pointer(&self, operand: Operand) -> *mut u8;

    /// The pointers, as the driver counts addresses.
    fn addresses(&self) -> Slots<u64> {
        Slots::from_fn(|operand| address(self.pointer(operand)))
    }
}

/// The addresses with their names.
pub(crate) fn named(addresses: &Slots<u64>) -> impl Iterator<Item = (&'static str, u64)> {
    { addresses.iter() }.map(|(operand, &address)| (operand.name(), address))
}

/// Says which field has the pointer of an operand.
macro_rules! memory {
    ($Memory:ty { $($Operand:ident: $field:ident),* $(,)? }) => {
        impl $crate::host::Memory for $Memory {
            fn pointer(&self, operand: attention::Operand) -> *mut u8 {
                match operand {
                    $(attention::Operand::$Operand => self.$field as *mut u8,)*
                    _ => std::ptr::null_mut(),
                }
            }
        }
    };
}
pub(crate) use memory;

/// Bytes that a call on the CPU reads or writes: not null, aligned for their elements, and no larger than memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    name: &'static str,
    start: *mut u8,
    len: usize,
}

impl Part {
    /// `len` bytes. If there are none, the pointer may be anything.
    pub(crate) fn bytes(
        name: &'static str,
        start: *mut u8,
        len: usize,
        alignment: usize,
    ) -> Result<Self> {
        if isize::try_from(len).is_err() {
            return Err(Failure::of(name, "is larger than memory"));
        }
        if len == 0 {
            let start = NonNull::<u128>::dangling().as_ptr().cast();
            return Ok(Part { name, start, len });
        }
        check_pointer(name, start, alignment)?;
        match start.addr().checked_add(len) {
            Some(_) => Ok(Part { name, start, len }),
            None => Err(Failure::of(name, "reaches beyond the address space")),
        }
    }

    /// `count` elements.
    pub(crate) fn of<T>(name: &'static str, start: *const T, count: usize) -> Result<Self> {
        let len = count.saturating_mul(size_of::<T>());
        Part::bytes(name, start.cast_mut().cast(), len, align_of::<T>())
    }

    /// The elements that a layout reaches, gaps included.
    pub(crate) fn tensor<T>(name: &'static str, start: *const T, layout: &Layout) -> Result<Self> {
        // A reach beyond the address space is larger than memory.
        Part::of(name, start, layout.required_len().unwrap_or(usize::MAX))
    }

    /// # Safety
    /// The memory is there, holds values of `T`, for which it is aligned, and nobody writes it while the slice lives.
    pub(crate) unsafe fn slice<'a, T>(&self) -> &'a [T] {
        // SAFETY: not null and no larger than memory, by `bytes`; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / size_of::<T>()) }
    }

    /// # Safety
    /// As [`Part::slice`], and nobody else reads it either.
    pub(crate) unsafe fn slice_mut<'a, T>(&self) -> &'a mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len / size_of::<T>()) }
    }

    /// How many bytes after `other` this begins, for two that lie in one tensor.
    pub(crate) fn after(&self, other: &Part) -> Result<usize> {
        let bytes = self.start.addr().checked_sub(other.start.addr());
        bytes.ok_or_else(|| {
            Failure::of(
                self.name,
                format!(
                    "shares memory with {}, but does not come after it in one tensor",
                    other.name
                ),
            )
        })
    }

    /// From here on, as far as this or `other` reaches, which begins `distance` bytes later.
    pub(crate) fn up_to_the_end_of(&self, other: &Part, distance: usize) -> Part {
        // The end of both is within the address space.
        let len = self.len.max(distance + other.len);
        Part { len, ..*self }
    }

    /// Tells whether both have a byte in common.
    pub(crate) fn meets(&self, other: &Part) -> bool {
        let ([start, end], [other_start, other_end]) = (self.ends(), other.ends());
        self.len != 0 && other.len != 0 && start < other_end && other_start < end
    }

    fn ends(&self) -> [usize; 2] {
        let start = self.start.addr();
        [start, start + self.len]
    }
}

/// Refuses what a description did not ask for.
fn expect_absent(operand: Operand, pointer: *const u8) -> Result<()> {
    match pointer.is_null() {
        true => Ok(()),
        false => Err(Failure::of(
            operand.name(),
            "is given, but the call was built without it",
        )),
    }
}

/// The lists of whole numbers of a description: on the CPU those of `memory`; without `memory` they are on a device, or not known yet.
pub(crate) struct Lists<'m, M> {
    pub(crate) memory: Option<&'m M>,
    /// Sequences.
    pub(crate) sequences: usize,
    /// Entries of the block table.
    pub(crate) entries: usize,
    /// New rows, counted through the batch.
    pub(crate) new_rows: usize,
}

impl<M: Memory> Lists<'_, M> {
    /// The list of an operand if it is wanted. In `memory` it is null exactly if it is not.
    ///
    /// # Safety
    /// The pointer is null or points to as many values as the description says, which no other code writes for as long as `'a`.
    pub(crate) unsafe fn get<'a, T>(
        &self,
        operand: Operand,
        wanted: bool,
    ) -> Result<Request<'a, T>> {
        let len = match operand.kind() {
            Kind::List(Count::Offsets) => self.sequences.saturating_add(1),
            Kind::List(Count::Table) => self.entries,
            Kind::List(Count::NewRows) => self.new_rows,
            _ => self.sequences,
        };
        match (self.memory.map(|memory| memory.pointer(operand)), wanted) {
            (None, true) => Ok(Numbers::Device(len)),
            (None, false) => Ok(Numbers::None),
            (Some(pointer), false) => expect_absent(operand, pointer).map(|()| Numbers::None),
            (Some(pointer), true) => {
                let part = Part::of(operand.name(), pointer.cast_const().cast::<T>(), len)?;
                // SAFETY: aligned by `of`; the rest is the caller's promise.
                Ok(Numbers::Host(unsafe { part.slice() }))
            }
        }
    }
}

/// The memory of the operands of a call on the CPU. Each is given exactly if bytes of it are `needed`. Whole numbers are left out:
/// [`Lists`] reads them, and the description keeps copies.
pub(crate) fn parts(
    memory: &impl Memory,
    needed: impl Iterator<Item = (Operand, Option<u64>)>,
    type_of: impl Fn(Operand) -> Option<ElementType>,
) -> Result<Slots<Option<Part>>> {
    let mut parts = Slots::default();
    for (operand, bytes) in needed {
        if let Elements::I32 | Elements::I64 | Elements::Position = operand.elements() {
            continue;
        }
        let pointer = memory.pointer(operand);
        let alignment = type_of(operand).map_or(1, ElementType::size);
        match bytes {
            None => expect_absent(operand, pointer)?,
            Some(bytes) => {
                let part = Part::bytes(operand.name(), pointer, bytes as usize, alignment)?;
                parts[operand] = Some(part);
            }
        }
    }
    Ok(parts)
}

/// The inputs and outputs of a call on the CPU. `values_at`: elements from the first key to the first value of a cache that has both in
/// one piece of memory.
///
/// # Safety
/// The memory is there. While the slices live, no other code writes the inputs or touches the outputs.
pub(crate) unsafe fn views<'a>(
    parts: &Slots<Option<Part>>,
    is_written: impl Fn(Operand) -> bool,
    values_at: Option<usize>,
) -> Result<(HostInputs<'a>, HostOutputs<'a>)> {
    let those = |written: bool| -> Vec<Part> {
        { parts.given() }
            .filter(|(operand, _)| is_written(*operand) == written)
            .map(|(_, part)| *part)
            .collect()
    };
    check_apart(&those(true), &those(false))?;
    let mut inputs = HostInputs::default();
    let mut outputs = values_at.map_or_else(HostOutputs::default, |at| {
        HostOutputs::cache_in_one::<u8>(&mut [], at)
    });
    for (operand, part) in parts.given() {
        // SAFETY: the caller's promise; outputs overlap nothing.
        unsafe {
            match is_written(operand) {
                true => outputs = outputs.with::<u8>(operand, part.slice_mut()),
                false => inputs.set::<u8>(operand, part.slice()),
            }
        }
    }
    Ok((inputs, outputs))
}

/// Checks lengths that the host knows against a bound that the description has for them.
pub(crate) fn expect_within(
    argument: &str,
    bound: Option<usize>,
    rows: &str,
    lengths: impl Iterator<Item = usize>,
) -> Result<()> {
    let Some(bound) = bound else {
        return Ok(());
    };
    match lengths.enumerate().find(|&(_, length)| length > bound) {
        None => Ok(()),
        Some((sequence, length)) => Err(Failure::of(
            argument,
            format!("is {bound}, but sequence {sequence} has {length} {rows}"),
        )),
    }
}

/// Checks that no output shares memory with anything else: gaps between rows count, as slices have them.
pub(crate) fn check_apart(outputs: &[Part], inputs: &[Part]) -> Result<()> {
    for (index, output) in outputs.iter().enumerate() {
        let mut others = outputs[index + 1..].iter().chain(inputs);
        if let Some(other) = others.find(|other| output.meets(other)) {
            return Err(Failure::of(
                output.name,
                format!(
                    "shares memory with {}; an output needs memory of its own, on the CPU with the gaps between its rows",
                    other.name
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append_desc::AppendMemory;
    use crate::attention_desc::AttentionMemory;
    use crate::structs::read;
    use attention::kernels::Operations;
    use std::collections::BTreeSet;

    #[test]
    fn ranges_that_touch_do_not_meet_and_one_shared_byte_does() {
        let memory = [0_u8; 32];
        let place = |start: usize, len| Part::of("x", memory[start..].as_ptr(), len).unwrap();
        assert!(!place(0, 16).meets(&place(16, 16)));
        assert!(place(0, 17).meets(&place(16, 16)));
        assert!(!place(4, 0).meets(&place(0, 16)));
        assert!(check_apart(&[place(0, 8), place(4, 8)], &[]).is_err());
        assert!(check_apart(&[place(0, 8)], &[place(8, 8), place(7, 0)]).is_ok());
        assert!(check_apart(&[place(0, 8)], &[place(9, 8), place(7, 1)]).is_err());
    }

    #[test]
    fn null_misaligned_and_endless_memory_is_refused() {
        let words = [0_u32; 4];
        let start = words.as_ptr();
        assert!(Part::of("x", start, 4).is_ok());
        assert!(Part::of("x", std::ptr::null::<u32>(), 1).is_err());
        assert!(Part::of("x", std::ptr::null::<u32>(), 0).is_ok());
        assert!(Part::of("x", start.wrapping_byte_add(2), 1).is_err());
        assert!(Part::of("x", start, usize::MAX / 2).is_err());
        assert!(Part::of("x", std::ptr::without_provenance::<u32>(usize::MAX - 3), 4).is_err());
    }

    /// Each word is a pointer of its own.
    fn every_operand_has_a_field<M: Memory>(operations: Operations) {
        let mut words: Vec<usize> = (0..size_of::<M>() / 8).collect();
        words[0] = size_of::<M>();
        // SAFETY: as long as the size in it says.
        let memory = unsafe { read("memory", words.as_ptr().cast::<M>()) }.unwrap();
        let pointer = |operand| memory.pointer(operand).addr();
        let fields: Vec<usize> = Operand::of(operations).map(pointer).collect();
        assert!(!fields.contains(&0), "an operand has no field: {fields:?}");
        let distinct: BTreeSet<usize> = fields.iter().copied().collect();
        assert_eq!(distinct.len(), fields.len(), "{fields:?}");
    }

    #[test]
    fn operands_have_fields() {
        every_operand_has_a_field::<AttentionMemory>(Operations::FORWARD);
        every_operand_has_a_field::<AppendMemory>(Operations::APPEND);
    }
}
