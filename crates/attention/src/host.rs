//! Operands in host memory.

use bytemuck::{Pod, PodCastError};
use warptile_kernels::{Operand, Slots};

use crate::element::type_of;
use crate::error::{Error, Result};
use crate::{Element, ElementType};

/// The inputs of an operation on the CPU: for each operand that the description needs, and for no other, its memory.
///
/// ```
/// use warptile::{HostInputs, Operand};
///
/// let (q, k, sinks) = ([0.5_f32; 16], [0.5_f32; 24], [0.0_f32; 2]);
/// let inputs = HostInputs::new(&q, &k, &k).with(Operand::Sinks, &sinks);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct HostInputs<'a>(Slots<Option<HostSlice<'a>>>);

/// The memory of an operand, with the type of its elements if the caller knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostSlice<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) element: Option<ElementType>,
}

impl<'a> HostInputs<'a> {
    /// Queries, keys and values.
    pub fn new<T: Element, K: Pod>(q: &'a [T], k: &'a [K], v: &'a [K]) -> Self {
        Self::default()
            .with(Operand::Q, q)
            .with(Operand::K, k)
            .with(Operand::V, v)
    }

    /// The memory of an operand. Bytes (`u8`) are elements of whatever type the description has.
    #[must_use]
    pub fn with<T: Pod>(mut self, operand: Operand, memory: &'a [T]) -> Self {
        self.set(operand, memory);
        self
    }

    /// [`with`](Self::with) in place.
    pub fn set<T: Pod>(&mut self, operand: Operand, memory: &'a [T]) {
        self.0[operand] = Some(HostSlice {
            bytes: bytemuck::cast_slice(memory),
            element: type_of::<T>(),
        });
    }

    pub(crate) fn get(&self, operand: Operand) -> Option<&HostSlice<'a>> {
        self.0[operand].as_ref()
    }

    /// The elements of an operand; none of what is not given.
    ///
    /// # Errors
    /// [`Error::Misaligned`] if they don't start where elements of this type can.
    pub fn elements<T: Pod>(&self, operand: Operand) -> Result<Option<&'a [T]>> {
        let Some(slice) = self.get(operand) else {
            return Ok(None);
        };
        bytemuck::try_cast_slice(slice.bytes)
            .or_else(|error| match error {
                // Bytes behind the last whole element are nobody's.
                PodCastError::OutputSliceWouldHaveSlop => {
                    let whole = slice.bytes.len() / size_of::<T>() * size_of::<T>();
                    bytemuck::try_cast_slice(&slice.bytes[..whole])
                }
                other => Err(other),
            })
            .map(Some)
            .map_err(|_| Error::Misaligned {
                argument: operand.name(),
                address: slice.bytes.as_ptr().addr() as u64,
                alignment: align_of::<T>() as u64,
            })
    }
}

/// The outputs of an operation on the CPU, as [`HostInputs`] has the inputs.
#[derive(Debug, Default)]
pub struct HostOutputs<'a> {
    slots: Slots<Option<(&'a mut [u8], Option<ElementType>)>>,
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

    /// A cache that has its keys and values in one memory, the values `values_at` elements after the keys.
    pub fn cache_in_one<C: Pod>(cache: &'a mut [C], values_at: usize) -> Self {
        HostOutputs {
            values_at: Some(values_at),
            ..Self::default().with(Operand::KPages, cache)
        }
    }

    /// Where the lse goes.
    #[must_use]
    pub fn lse(self, lse: &'a mut [f32]) -> Self {
        self.with(Operand::Lse, lse)
    }

    /// The memory of an operand. Bytes (`u8`) are elements of whatever type the description has.
    #[must_use]
    pub fn with<T: Pod>(mut self, operand: Operand, memory: &'a mut [T]) -> Self {
        self.slots[operand] = Some((bytemuck::cast_slice_mut(memory), type_of::<T>()));
        self
    }

    pub(crate) const fn values_at(&self) -> Option<usize> {
        self.values_at
    }

    /// Bytes and type of what is given for an operand, whose elements have `size` bytes if their type is not known.
    pub(crate) fn get(
        &self,
        operand: Operand,
        size: usize,
    ) -> Option<(usize, Option<ElementType>)> {
        if let (Operand::VPages, Some(values_at)) = (operand, self.values_at) {
            let (bytes, element) = self.slots[Operand::KPages].as_ref()?;
            let size = element.map_or(size, ElementType::size);
            return Some((
                bytes.len().saturating_sub(values_at.saturating_mul(size)),
                *element,
            ));
        }
        let (bytes, element) = self.slots[operand].as_ref()?;
        Some((bytes.len(), *element))
    }

    /// The elements of an operand, taken out; none of what is not given.
    ///
    /// # Errors
    /// [`Error::ElementMismatch`]; [`Error::Misaligned`] if they don't start where elements of this type can.
    pub(crate) fn take<T: Pod>(&mut self, operand: Operand) -> Result<Option<&'a mut [T]>> {
        let Some((bytes, found)) = self.slots[operand].take() else {
            return Ok(None);
        };
        if size_of::<T>() > 1 {
            check_type(operand.name(), type_of::<T>(), found)?;
        }
        let whole = bytes.len() / size_of::<T>() * size_of::<T>();
        let address = bytes.as_ptr().addr() as u64;
        bytemuck::try_cast_slice_mut(&mut bytes[..whole])
            .map(Some)
            .map_err(|_| Error::Misaligned {
                argument: operand.name(),
                address,
                alignment: align_of::<T>() as u64,
            })
    }
}

/// Refuses elements of another type than expected, as far as both are known.
pub(crate) fn check_type(
    argument: &'static str,
    expected: Option<ElementType>,
    found: Option<ElementType>,
) -> Result<()> {
    match (expected, found) {
        (Some(expected), Some(found)) if found != expected => Err(Error::ElementMismatch {
            argument,
            expected,
            found,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_a_cache_in_bytes_begin_after_whole_elements() {
        let mut memory = [0_u8; 16];
        let outputs = HostOutputs::cache_in_one(&mut memory, 4);
        assert_eq!(outputs.get(Operand::KPages, 2), Some((16, None)));
        assert_eq!(outputs.get(Operand::VPages, 2), Some((8, None)));
    }
}
