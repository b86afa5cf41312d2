//! Structs as C fills them: of any version, with signed numbers and nothing checked.

use std::ffi::{CStr, c_char, c_void};
use std::fmt::Display;

use attention::plan::Choice;
use attention::spec::Types;
use attention::{ElementType, Layout as Checked};

use crate::error::{Failure, Result, guarded};

/// Elements are IEEE half precision, 2 bytes.
pub const WARPTILE_F16: u32 = 1;
/// Elements are bfloat16, 2 bytes.
pub const WARPTILE_BF16: u32 = 2;
/// Elements are IEEE single precision, 4 bytes.
pub const WARPTILE_F32: u32 = 3;
/// Elements are e4m3 (float8_e4m3fn), 1 byte: of keys, values and caches alone.
pub const WARPTILE_E4M3: u32 = 4;

/// The CPU, where a device's number is asked for.
pub const WARPTILE_CPU: i32 = -1;

/// Where the elements of a tensor lie.
///
/// The dimensions are always in the order batch, length, heads, head size, however the tensor is stored. Strides are distances
/// in elements between neighbours along each dimension; the last one is 1, except where there is an element for each score. A stride of 0 repeats an input.
/// Four zeros for strides mean a tensor that is stored in the order of its dimensions without gaps.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Extents. Four zeros, where a layout is optional, mean that it is not given.
    pub shape: [i64; 4],
    /// Distances in elements.
    pub strides: [i64; 4],
}

impl Layout {
    /// The layout, unless it is not given.
    pub(crate) fn given(&self, argument: &str) -> Result<Option<Checked>> {
        match self.shape == [0; 4] && self.strides == [0; 4] {
            true => Ok(None),
            false => self.required(argument).map(Some),
        }
    }

    /// The layout. Only signs are checked here; other errors are found where the layout is used.
    pub(crate) fn required(&self, argument: &str) -> Result<Checked> {
        let mut shape = [0; 4];
        let mut strides = [0; 4];
        for d in 0..4 {
            shape[d] = count(&format!("{argument}.shape[{d}]"), self.shape[d])?;
            strides[d] = count(&format!("{argument}.strides[{d}]"), self.strides[d])?;
        }
        Ok(match strides == [0; 4] {
            true => Checked::bshd(shape),
            false => Checked::new(shape, strides),
        })
    }
}

/// A number that cannot be negative.
pub(crate) fn count(argument: &str, value: i64) -> Result<usize> {
    usize::try_from(value)
        .map_err(|_| Failure::of(argument, format!("is {value}, but must be 0 or more")))
}

/// The sequences of a description: if they are packed, as many as it says, else those of the tensor.
pub(crate) fn sequences(
    value: i64,
    (packed, is_packed): (&str, bool),
    (tensor, batch): (&str, usize),
) -> Result<usize> {
    match count("sequences", value)? {
        given if is_packed => Ok(given),
        given if given == 0 || given == batch => Ok(batch),
        given => Err(Failure::of(
            "sequences",
            format!("is {given}, but {tensor} has batch {batch} and {packed} is 0"),
        )),
    }
}

/// A bound of lengths, where one is allowed; 0 is none.
pub(crate) fn bound(
    argument: &str,
    value: i64,
    allowed: bool,
    needs: &str,
) -> Result<Option<usize>> {
    let bound = count(argument, value)?;
    without_effect(argument, bound != 0 && !allowed, needs)?;
    Ok(Some(bound).filter(|&bound| bound != 0))
}

/// Refuses a field that is given, but would have no effect for the reason `why`.
pub(crate) fn without_effect(argument: &str, is_given: bool, why: impl Display) -> Result<()> {
    match is_given {
        false => Ok(()),
        true => Err(Failure::of(argument, format_args!("is given, but {why}"))),
    }
}

/// The error of a number that is none of an option's.
pub(crate) fn unknown<T>(argument: &str, value: u32, names: &str) -> Result<T> {
    let rule = format!("is {value}, which is none of {names}_...");
    Err(Failure::of(argument, rule))
}

/// 0, in a field that nothing is read from yet.
pub(crate) fn reserved(value: u32) -> Result<()> {
    match value {
        0 => Ok(()),
        _ => Err(Failure::of("reserved", "must be 0")),
    }
}

/// 0 or 1.
pub(crate) fn flag(argument: &str, value: u32) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Failure::of(
            argument,
            format!("is {value}, but must be 0 or 1"),
        )),
    }
}

/// The element type of a number, if it is one of `allowed`: they are numbered from 1 in the order of [`ElementType::ALL`].
pub(crate) fn element_of(
    value: u32,
    mut allowed: impl Iterator<Item = ElementType>,
) -> Option<ElementType> {
    allowed.find(|element| *element as u32 + 1 == value)
}

