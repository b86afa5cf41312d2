//! Memory of other libraries on the CPU.

use warptile::cpu::raw::HostMemory;

use crate::array::Described;
use crate::errors::{Failure, Result};

/// The first elements of an array, gaps included, after a check that elements of its type can be there.
pub(crate) fn memory(array: &Described, len: usize) -> Result<HostMemory> {
    let (name, size) = (array.name, array.dtype.size() as usize);
    if len > array.reach() {
        return Err(Failure::Invalid(format!(
            "{name} has {} elements, gaps included, but {len} are needed",
            array.reach()
        )));
    }
    // Elements of every type are aligned to their size.
    let bytes = len.saturating_mul(size);
    Ok(HostMemory::new(
        name,
        array.address as *mut u8,
        bytes,
        size,
    )?)
}

/// The first elements of an array, gaps included.
///
/// # Safety
/// The array has those elements, of type `T` or of its size if any bits are a value, and nobody writes them while the slice lives.
pub(crate) unsafe fn slice<T>(array: &Described, len: usize) -> Result<&[T]> {
    // SAFETY: `memory` has checked alignment and size; the rest is the caller's promise.
    Ok(unsafe { memory(array, len)?.slice() })
}
