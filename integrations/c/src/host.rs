//! Operands in the caller's memory.

use attention::ElementType;
use attention::cpu::raw::{self, HostMemory};
use attention::kernels::{Count, Elements, Kind};
use attention::spec::{DropoutState, Numbers, Operand, Request, Slots};

use crate::error::{Failure, Result};
use crate::structs::{address, check_pointer};

/// The memory of an operation: a pointer for each of its operands.
pub(crate) trait Memory {
    /// Null if it is not given.
    fn pointer(&self, operand: Operand) -> *mut u8;

    /// The pointers, as the driver counts addresses.
    fn addresses(&self) -> Slots<u64> {
        Slots::from_fn(|operand| address(self.pointer(operand)))
    }
}

/// Says which fields have the pointers of operands, by whose names they are called.
macro_rules! memory {
    ($Memory:ty: $($field:ident),*) => {
        impl $crate::host::Memory for $Memory {
            fn pointer(&self, operand: attention::spec::Operand) -> *mut u8 {
                use attention::spec::Operand;
                $(if operand as usize == const { Operand::named(stringify!($field)) as usize } {
                    return self.$field as *mut u8;
                })*
                std::ptr::null_mut()
            }
        }
    };
}
pub(crate) use memory;

/// `count` elements that a call on the CPU reads. If there are none, the pointer may be anything.
pub(crate) fn elements<T>(name: &'static str, start: *const T, count: usize) -> Result<HostMemory> {
    if count != 0 {
        check_pointer(name, start, align_of::<T>())?;
    }
    Ok(HostMemory::of(name, start, count)?)
}

/// Refuses what a description did not ask for.
pub(crate) fn expect_absent(operand: Operand, pointer: *const u8) -> Result<()> {
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
    /// Offsets and indices of the lists of blocks.
    pub(crate) blocks: [usize; 2],
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
            Kind::List(Count::State) => DropoutState::WORDS,
            Kind::List(Count::NewRows) => self.new_rows,
            Kind::List(Count::BlockRows) => self.blocks[0],
            Kind::List(Count::Blocks) => self.blocks[1],
            _ => self.sequences,
        };
        match (self.memory.map(|memory| memory.pointer(operand)), wanted) {
            (None, true) => Ok(Numbers::Device(len)),
            (None, false) => Ok(Numbers::None),
            (Some(pointer), false) => expect_absent(operand, pointer).map(|()| Numbers::None),
            (Some(pointer), true) => {
                let list = elements(operand.name(), pointer.cast_const().cast::<T>(), len)?;
                // SAFETY: aligned by `elements`; the rest is the caller's promise.
                Ok(Numbers::Host(unsafe { list.slice() }))
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
) -> Result<raw::Memory> {
    let mut parts = raw::Memory::none();
    for (operand, bytes) in needed {
        if let Elements::I32 | Elements::I64 | Elements::Position = operand.elements() {
            continue;
        }
        let pointer = memory.pointer(operand);
        let alignment = type_of(operand).map_or(1, ElementType::size);
        match bytes {
            None => expect_absent(operand, pointer)?,
            Some(bytes) => {
                if bytes != 0 {
                    check_pointer(operand.name(), pointer, alignment)?;
                }
                let len = usize::try_from(bytes).unwrap_or(usize::MAX);
                parts[operand] = Some(HostMemory::new(operand.name(), pointer, len, alignment)?);
            }
        }
    }
    Ok(parts)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append_desc::AppendMemory;
    use crate::attention_desc::AttentionMemory;
    use crate::backward_desc::BackwardMemory;
    use crate::structs::{Versioned, read};
    use attention::kernels::Operations;
    use std::collections::BTreeSet;

    /// Each word is a pointer of its own.
    fn every_operand_has_a_field<M: Memory + Versioned>(operands: impl Iterator<Item = Operand>) {
        let mut words: Vec<usize> = (0..size_of::<M>() / 8).collect();
        words[0] = size_of::<M>();
        // SAFETY: as long as the size in it says.
        let memory = unsafe { read("memory", words.as_ptr().cast::<M>()) }.unwrap();
        let pointer = |operand| memory.pointer(operand).addr();
        let fields: Vec<usize> = operands.map(pointer).collect();
        assert!(!fields.contains(&0), "an operand has no field: {fields:?}");
        let distinct: BTreeSet<usize> = fields.iter().copied().collect();
        assert_eq!(distinct.len(), fields.len(), "{fields:?}");
    }

    #[test]
    fn operands_have_fields() {
        every_operand_has_a_field::<AttentionMemory>(Operand::of(Operations::FORWARD));
        every_operand_has_a_field::<AppendMemory>(Operand::of(Operations::APPEND));
        // The others are those of a forward pass, and what one step gives the next.
        let own = [Operand::DOut, Operand::DLse].into_iter();
        every_operand_has_a_field::<BackwardMemory>(own.chain(Operand::GRADIENTS));
    }
}