/// The names of element types in C.
pub(crate) fn names(elements: impl Iterator<Item = ElementType>) -> String {
    let names = elements.map(|element| format!("WARPTILE_{element}").to_uppercase());
    names.collect::<Vec<_>>().join(" or ")
}

/// The element type of queries, outputs and all that has no type of its own.
pub(crate) fn element(value: u32) -> Result<ElementType> {
    element_of(value, ElementType::of_queries()).ok_or_else(|| {
        let allowed = names(ElementType::of_queries());
        Failure::of("element", format!("is {value}, but must be {allowed}"))
    })
}

/// The element types of a description, and the numbers of scales of keys and of values. A `cache_element` of 0 stands for the type of the
/// other tensors, and a number of scales of 0 for 1.
pub(crate) fn types(
    element_value: u32,
    cache_element: u32,
    scales: [u32; 2],
) -> Result<(Types, [usize; 2])> {
    let types = Types::of(element(element_value)?);
    let counts = scales.map(|count| count.max(1) as usize);
    let scaled: Vec<_> = ElementType::scaled().collect();
    let element = other_element("cache_element", cache_element, &scaled)?;
    for (argument, count) in ["k_scales", "v_scales"].into_iter().zip(scales) {
        let needed = names(ElementType::scaled());
        let why = format_args!("cache_element is not {needed}");
        without_effect(argument, count != 0 && element.is_none(), why)?;
    }
    Ok((element.map_or(types, |element| types.keys(element)), counts))
}

/// An element type that a tensor may have in place of that of the others, for which 0 stands.
pub(crate) fn other_element(
    argument: &str,
    value: u32,
    allowed: &[ElementType],
) -> Result<Option<ElementType>> {
    match (value, element_of(value, allowed.iter().copied())) {
        (0, _) => Ok(None),
        (_, None) => {
            let names = names(allowed.iter().copied());
            let rule =
                format!("is {value}, but must be 0, for that of the other tensors, or {names}");
            Err(Failure::of(argument, rule))
        }
        (_, element) => Ok(element),
    }
}

/// A name; `None` if it is not given.
///
/// # Safety
/// `text` is null or ends with a NUL.
pub(crate) unsafe fn name(argument: &str, text: *const c_char) -> Result<Option<String>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(Failure::of(argument, "is not UTF-8")),
    }
}

/// The kernels that a description allows on a GPU.
///
/// # Safety
/// `kernel` is null or ends with a NUL.
pub(crate) unsafe fn choice(kernel: *const c_char) -> Result<Choice> {
    // SAFETY: the caller's promise.
    Ok(match unsafe { name("kernel", kernel) }? {
        Some(name) => name.parse::<Choice>()?,
        None => Choice::Best,
    })
}

/// The address that a pointer is, as the driver counts addresses.
pub(crate) fn address<T>(pointer: *const T) -> u64 {
    pointer.cast::<c_void>().addr() as u64
}

/// A struct whose first field is its size.
///
/// # Safety
/// The type has the layout of C, begins with the `usize` that is its size, and any bits are a value of it: its fields are numbers and
/// raw pointers. It has no padding, which could become a field in a later version and be missed here: `test.sh` has the C compiler
/// look.
pub(crate) unsafe trait Versioned: Copy {
    /// Bytes that every caller gives: the fields without which nothing can be computed.
    const LEAST: usize;
}

/// Reads a struct of any version: fields that the caller does not know are 0, and those that this library does not know must be.
///
/// # Safety
/// `from` is null, or points to as many readable bytes as the size there says.
pub(crate) unsafe fn read<T: Versioned>(argument: &str, from: *const T) -> Result<T> {
    let start = from.cast::<u8>();
    check_pointer(argument, start, align_of::<T>())?;
    // SAFETY: not null and aligned; the caller's promise.
    let given = unsafe { start.cast::<usize>().read() };
    let known = size_of::<T>();
    if given < T::LEAST {
        return Err(Failure::of(
            argument,
            format!(
                "has size {given}, but must have at least {}: set it to sizeof",
                T::LEAST
            ),
        ));
    }
    // SAFETY: zeros are a value of the type.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: both have at least that many bytes; they do not overlap, as `value` is new.
    unsafe {
        std::ptr::copy_nonoverlapping(start, (&raw mut value).cast::<u8>(), given.min(known));
    }
    for at in known..given {
        // SAFETY: below the size that the caller says.
        if unsafe { start.add(at).read() } != 0 {
            return Err(Failure::of(
                argument,
                format!(
                    "is {given} bytes, of which this version of warptile knows {known}, and byte {at} is set: the program was compiled \
                     with a newer warptile.h"
                ),
            ));
        }
    }
    Ok(value)
}

