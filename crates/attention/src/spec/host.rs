//! Operands in host memory.

use bytemuck::{Pod, PodCastError};
use warptile_kernels::{Elements, Kind, Operand, Slots};

use crate::spec::{
    Access, Element, ElementType, Error, Expected, MemoryType, Result, SCALES, check_list,
    expect_presence, expect_room,
};

/// The inputs of an operation on the CPU: for each operand that the description needs, and for no other, its memory.
///
/// ```
/// use warptile::{HostInputs, Operand};
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
            memory: MemoryType::of::<T>(),
        });
    }

    /// The elements of an operand; none of what is not given.
    ///
    /// # Errors
    /// [`Error::Misaligned`] if they don't start where elements of this type can.
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
    #[must_use]
    pub fn lse(self, lse: &'a mut [f32]) -> Self {
        self.with(Operand::Lse, lse)
    }

    /// The memory of an operand. Bytes (`u8`) are elements of whatever type the description has.
    #[must_use]
    pub fn with<T: Pod>(mut self, operand: Operand, memory: &'a mut [T]) -> Self {
        if operand == Operand::VPages {
            // In a memory of their own, not in that of the keys.
            self.values_at = None;
        }
        self.slots[operand] = Some((bytemuck::cast_slice_mut(memory), MemoryType::of::<T>()));
        self
    }

    pub(crate) const fn values_at(&self) -> Option<usize> {
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
    /// [`Error::Misaligned`] if they don't start where elements of this type can.
    pub(crate) fn take<T: Pod>(&mut self, operand: Operand) -> Result<Option<&'a mut [T]>> {
        let Some((bytes, _)) = self.slots[operand].take() else {
            return Ok(None);
        };
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

/// Checks that memory is given for each operand that is expected and for no other, in the inputs if it is read and in the outputs if it is
/// written, with elements of the right type, room for all, and numbers that it may have. Without `outputs` only what is read is checked.
pub(crate) fn check(
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
        let refuse = |rule| Err(Error::Presence { argument, rule });
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
            return Err(Error::Scales {
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
                return Err(Error::Count {
                    argument,
                    found,
                    needed,
                });
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
    use crate::cpu::{append_cpu, forward_cpu};
    use crate::spec::{Append, Call, Layout, Pairing, Rotary, Scoring};

    /// A write of one row of 8 elements into a cache of 4.
    fn write(element: ElementType, rotates: bool) -> Append {
        let (row, pages) = (Layout::bshd([1, 1, 1, 8]), Layout::bshd([1, 4, 1, 8]));
        let append = Append::builder(element, [&row, &row], [&pages, &pages]).slots(&[0]);
        let append = match rotates {
            true => {
                let rotary = Rotary::computed(8, 10_000.0, Pairing::HalfSplit).unwrap();
                append.queries(row, None).positions(&[0]).rotary(rotary)
            }
            false => append,
        };
        append.build().unwrap()
    }

    #[test]
    fn values_in_the_memory_of_keys_need_room_for_their_elements() {
        let new = [0_u8; 16];
        let inputs = HostInputs::default()
            .with(Operand::K, &new)
            .with(Operand::V, &new);
        // 32 elements of two bytes for the keys, and as many or one too few for the values.
        let mut cache = [0_u8; 128];
        let append = write(ElementType::F16, false);
        let mut run = |bytes| {
            let outputs = HostOutputs::cache_in_one(&mut cache[..bytes], 32);
            append_cpu(&append, &inputs, outputs)
        };
        assert!(run(128).is_ok());
        assert_eq!(
            run(126).unwrap_err().to_string(),
            "v_pages needs a buffer of 32 elements for its shape and strides, but has 31"
        );
    }

    #[test]
    fn values_in_memory_of_their_own_need_room_there() {
        let new = [0.0_f32; 8];
        let inputs = HostInputs::default()
            .with(Operand::K, &new)
            .with(Operand::V, &new);
        let (mut cache, mut values) = ([0.0_f32; 64], [1.0_f32; 32]);
        let append = write(ElementType::F32, false);
        let mut run = |len: usize| {
            let outputs = HostOutputs::cache_in_one(&mut cache, 32);
            append_cpu(
                &append,
                &inputs,
                outputs.with(Operand::VPages, &mut values[..len]),
            )
        };
        assert_eq!(
            run(8).unwrap_err().to_string(),
            "v_pages needs a buffer of 32 elements for its shape and strides, but has 8"
        );
        run(32).unwrap();
        assert_eq!((values[0], values[8]), (0.0, 1.0));
    }

    #[test]
    fn an_operand_is_given_on_the_side_that_has_it() {
        let layout = Layout::bshd([1, 1, 1, 8]);
        let call = Call::builder(&layout, &layout, &layout, ElementType::F32)
            .want_lse(false)
            .build()
            .unwrap();
        let append = write(ElementType::F32, true);
        let bytes = [0_u8; 256];
        for operand in Operand::ALL {
            for is_input in [true, false] {
                let mut extra = [0_u8; 256];
                let mut run = |of_append: bool| {
                    let rows = HostInputs::default()
                        .with(Operand::K, &bytes)
                        .with(Operand::V, &bytes);
                    let (mut one, mut two, mut three) = ([0_u8; 128], [0_u8; 128], [0_u8; 128]);
                    let (mut inputs, mut outputs) = match of_append {
                        true => (
                            rows,
                            HostOutputs::cache(&mut one, &mut two).with(Operand::Q, &mut three),
                        ),
                        false => (
                            rows.with(Operand::Q, &bytes),
                            HostOutputs::default().with(Operand::Out, &mut one),
                        ),
                    };
                    let is_there = match is_input {
                        true => inputs.0[operand].is_some(),
                        false => outputs.slots[operand].is_some(),
                    };
                    match is_input {
                        true => inputs.set(operand, &bytes),
                        false => outputs = outputs.with(operand, &mut extra),
                    }
                    let result = match of_append {
                        true => append_cpu(&append, &inputs, outputs),
                        false => forward_cpu(&call, &inputs, outputs),
                    };
                    match (is_there, result) {
                        (true, result) => result.unwrap(),
                        (false, Ok(())) => panic!("{operand:?} {is_input} {of_append}"),
                        (false, Err(error)) => {
                            assert!(error.to_string().starts_with(operand.name()), "{error}");
                        }
                    }
                };
                run(false);
                run(true);
            }
        }
    }

    #[test]
    fn elements_without_bytes_are_none() {
        let inputs = HostInputs::default().with(Operand::Q, &[0.0_f32; 4]);
        assert_eq!(inputs.elements::<()>(Operand::Q).unwrap().unwrap().len(), 0);
    }

    #[test]
    fn whole_numbers_are_no_slopes() {
        let layout = Layout::bshd([1, 1, 1, 8]);
        let call = Call::builder(&layout, &layout, &layout, ElementType::F32)
            .scoring(Scoring::default().with(Operand::Slopes))
            .build()
            .unwrap();
        let (data, mut out) = ([0.0_f32; 8], [0.0_f32; 8]);
        let inputs = HostInputs::new(&data, &data, &data).with(Operand::Slopes, &[1_i32]);
        let error = forward_cpu(&call, &inputs, HostOutputs::new(&mut out)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "alibi_slopes has numbers of another type than the call was built for"
        );
    }
}
