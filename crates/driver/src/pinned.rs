//! Page-locked host memory, and copies that are still running.

use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Pod;
use warptile_cuda_sys::{CU_MEMHOSTALLOC_PORTABLE, CUresult, SYMBOLS};

use crate::buffer::bytes_of;
use crate::context::Context;
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::event::Event;
use crate::stream::Stream;

/// `len` values of `T` in page-locked host memory, which the device copies at full speed and
/// without holding up the host. Reads and writes like a slice.
pub struct PinnedBuffer<T: Pod> {
    context: Context,
    values: NonNull<T>,
    len: usize,
}

// SAFETY: the buffer owns its memory as a `Box<[T]>` would, and freeing it works on any thread.
unsafe impl<T: Pod + Send> Send for PinnedBuffer<T> {}
// SAFETY: a shared buffer gives out only `&[T]`.
unsafe impl<T: Pod + Sync> Sync for PinnedBuffer<T> {}

impl<T: Pod> PinnedBuffer<T> {
    /// Pinned memory of zero bytes.
    ///
    /// # Errors
    /// The driver's error; the system limits how much memory can be pinned.
    /// [`DriverError::Alignment`] if the memory is not aligned for `T`: it is to a page, which few
    /// types exceed.
    pub fn zeroed(context: &Context, len: usize) -> Result<PinnedBuffer<T>> {
        let bytes = bytes_of::<T>(len)?;
        let mut values = NonNull::dangling();
        if bytes != 0 {
            let _current = context.enter()?;
            let _relaxed = context.relaxed()?;
            let mut memory = std::ptr::null_mut();
            // SAFETY: `memory` outlives the call and the context is current.
            unsafe {
                call!(
                    context,
                    format!("pinning {bytes} bytes of host memory"),
                    mem_host_alloc(&mut memory, bytes, CU_MEMHOSTALLOC_PORTABLE)
                )
            }?;
            let Some(memory) = NonNull::new(memory.cast::<T>()) else {
                return Err(context.failed(
                    SYMBOLS.mem_host_alloc,
                    CUresult::ERROR_UNKNOWN,
                    "pinning host memory: the driver returned a null pointer".into(),
                ));
            };
            if !memory.is_aligned() {
                free(context, memory.as_ptr().cast());
                return Err(DriverError::Alignment {
                    address: memory.addr().get(),
                    alignment: align_of::<T>(),
                    element: std::any::type_name::<T>(),
                });
            }
            // SAFETY: the driver has just handed over `bytes` bytes.
            unsafe { memory.cast::<u8>().write_bytes(0, bytes) };
            values = memory;
        }
        Ok(PinnedBuffer {
            context: context.clone(),
            values,
            len,
        })
    }

    /// A pinned copy of `values`.
    ///
    /// # Errors
    /// As [`PinnedBuffer::zeroed`].
    pub fn from_slice(context: &Context, values: &[T]) -> Result<PinnedBuffer<T>> {
        let mut buffer = PinnedBuffer::zeroed(context, values.len())?;
        buffer.copy_from_slice(values);
        Ok(buffer)
    }

    fn byte_len(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T: Pod> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `values` points at `len` initialised elements, or dangles for no bytes. A copy
        // that runs owns the buffer, so nothing else writes while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.values.as_ptr(), self.len) }
    }
}

impl<T: Pod> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "PinnedBuffer<{element}>({} elements)", self.len)
    }
}

impl<T: Pod> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        if self.byte_len() == 0 {
            return;
        }
        // No copy uses it: that would own it.
        free(&self.context, self.values.as_ptr().cast());
    }
}

/// Frees pinned memory that no copy uses any more.
fn free(context: &Context, memory: *mut c_void) {
    let _current = context.enter_to_release();
    let relaxed = context.relaxed();
    // SAFETY: allocated by `PinnedBuffer::zeroed`, whose callers here give it up.
    let freed = unsafe { call!(context, "freeing pinned memory", mem_free_host(memory)) };
    context.defer(freed);
    context.defer(relaxed.map(drop));
}

/// A copy between pinned and device memory that may still be running. It owns the pinned memory:
/// [`PendingCopy::wait`] gives it back. Dropping it waits for the copy.
#[must_use = "dropping this waits for the copy and frees the pinned memory"]
pub struct PendingCopy<T: Pod> {
    stream: Stream,
    done: Event,
    /// `None` once the memory is given back.
    values: Option<PinnedBuffer<T>>,
    /// True if a copy may be running.
    queued: bool,
    /// True if `done` marks the copy's end.
    recorded: bool,
}

impl<T: Pod> PendingCopy<T> {
    /// Everything that can fail before the copy does so here.
    pub(crate) fn new(stream: &Stream, values: PinnedBuffer<T>) -> Result<PendingCopy<T>> {
        Ok(PendingCopy {
            stream: stream.clone(),
            done: Event::new(stream.context())?,
            values: Some(values),
            queued: false,
            recorded: false,
        })
    }

    /// Queues the copy, given the pinned memory's address, and marks its end. From here on, also
    /// after an error, the memory is freed only when the stream is known to be past the copy.
    pub(crate) fn queue(
        &mut self,
        bytes: usize,
        copy: impl FnOnce(*mut T) -> Result<()>,
    ) -> Result<()> {
        if let Some(values) = &self.values
            && bytes != 0
        {
            self.queued = true;
            copy(values.values.as_ptr())?;
        }
        self.stream.record(&self.done)?;
        self.recorded = true;
        Ok(())
    }

    /// Returns true if the copy is done; doesn't wait.
    ///
    /// # Errors
    /// An error of the stream up to the copy.
    pub fn is_done(&self) -> Result<bool> {
        self.done.query()
    }

    /// Waits for the copy and gives the pinned memory back.
    ///
    /// # Errors
    /// An error of the stream up to the copy; the memory is freed then.
    pub fn wait(mut self) -> Result<PinnedBuffer<T>> {
        self.done.synchronize()?;
        self.queued = false;
        match self.values.take() {
            Some(values) => Ok(values),
            None => PinnedBuffer::zeroed(self.stream.context(), 0),
        }
    }
}

impl<T: Pod> fmt::Debug for PendingCopy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingCopy({:?})", self.values)
    }
}

impl<T: Pod> Drop for PendingCopy<T> {
    fn drop(&mut self) {
        if !self.queued {
            return;
        }
        // Two ways to learn that the copy is over; the work's own error shows up wherever the
        // stream is next synchronized.
        let over = (self.recorded && self.done.synchronize().is_ok())
            || self.stream.context().drain().is_ok();
        if !over {
            // The device may still be at it, so the memory must stay.
            std::mem::forget(self.values.take());
        }
    }
}