/// Reads `count` structs of any version that lie one behind the other, each of the size that it says.
///
/// # Safety
/// As for [`read`], of each of them.
pub(crate) unsafe fn read_each<T: Versioned>(
    argument: &str,
    from: *const T,
    count: usize,
) -> Result<Vec<T>> {
    check_pointer(argument, from, align_of::<T>())?;
    let mut at = from;
    { 0..count }
        .map(|index| {
            // SAFETY: the caller's promise.
            let value = unsafe { read(&format!("{argument}[{index}]"), at) }?;
            // SAFETY: as `read` has read it.
            at = at.wrapping_byte_add(unsafe { at.cast::<usize>().read() });
            Ok(value)
        })
        .collect()
}

/// Refuses null and what is not aligned.
pub(crate) fn check_pointer<T>(argument: &str, pointer: *const T, alignment: usize) -> Result<()> {
    if pointer.is_null() {
        return Err(Failure::of(argument, "is null"));
    }
    match pointer.addr().is_multiple_of(alignment) {
        true => Ok(()),
        false => Err(Failure::of(
            argument,
            format!("is {pointer:p}, which is not a multiple of {alignment}"),
        )),
    }
}

/// Gives a handle to the caller.
///
/// # Safety
/// `to` is valid for writing.
pub(crate) unsafe fn give<T>(to: *mut *mut T, made: T) {
    // SAFETY: the caller's promise.
    unsafe { to.write(Box::into_raw(Box::new(made))) };
}

/// A handle that the caller has.
///
/// # Safety
/// It is null, or was given by [`give`] and not freed.
pub(crate) unsafe fn handle<'a, T>(argument: &str, handle: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::of(argument, "is null"))
}

/// Frees a handle, unless it is null.
///
/// # Safety
/// As [`handle`], and no other code uses it.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        guarded(|| {
            // SAFETY: made by `give`, and freed once by the caller's promise.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Debug, Clone, Copy)]
    struct Known {
        size: usize,
        required: u64,
        optional: u32,
        last: u32,
    }

    // SAFETY: numbers only, without padding, the size first.
    unsafe impl Versioned for Known {
        const LEAST: usize = std::mem::offset_of!(Known, optional);
    }

    fn read_bytes(words: &[u64]) -> Result<Known> {
        // SAFETY: as long as the size in it says, in these tests.
        unsafe { read("it", words.as_ptr().cast::<Known>()) }
    }

    #[test]
    fn an_older_struct_is_filled_with_zeros_and_a_newer_one_must_end_with_them() {
        let filled = 7 | 9 << 32;
        let older = read_bytes(&[16, 5, filled]).unwrap();
        assert_eq!((older.required, older.optional, older.last), (5, 0, 0));
        let between = read_bytes(&[20, 5, filled]).unwrap();
        assert_eq!((between.optional, between.last), (7, 0));
        let same = read_bytes(&[24, 5, filled]).unwrap();
        assert_eq!((same.optional, same.last), (7, 9));
        let newer = read_bytes(&[40, 5, filled, 0, 0]).unwrap();
        assert_eq!((newer.optional, newer.last), (7, 9));
    }

    #[test]
    fn wrong_sizes_and_pointers_are_refused() {
        let text = |result: Result<Known>| match result {
            Err(Failure::Argument(text)) => text,
            other => panic!("{other:?}"),
        };
        let error = text(read_bytes(&[40, 5, 0, 0, 1 << 56]));
        assert!(error.contains("byte 39 is set"), "{error}");
        for size in [0, 8, 15] {
            let error = text(read_bytes(&[size, 5, 0]));
            assert!(error.starts_with("it has size"), "{error}");
        }
        // SAFETY: refused before anything is read.
        let null = unsafe { read::<Known>("it", std::ptr::null()) };
        assert_eq!(text(null), "it is null");
        let words = [24_u64, 0, 0, 0];
        // SAFETY: likewise.
        let odd = unsafe { read("it", words.as_ptr().cast::<u8>().add(4).cast::<Known>()) };
        assert!(text(odd).ends_with("is not a multiple of 8"));
    }

    #[test]
    fn element_types_have_their_numbers() {
        let numbers = [WARPTILE_F16, WARPTILE_BF16, WARPTILE_F32, WARPTILE_E4M3];
        assert_eq!(
            numbers.map(|number| element_of(number, ElementType::ALL.into_iter())),
            ElementType::ALL.map(Some)
        );
        let all = names(ElementType::ALL.into_iter());
        assert!(all.starts_with("WARPTILE_F16 or WARPTILE_BF16"), "{all}");
    }

    #[test]
    fn negative_numbers_name_their_place() {
        let layout = Layout {
            shape: [1, 2, 3, 8],
            strides: [48, -24, 8, 1],
        };
        let Err(Failure::Argument(text)) = layout.required("k") else {
            panic!("a negative stride was taken");
        };
        assert_eq!(text, "k.strides[1] is -24, but must be 0 or more");
    }
}
