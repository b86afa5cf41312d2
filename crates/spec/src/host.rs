//! Operands in host memory.

use bytemuck::{Pod, PodCastError};

use crate::{
    Access, Element, ElementType, Elements, Expected, Invalid, Kind, MemoryType, Operand, Result,
    SCALES, Slots, check_list, expect_presence, expect_room,
};

/// The inputs of an operation on the CPU: for each operand that the description needs, and for no other, its memory.
///
/// ```
/// use warptile::spec::{HostInputs, Operand};
///
/// let (q, k, slopes) = ([0.5_f32; 16], [0.5_f32; 24], [0.25_f32; 2]);
/// let inputs = HostInputs::new(&q, &k, &k).with(Operand::Slopes, &slopes);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct HostInputs<'a>(Slots<Option<HostSlice<'a>>>);

/// The memory of an operand, with the type of its elements.
#[derive(Debug, Clone, Copy)]
struct HostSlice<'a> {
    bytes: &'a [u8],
    memory: MemoryType,
}

impl<'a> HostInputs<'a> {
    /// Queries, keys and values.
    pub fn new<T: Element, K: Pod>(q: &'a [T], k: &'a [K], v: &'a [K]) -> Self {
        Self::default()
            .with(Operand::Q, q)
            .with(Operand::K, k)
            .with(Operand::V, v)
    }

    /// The memory of an operand. Bytes (`u8`) are elements of any type that the description has.
    pub fn with<T: Pod>(mut self, operand: Operand, memory: &'a [T]) -> Self {
        self.set(operand, memory);
        self
    }

    /// [`with`](Self::with) in place.
    pub fn set<T: Pod>(&mut self, operand: Operand, memory: &'a [T]) {
        self.0[operand] = Some(HostSlice {
            bytes: bytemuck::cast_slice(memory),
            memory: MemoryType::of::<T>(),
        });
    }

    /// The elements of an operand; none of what is not given.
    ///
    /// # Errors
    /// [`Invalid::Misaligned`] if they don't start where elements of this type can.
    pub fn elements<T: Pod>(&self, operand: Operand) -> Result<Option<&'a [T]>> {
        let Some(slice) = self.0[operand] else {
            return Ok(None);
        };
        if size_of::<T>() == 0 {
            // No memory is made of these.
            return Ok(Some(&[]));
        }
        bytemuck::try_cast_slice(slice.bytes)
            .or_else(|error| match error {
                // Bytes after the last whole element are unused.
                PodCastError::OutputSliceWouldHaveSlop => {
                    let whole = slice.bytes.len() / size_of::<T>() * size_of::<T>();
                    bytemuck::try_cast_slice(&slice.bytes[..whole])
                }
                other => Err(other),
            })
            .map(Some)
            .map_err(|_| Invalid::Misaligned {
                argument: operand.name(),
                address: slice.bytes.as_ptr().addr() as u64,
                alignment: align_of::<T>() as u64,
            })
    }
}

/// The outputs of an operation on the CPU, as [`HostInputs`] has the inputs.
#[derive(Debug, Default)]
pub struct HostOutputs<'a> {
    slots: Slots<Option<(&'a mut [u8], MemoryType)>>,
    /// Elements of a cache from its first key to its first value, if both are in one memory.
    values_at: Option<usize>,
}

impl<'a> HostOutputs<'a> {
    /// Where the output goes.
    pub fn new<T: Element>(out: &'a mut [T]) -> Self {
        Self::default().with(Operand::Out, out)
    }

    /// The keys and values of a cache.
    pub fn cache<C: Pod>(k_pages: &'a mut [C], v_pages: &'a mut [C]) -> Self {
        Self::default()
            .with(Operand::KPages, k_pages)
            .with(Operand::VPages, v_pages)
    }

    /// A cache that has its keys and values in one memory, the values `values_at` elements after the keys: elements of the cache's type,
    /// also where the memory is given as bytes.
    pub fn cache_in_one<C: Pod>(cache: &'a mut [C], values_at: usize) -> Self {
        HostOutputs {
            values_at: Some(values_at),
            ..Self::default().with(Operand::KPages, cache)
        }
    }

    /// Where the lse goes.
    pub fn lse(self, lse: &'a mut [f32]) -> Self {
        self.with(Operand::Lse, lse)
    }

