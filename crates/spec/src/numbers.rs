//! Numbers that a call brings along: in host memory or in device memory.

use std::ops::Deref;
use std::sync::Arc;

use bytemuck::Pod;

/// Numbers of a call: not given, in host memory, or in device memory.
///
/// A checked call has `Numbers<Arc<[i32]>>`. A request has what the caller says of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Numbers<H, D = ()> {
    /// Not given.
    #[default]
    None,
    /// In host memory.
    Host(H),
    /// In device memory, as `i32` or `u32` unless something else is said. They are not checked: kernels clamp them.
    Device(D),
}

impl<H, D> Numbers<H, D> {
    /// The numbers, if they are in host memory.
    pub fn on_host(&self) -> Option<&H::Target>
    where
        H: Deref,
    {
        match self {
            Numbers::Host(numbers) => Some(numbers),
            _ => None,
        }
    }

    /// Returns true if they are in device memory.
    pub const fn on_device(&self) -> bool {
        matches!(self, Numbers::Device(_))
    }

    /// Returns true if there are any.
    pub const fn is_given(&self) -> bool {
        !matches!(self, Numbers::None)
    }
}

/// A list as the caller gives it, before it is checked: its numbers, or how many the device has.
pub type Request<'a, T = i32> = Numbers<&'a [T], usize>;

impl<T> Request<'_, T> {
    /// How many there are; `None` if the list is not given.
    pub fn count(&self) -> Option<usize> {
        match self {
            Numbers::None => None,
            Numbers::Host(numbers) => Some(numbers.len()),
            Numbers::Device(len) => Some(*len),
        }
    }

    /// The request for keeping; `None` for a list in host memory, which differs from call to call.
    pub fn kept<'b>(self) -> Option<Request<'b, T>> {
        match self {
            Numbers::None => Some(Numbers::None),
            Numbers::Host(_) => None,
            Numbers::Device(len) => Some(Numbers::Device(len)),
        }
    }

    /// The numbers of a checked call.
    pub fn keep(self) -> Numbers<Arc<[T]>>
    where
        T: Copy,
    {
        match self {
            Numbers::None => Numbers::None,
            Numbers::Host(numbers) => Numbers::Host(numbers.into()),
            Numbers::Device(_) => Numbers::Device(()),
        }
    }
}

/// A 32-bit number that counts rows or pages: `i32` or `u32`. A `u32` beyond `i32::MAX` counts as negative, which kernels clamp.
pub trait LengthElement: Pod + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for u32 {}
}

impl LengthElement for i32 {}
impl LengthElement for u32 {}
