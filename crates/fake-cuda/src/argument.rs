//! Pointers that callers of the exports have promised are good.

use std::ffi::{CStr, c_char};

use warptile_cuda_sys::*;

/// Where a result goes. Null is legal and ignored, as some results are optional.
pub(crate) struct Out<T>(*mut T);

/// Where input lies.
pub(crate) struct In<T>(*const T);

impl<T> Out<T> {
    /// # Safety
    /// As [`Argument::take`].
    pub(crate) unsafe fn new(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }

    pub(crate) fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: a non-null `Out` is made only of a pointer that may be written.
            unsafe { self.0.write(value) };
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl<T: Copy> Out<T> {
    /// The first `len` values: some of the driver's inputs are not `const`.
    pub(crate) fn read(&self, len: usize) -> Vec<T> {
        In(self.0.cast_const()).read(len)
    }
}

impl Out<c_char> {
    /// Writes a C string of at most `len` bytes, its NUL included.
    pub(crate) fn set_text(&self, text: &str, len: usize) {
        for (index, byte) in text
            .bytes()
            .take(len.saturating_sub(1))
            .chain([0])
            .enumerate()
        {
            // SAFETY: the caller promised `len` bytes, and `index` stays below.
            unsafe { self.0.add(index).write(byte as c_char) };
        }
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn read(&self, len: usize) -> Vec<T> {
        let mut values: Vec<T> = Vec::with_capacity(len);
        // SAFETY: an `In` is made only of a pointer to as many values as the function documents, and a new vector has room for them.
        unsafe {
            values.as_mut_ptr().copy_from_nonoverlapping(self.0, len);
            values.set_len(len);
        }
        values
    }

    pub(crate) fn first(&self) -> T {
        // SAFETY: as above, at least one value.
        unsafe { self.0.read() }
    }
}

impl<T> In<T> {
    /// # Safety
    /// As [`Argument::take`].
    pub(crate) unsafe fn new(pointer: *const T) -> In<T> {
        In(pointer)
    }

    /// Reinterprets the bytes as another type.
    pub(crate) fn cast<U>(&self) -> In<U> {
        In(self.0.cast())
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl In<u8> {
    /// The bytes up to the first zero.
    pub(crate) fn until_zero(&self) -> Vec<u8> {
        // SAFETY: asked only of a NUL-terminated string.
        unsafe { CStr::from_ptr(self.0.cast()) }.to_bytes().to_vec()
    }
}

impl In<c_char> {
    pub(crate) fn text(&self) -> String {
        // SAFETY: an `In<c_char>` is made only of a NUL-terminated string.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_string_lossy().into_owned()
    }
}

/// Turns the argument of an export into what its implementation takes.
pub(crate) trait Argument {
    type Taken;

    /// # Safety
    /// A pointer is good for what the driver API documents for the argument.
    unsafe fn take(self) -> Self::Taken;
}

/// Default streams are told apart where the call is made, as one of them is the calling thread's.
impl Argument for CUstream {
    type Taken = crate::stream::Key;

    unsafe fn take(self) -> crate::stream::Key {
        crate::stream::key_of(&mut crate::state::state(), self)
    }
}

impl<T> Argument for *mut T {
    type Taken = Out<T>;

    unsafe fn take(self) -> Out<T> {
        Out(self)
    }
}

impl<T> Argument for *const T {
    type Taken = In<T>;

    unsafe fn take(self) -> In<T> {
        In(self)
    }
}

macro_rules! by_value {
    ($($type:ty)*) => {$(
        impl Argument for $type {
            type Taken = $type;

            unsafe fn take(self) -> $type {
                self
            }
        }
    )*};
}

by_value! {
    i32 u32 u64 usize u8
    CUresult CUcontext CUevent CUmodule CUfunction CUgraph CUgraphExec CUgraphNode CUmemoryPool
    CUuserObject CUhostFn
    CUdeviceAttribute CUfunctionAttribute CUpointerAttribute CUstreamCaptureMode CUmemPoolAttribute
    CUtensorMapDataType CUtensorMapInterleave CUtensorMapSwizzle CUtensorMapL2promotion
    CUtensorMapFloatOobFill
}