    /// The memory of an operand. Bytes (`u8`) are elements of any type that the description has.
    pub fn with<T: Pod>(mut self, operand: Operand, memory: &'a mut [T]) -> Self {
        if operand == Operand::VPages {
            // In a memory of their own, not in that of the keys.
            self.values_at = None;
        }
        self.slots[operand] = Some((bytemuck::cast_slice_mut(memory), MemoryType::of::<T>()));
        self
    }

    /// From which element of the memory of keys on the values lie, if they have none of their own.
    pub const fn values_at(&self) -> Option<usize> {
        self.values_at
    }

    /// Bytes and type of what is given for an operand whose elements have `size` bytes.
    fn get(&self, operand: Operand, size: usize) -> Option<(usize, MemoryType)> {
        if let (Operand::VPages, Some(values_at)) = (operand, self.values_at) {
            let (bytes, memory) = self.slots[Operand::KPages].as_ref()?;
            return Some((
                bytes.len().saturating_sub(values_at.saturating_mul(size)),
                *memory,
            ));
        }
        let (bytes, memory) = self.slots[operand].as_ref()?;
        Some((bytes.len(), *memory))
    }

    /// The elements of an operand, taken out; none of what is not given.
    ///
    /// # Errors
    /// [`Invalid::Misaligned`] if they don't start where elements of this type can.
    pub fn take<T: Pod>(&mut self, operand: Operand) -> Result<Option<&'a mut [T]>> {
        let Some((bytes, _)) = self.slots[operand].take() else {
            return Ok(None);
        };
        let whole = bytes.len() / size_of::<T>() * size_of::<T>();
        let address = bytes.as_ptr().addr() as u64;
        bytemuck::try_cast_slice_mut(&mut bytes[..whole])
            .map(Some)
            .map_err(|_| Invalid::Misaligned {
                argument: operand.name(),
                address,
                alignment: align_of::<T>() as u64,
            })
    }
}

/// Checks that memory is given for each operand that is expected and for no other, in the inputs if it is read and in the outputs if it is
/// written, with elements of the right type, room for all, and numbers that it may have. Without `outputs` only what is read is checked.
pub fn check(
    expected: &Slots<Expected>,
    scaled: Option<ElementType>,
    inputs: &HostInputs<'_>,
    outputs: Option<&HostOutputs<'_>>,
) -> Result<()> {
    for (operand, expected) in expected.iter() {
        let argument = operand.name();
        let read = inputs.0[operand].map(|slice| (slice.bytes.len(), slice.memory));
        let written = outputs.and_then(|outputs| outputs.get(operand, expected.size as usize));
        let is_given = read.is_some() || written.is_some();
        let refuse = |rule| Err(Invalid::presence(argument, rule));
        let is_list = matches!(operand.kind(), Kind::List(_)) && expected.element.is_none();
        if expected.on_host && is_given {
            return refuse("is given, but the description has its numbers already");
        }
        if expected.on_host {
            continue;
        }
        if expected.wanted && is_list {
            return refuse("is on a GPU, but the tensors are in host memory");
        }
        if expected.wanted && read.is_some() {
            expected.access.check(argument, Access::Read)?;
        }
        if expected.wanted && written.is_some() {
            expected.access.check(argument, Access::Write)?;
        }
        let given = match expected.access {
            Access::Write if outputs.is_none() => continue,
            // Nobody has to take it.
            Access::Write if operand == Operand::Lse && !is_given => continue,
            Access::Write => written,
            Access::Read => read,
        };
        if is_given != expected.wanted && SCALES.contains(&operand) {
            return Err(Invalid::Scales {
                argument,
                keys: scaled,
            });
        }
        expect_presence(argument, expected.wanted, is_given)?;
        let Some((bytes, memory)) = given else {
            continue;
        };
        memory.check(argument, expected.element, expected.size)?;
        let size = expected.size as usize;
        let (needed, found) = (expected.bytes.reach() as usize / size, bytes / size);
        if operand.elements() == Elements::F32 && expected.access == Access::Read {
            if found != needed {
                return Err(Invalid::count(argument, found, needed));
            }
            check_list(operand, inputs.elements(operand)?.unwrap_or_default())?;
        }
        expect_room(argument, needed, found)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_without_bytes_are_none() {
        let inputs = HostInputs::default().with(Operand::Q, &[0.0_f32; 4]);
        assert_eq!(inputs.elements::<()>(Operand::Q).unwrap().unwrap().len(), 0);
    }
}
