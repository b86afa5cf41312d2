//! Slices over the caller's memory on the host.

use std::ops::Range;

use attention::{Layout, Quantization};

use crate::error::{Failure, Result};
use crate::structs::check_pointer;

/// Elements that a call on the CPU reads or writes. Not null and aligned, unless there are none.
#[derive(Debug)]
pub(crate) struct Part<T> {
    name: &'static str,
    start: *mut T,
    len: usize,
}

/// Where a [`Part`] is.
#[derive(Debug)]
pub(crate) struct Place {
    name: &'static str,
    bytes: Range<usize>,
}

impl<T> Part<T> {
    /// `len` elements.
    pub(crate) fn of(name: &'static str, start: *const T, len: usize) -> Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| Failure::of(name, "is larger than memory"))?;
        if bytes != 0 {
            check_pointer(name, start, align_of::<T>())?;
        }
        if start.addr().checked_add(bytes).is_none() {
            return Err(Failure::of(name, "reaches beyond the address space"));
        }
        Ok(Part {
            name,
            start: start.cast_mut(),
            len,
        })
    }

    /// What a layout reaches, gaps included.
    pub(crate) fn tensor(name: &'static str, start: *const T, layout: &Layout) -> Result<Self> {
        let len = layout.required_len().ok_or_else(|| {
            Failure::of(
                name,
                "has a shape and strides that reach beyond the address space",
            )
        })?;
        Part::of(name, start, len)
    }

    /// # Safety
    /// The memory is there, holds values of `T`, and nobody writes it while the slice lives.
    pub(crate) unsafe fn slice<'a>(&self) -> &'a [T] {
        match self.len {
            0 => &[],
            // SAFETY: not null, aligned and no larger than memory, by `of`; the rest is the caller's promise.
            len => unsafe { std::slice::from_raw_parts(self.start, len) },
        }
    }

    /// # Safety
    /// As [`Part::slice`], and nobody else reads it either.
    pub(crate) unsafe fn slice_mut<'a>(&self) -> &'a mut [T] {
        match self.len {
            0 => &mut [],
            // SAFETY: as above.
            len => unsafe { std::slice::from_raw_parts_mut(self.start, len) },
        }
    }

    /// How many elements after `other` this begins, for two that lie in one tensor.
    pub(crate) fn after(&self, other: &Part<T>) -> Result<usize> {
        let bytes = self.start.addr().checked_sub(other.start.addr());
        match bytes.filter(|bytes| bytes.is_multiple_of(size_of::<T>())) {
            Some(bytes) => Ok(bytes / size_of::<T>()),
            None => Err(Failure::of(
                self.name,
                format!(
                    "shares memory with {}, but does not come after it in one tensor",
                    other.name
                ),
            )),
        }
    }

    /// From here on, as far as this or `other` reaches, which begins later.
    pub(crate) fn up_to_the_end_of(&self, other: &Part<T>) -> Result<Part<T>> {
        let len = self.len.max(other.after(self)?.saturating_add(other.len));
        Part::of(self.name, self.start.cast_const(), len)
    }

    pub(crate) fn place(&self) -> Place {
        let start = self.start.addr();
        Place {
            name: self.name,
            bytes: start..start + self.len * size_of::<T>(),
        }
    }
}

/// Numbers that a description has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum List<'a, T> {
    OnHost(&'a [T]),
    /// Or not known yet.
    OnDevice,
}

/// A list if it is wanted: on the CPU at `pointer`, which is null exactly if it is not; on a device there is no pointer to read.
///
/// # Safety
/// The pointer is null or points to `len` values, which nobody writes for as long as `'a`.
pub(crate) unsafe fn list<'a, T>(
    name: &'static str,
    wanted: bool,
    pointer: Option<*const T>,
    len: usize,
) -> Result<Option<List<'a, T>>> {
    match pointer {
        None => Ok(wanted.then_some(List::OnDevice)),
        Some(pointer) => {
            // SAFETY: the caller's promise.
            let list = unsafe { list_on_host(name, wanted, pointer, len) }?;
            Ok(list.map(List::OnHost))
        }
    }
}

/// A list that is given exactly if it is wanted.
///
/// # Safety
/// The pointer is null or points to `len` values, which nobody writes for as long as `'a`.
pub(crate) unsafe fn list_on_host<'a, T>(
    name: &'static str,
    wanted: bool,
    pointer: *const T,
    len: usize,
) -> Result<Option<&'a [T]>> {
    match (wanted, pointer.is_null()) {
        (false, true) => Ok(None),
        (false, false) => Err(Failure::of(
            name,
            "is given, but the call was built without it",
        )),
        // SAFETY: the caller's promise.
        (true, _) => Ok(Some(unsafe { Part::of(name, pointer, len)?.slice() })),
    }
}

impl Place {
    /// Whether both have some byte.
    pub(crate) fn meets(&self, other: &Place) -> bool {
        let (a, b) = (&self.bytes, &other.bytes);
        !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
    }

    /// Both, and what is between them.
    pub(crate) fn joined(self, other: &Place) -> Place {
        Place {
            bytes: self.bytes.start.min(other.bytes.start)..self.bytes.end.max(other.bytes.end),
            ..self
        }
    }
}

/// The scales of keys and values, given exactly if there are some.
///
/// # Safety
/// As [`list_on_host`].
pub(crate) unsafe fn scales_on_host<'a>(
    quantized: Option<Quantization>,
    [k, v]: [*const f32; 2],
) -> Result<Option<[&'a [f32]; 2]>> {
    let wanted = quantized.is_some();
    let (k_scales, v_scales) = quantized.map_or((0, 0), |each| (each.k_scales, each.v_scales));
    // SAFETY: the caller's promise.
    unsafe {
        let k = list_on_host("k_scale", wanted, k, k_scales)?;
        let v = list_on_host("v_scale", wanted, v, v_scales)?;
        Ok(k.zip(v).map(|(k, v)| [k, v]))
    }
}

/// Where the scales are; nowhere if there are none.
pub(crate) fn scale_places(scales: Option<[&[f32]; 2]>) -> Result<[Place; 2]> {
    let [k, v] = scales.unwrap_or_default();
    Ok([
        Part::of("k_scale", k.as_ptr(), k.len())?.place(),
        Part::of("v_scale", v.as_ptr(), v.len())?.place(),
    ])
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
pub(crate) fn check_apart(outputs: &[Place], inputs: &[Place]) -> Result<()> {
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

    #[test]
    fn ranges_that_touch_do_not_meet_and_one_shared_byte_does() {
        let memory = [0_u8; 32];
        let place = |start: usize, len| {
            let part = Part::of("x", memory[start..].as_ptr(), len);
            part.unwrap().place()
        };
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
}
