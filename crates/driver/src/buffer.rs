//! Typed device memory and views into it.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use bytemuck::Pod;
use warptile_cuda_sys::CUdeviceptr;

use crate::allocation::Allocation;
use crate::context::Context;
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::pinned::{PendingCopy, PinnedBuffer};
use crate::stream::Stream;

/// `len` values of `T` in device memory.
///
/// A buffer belongs to the stream it was made on: copies and fills are queued there, and dropping
/// it frees the memory in that stream's order, so a kernel already launched there may still read
/// it. To use it on another stream, order the two: [`DeviceBuffer::available_to`] before,
/// [`DeviceBuffer::used_by`] after. On devices without memory pools dropping waits for the stream.
///
/// Nothing here waits for the device except the copies from and to plain host slices, whose
/// documentation says so.
pub struct DeviceBuffer<T> {
    memory: Arc<Allocation>,
    pointer: CUdeviceptr,
    len: usize,
    element: PhantomData<fn(T) -> T>,
}

/// A shared view of part of a [`DeviceBuffer`].
#[must_use]
pub struct DeviceSlice<'a, T> {
    memory: &'a Arc<Allocation>,
    pointer: CUdeviceptr,
    len: usize,
    element: PhantomData<&'a T>,
}

/// An exclusive view of part of a [`DeviceBuffer`].
#[must_use]
pub struct DeviceSliceMut<'a, T> {
    view: DeviceSlice<'a, T>,
    exclusive: PhantomData<&'a mut T>,
}

/// The accessors that a buffer and its views have alike; `view` is the field that has those of a view.
macro_rules! accessors {
    ($stream:ty, $context:ty $(, $view:ident)?) => {
        /// How many elements.
        pub fn len(&self) -> usize {
            self$(.$view)?.len
        }

        /// Returns true if there are none.
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// The device address of the first element, for a kernel's parameters; 0 for an empty buffer.
        pub fn pointer(&self) -> CUdeviceptr {
            self$(.$view)?.pointer
        }

        /// The stream the buffer belongs to.
        pub fn stream(&self) -> $stream {
            self$(.$view)?.memory.stream()
        }

        /// The context that the buffer's stream is of; kernels of another one cannot use the buffer.
        pub fn context(&self) -> $context {
            self.stream().context()
        }

        /// Returns true if somebody else allocated the memory: other devices may not reach it, even where they reach what is allocated here.
        pub fn is_borrowed(&self) -> bool {
            self$(.$view)?.memory.is_foreign()
        }

        /// The owner that keeps the memory alive, for [`Stream::keep_for_graph`].
        pub fn owner(&self) -> Arc<dyn Any + Send + Sync> {
            self$(.$view)?.memory.clone()
        }
    };
}

impl<T: Pod> DeviceBuffer<T> {
    /// Uninitialized memory: it holds stale data, which is a valid `T` because `T` is [`Pod`].
    ///
    /// # Errors
    /// Out of memory (the context stays usable), [`DriverError::Capturing`], or what the driver
    /// reports.
    pub fn uninit(stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        let memory = Arc::new(Allocation::new(stream, bytes_of::<T>(len)?)?);
        Ok(DeviceBuffer::at(memory.pointer(), memory, len))
    }

    /// Two buffers made as one, which takes the driver half the time: each has its part of one
    /// allocation, which is freed when both are dropped. Contents as with [`DeviceBuffer::uninit`].
    ///
    /// # Errors
    /// As [`DeviceBuffer::uninit`].
    pub fn uninit_pair<U: Pod>(
        stream: &Stream,
        len: usize,
        second_len: usize,
    ) -> Result<(DeviceBuffer<T>, DeviceBuffer<U>)> {
        /// The least alignment of the driver's allocations, in bytes.
        const ALIGNMENT: usize = 256;
        let first_bytes = bytes_of::<T>(len)?;
        let second_bytes = bytes_of::<U>(second_len)?;
        // Neither sum overflows: both terms are at most `isize::MAX`.
        let second_at = match second_bytes {
            0 => first_bytes,
            _ => first_bytes.next_multiple_of(ALIGNMENT),
        };
        let bytes = bytes_of::<u8>(second_at + second_bytes)?;
        let memory = Arc::new(Allocation::new(stream, bytes)?);
        let pointer = memory.pointer();
        Ok((
            DeviceBuffer::at(pointer, memory.clone(), len),
            DeviceBuffer::at(pointer + second_at as u64, memory, second_len),
        ))
    }

    /// A buffer of the `len` elements at `pointer`, which lie in `memory` and belong to no other buffer.
    fn at(pointer: CUdeviceptr, memory: Arc<Allocation>, len: usize) -> DeviceBuffer<T> {
        DeviceBuffer {
            memory,
            pointer: if len == 0 { 0 } else { pointer },
            len,
            element: PhantomData,
        }
    }

    /// Memory filled with zero bytes, in stream order.
    ///
    /// # Errors
    /// As [`DeviceBuffer::uninit`].
    pub fn zeroed(stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::filled(stream, len, 0)
    }

    /// Memory in which every byte is `byte`, in stream order. 0xFF makes NaN of every float type.
    ///
    /// # Errors
    /// As [`DeviceBuffer::uninit`].
    pub fn filled(stream: &Stream, len: usize, byte: u8) -> Result<DeviceBuffer<T>> {
        let mut buffer = DeviceBuffer::uninit(stream, len)?;
        buffer.as_slice_mut().fill_bytes(byte)?;
        Ok(buffer)
    }

    /// A copy of host memory. Waits until the copy is done; [`DeviceSliceMut::copy_from_pinned`]
    /// doesn't.
    ///
    /// # Errors
    /// As [`DeviceBuffer::uninit`].
    pub fn from_slice(stream: &Stream, values: &[T]) -> Result<DeviceBuffer<T>> {
        let mut buffer = DeviceBuffer::uninit(stream, values.len())?;
        buffer.copy_from_slice(values)?;
        Ok(buffer)
    }

    /// Wraps memory that someone else allocated. It is never freed here; `owner` is dropped with
    /// the buffer.
    ///
    /// # Errors
    /// [`DriverError::TooLarge`] if `len` elements have no size in bytes.
    ///
    /// # Safety
    /// - `pointer` is the address of `len` elements of device memory, usable in the stream's
    ///   context, aligned for `T`, and stays so for as long as `owner` is alive.
    /// - `owner`, when dropped, frees the memory only after the work then queued on `stream`.
    pub unsafe fn borrow(
        stream: &Stream,
        pointer: CUdeviceptr,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<DeviceBuffer<T>> {
        bytes_of::<T>(len)?;
        let memory = Arc::new(Allocation::foreign(stream, pointer, owner));
        Ok(DeviceBuffer {
            memory,
            pointer,
            len,
            element: PhantomData,
        })
    }

    accessors!(&Stream, &Context);

    /// Size in bytes.
    pub fn byte_len(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Makes `stream` wait until what is queued on the buffer's own stream so far is done: what is
    /// then queued on `stream` sees the buffer's contents.
    ///
    /// # Errors
    /// The driver's error.
    pub fn available_to(&self, stream: &Stream) -> Result<()> {
        stream.wait_for(self.stream())
    }

    /// Makes the buffer's own stream wait until what is queued on `stream` so far is done: after
    /// that the buffer may be changed, read back or dropped.
    ///
    /// # Errors
    /// The driver's error.
    pub fn used_by(&self, stream: &Stream) -> Result<()> {
        self.stream().wait_for(stream)
    }

    /// A view of everything.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice {
            memory: &self.memory,
            pointer: self.pointer,
            len: self.len,
            element: PhantomData,
        }
    }

    /// An exclusive view of everything.
    pub fn as_slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut {
            view: self.as_slice(),
            exclusive: PhantomData,
        }
    }

    /// A view of some elements.
    ///
    /// # Errors
    /// [`DriverError::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        self.as_slice().slice(range)
    }

    /// An exclusive view of some elements.
    ///
    /// # Errors
    /// [`DriverError::OutOfRange`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        Ok(DeviceSliceMut {
            view: self.as_slice().slice(range)?,
            exclusive: PhantomData,
        })
    }

    /// The contents. Waits for the stream.
    ///
    /// # Errors
    /// An error of earlier work on the stream, naming the kernels launched on it.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.as_slice().to_vec()
    }

    /// Copies the contents to the host. Waits for the stream.
    ///
    /// # Errors
    /// [`DriverError::Length`], or as [`DeviceBuffer::to_vec`].
    pub fn copy_to_slice(&self, values: &mut [T]) -> Result<()> {
        self.as_slice().copy_to_slice(values)
    }

    /// Copies from the host. Waits until the copy is done.
    ///
    /// # Errors
    /// [`DriverError::Length`], or what failed on the stream up to here.
    pub fn copy_from_slice(&mut self, values: &[T]) -> Result<()> {
        self.as_slice_mut().copy_from_slice(values)
    }

    /// Copies from another buffer, in stream order; see [`DeviceSliceMut::copy_from`].
    ///
    /// # Errors
    /// [`DriverError::Length`], or what the driver reports.
    pub fn copy_from(&mut self, source: &DeviceBuffer<T>) -> Result<()> {
        self.as_slice_mut().copy_from(&source.as_slice())
    }
}

impl DeviceBuffer<u8> {
    /// Reinterprets the memory as elements of another type; bytes after the last whole element are unused.
    ///
    /// # Errors
    /// [`DriverError::Alignment`] if they would not be aligned. What the driver allocates is for any
    /// type, to 256 bytes.
    pub fn cast<T: Pod>(self) -> Result<DeviceBuffer<T>> {
        let address = self.pointer as usize;
        if !address.is_multiple_of(align_of::<T>()) {
            return Err(DriverError::Alignment {
                address,
                alignment: align_of::<T>(),
                element: std::any::type_name::<T>(),
            });
        }
        let len = self.len.checked_div(size_of::<T>()).unwrap_or(0);
        Ok(DeviceBuffer::at(self.pointer, self.memory, len))
    }
}

impl<'a, T: Pod> DeviceSlice<'a, T> {
    /// Converts to a slice of untyped bytes.
    pub fn into_bytes(self) -> DeviceSlice<'a, u8> {
        DeviceSlice {
            memory: self.memory,
            pointer: self.pointer,
            len: self.len * size_of::<T>(),
            element: PhantomData,
        }
    }

    accessors!(&'a Stream, &'a Context);

    /// A part of this view.
    ///
    /// # Errors
    /// [`DriverError::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'a, T>> {
        let range = within(range, self.len)?;
        Ok(DeviceSlice {
            memory: self.memory,
            pointer: self.pointer + (range.start * size_of::<T>()) as u64,
            len: range.len(),
            element: PhantomData,
        })
    }

    /// The contents. Waits for the stream.
    ///
    /// # Errors
    /// An error of earlier work on the stream, naming the kernels launched on it.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut values = bytemuck::zeroed_vec(self.len);
        self.copy_to_slice(&mut values)?;
        Ok(values)
    }

    /// Copies the contents to the host. Waits for the stream.
    ///
    /// # Errors
    /// [`DriverError::Length`], or as [`DeviceSlice::to_vec`].
    pub fn copy_to_slice(&self, values: &mut [T]) -> Result<()> {
        const OPERATION: &str = "copying from the device to a host slice";
        same_length(OPERATION, self.len, values.len())?;
        if values.is_empty() {
            return Ok(());
        }
        let (to, from, bytes) = (
            values.as_mut_ptr().cast(),
            self.pointer(),
            size_of_val(values),
        );
        // SAFETY: the view lies in live device memory of `bytes` bytes, as does `values` on the
        // host, which stays borrowed until the copy is done.
        copy_and_wait(self.stream(), OPERATION, |stream| unsafe {
            call!(
                stream,
                OPERATION,
                memcpy_dtoh_async(to, from, bytes, stream.raw())
            )
        })
    }

    /// Copies the contents into pinned host memory, the first elements of it, without waiting. The
    /// memory is handed back by [`PendingCopy::wait`], so it cannot be read or freed too early.
    ///
    /// # Errors
    /// [`DriverError::Length`] if the pinned memory is shorter, [`DriverError::Capturing`], or what
    /// the driver reports.
    pub fn copy_to_pinned(&self, values: PinnedBuffer<T>) -> Result<PendingCopy<T>> {
        const OPERATION: &str = "copying from the device to pinned memory";
        same_length(OPERATION, self.len, values.len().min(self.len))?;
        let stream = self.stream();
        let _held = stream.outside_captures(OPERATION)?;
        let mut copy = PendingCopy::new(stream, values)?;
        let _current = stream.context().enter()?;
        let (bytes, from) = (self.len * size_of::<T>(), self.pointer());
        copy.queue(bytes, |to| {
            // SAFETY: both sides are live memory of `bytes` bytes; `copy` owns the host side and
            // gives it up only after the copy, the stream frees the device side after it.
            unsafe {
                call!(
                    stream,
                    OPERATION,
                    memcpy_dtoh_async(to.cast(), from, bytes, stream.raw())
                )
            }
        })?;
        Ok(copy)
    }
}

/// Queues a copy between a device and the host and waits for it: the host's side may be pinned memory, which the device
/// uses after the call has returned.
fn copy_and_wait(
    stream: &Stream,
    operation: &'static str,
    queue: impl FnOnce(&Stream) -> Result<()>,
) -> Result<()> {
    let _current = stream.context().enter()?;
    let held = stream.outside_captures(operation)?;
    let queued = queue(stream);
    drop(held);
    stream.finish_copy(queued)
}

impl<'a, T: Pod> DeviceSliceMut<'a, T> {
    /// Converts to a read-only slice of untyped bytes: for a list of what a launch uses, which still borrows the buffer
    /// exclusively.
    pub fn into_bytes(self) -> DeviceSlice<'a, u8> {
        self.view.into_bytes()
    }

    /// A shared view of the same elements.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        self.view.clone()
    }

    accessors!(&'a Stream, &'a Context, view);

    /// Sets every byte, in stream order.
    ///
    /// # Errors
    /// The driver's error.
    pub fn fill_bytes(&mut self, byte: u8) -> Result<()> {
        let bytes = self.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.stream();
        let _current = stream.context().enter()?;
        let _held = stream.hold();
        stream.keep_for_graph(self.view.memory.clone())?;
        // SAFETY: the view lies in live device memory of `bytes` bytes that the stream frees after
        // this; any bytes are a valid `T`.
        unsafe {
            call!(
                stream,
                "filling device memory",
                memset_d8_async(self.pointer(), byte, bytes, stream.raw())
            )
        }
    }

    /// Copies from the host. Waits until the copy is done.
    ///
    /// # Errors
    /// [`DriverError::Length`], or what failed on the stream up to here.
    pub fn copy_from_slice(&mut self, values: &[T]) -> Result<()> {
        const OPERATION: &str = "copying from a host slice to the device";
        same_length(OPERATION, values.len(), self.len())?;
        if values.is_empty() {
            return Ok(());
        }
        let (to, from, bytes) = (self.pointer(), values.as_ptr().cast(), size_of_val(values));
        // SAFETY: the view lies in live device memory of `bytes` bytes, as does `values` on the
        // host, which stays borrowed until the copy is done.
        copy_and_wait(self.stream(), OPERATION, |stream| unsafe {
            call!(
                stream,
                OPERATION,
                memcpy_htod_async(to, from, bytes, stream.raw())
            )
        })
    }

    /// Copies from pinned host memory, the first elements of it, without waiting. The memory is
    /// handed back by [`PendingCopy::wait`], so it cannot be changed or freed too early.
    ///
    /// # Errors
    /// [`DriverError::Length`] if the pinned memory is shorter, [`DriverError::Capturing`], or what
    /// the driver reports.
    pub fn copy_from_pinned(&mut self, values: PinnedBuffer<T>) -> Result<PendingCopy<T>> {
        const OPERATION: &str = "copying from pinned memory to the device";
        same_length(OPERATION, values.len().min(self.len()), self.len())?;
        let stream = self.stream();
        let _held = stream.outside_captures(OPERATION)?;
        let mut copy = PendingCopy::new(stream, values)?;
        let _current = stream.context().enter()?;
        let (bytes, to) = (self.len() * size_of::<T>(), self.pointer());
        copy.queue(bytes, |from| {
            // SAFETY: both sides are live memory of `bytes` bytes; `copy` owns the host side and
            // gives it up only after the copy, the stream frees the device side after it.
            unsafe {
                call!(
                    stream,
                    OPERATION,
                    memcpy_htod_async(to, from.cast(), bytes, stream.raw())
                )
            }
        })?;
        Ok(copy)
    }

    /// Copies from other device memory, without waiting. Runs on this buffer's stream; a source
    /// that belongs to another stream, even of another device, is ordered before and after by
    /// events.
    ///
    /// # Errors
    /// [`DriverError::Length`], or what the driver reports.
    pub fn copy_from(&mut self, source: &DeviceSlice<'_, T>) -> Result<()> {
        const OPERATION: &str = "copying between device buffers";
        same_length(OPERATION, source.len(), self.len())?;
        let bytes = self.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        let (stream, other) = (self.stream(), source.stream());
        let _current = stream.context().enter()?;
        let _held = stream.hold();
        stream.order_after([other])?;
        for memory in [self.view.memory, source.memory] {
            stream.keep_for_graph(memory.clone())?;
        }
        let (to, from) = (self.pointer(), source.pointer());
        // SAFETY: both views lie in live device memory of `bytes` bytes. This stream frees the
        // destination after the copy; the source's stream is made to wait for the copy below.
        let queued = unsafe {
            if stream.context().is_same(other.context()) {
                call!(
                    stream,
                    OPERATION,
                    memcpy_dtod_async(to, from, bytes, stream.raw())
                )
            } else {
                call!(
                    stream,
                    OPERATION,
                    memcpy_peer_async(
                        to,
                        stream.context().raw(),
                        from,
                        other.context().raw(),
                        bytes,
                        stream.raw()
                    )
                )
            }
        };
        let ordered = stream.order_before([other]);
        queued.and(ordered)
    }
}

impl<T> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        DeviceSlice {
            memory: self.memory,
            pointer: self.pointer,
            len: self.len,
            element: PhantomData,
        }
    }
}

impl<T> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "DeviceBuffer<{element}>({} elements)", self.len)
    }
}

impl<T> fmt::Debug for DeviceSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "DeviceSlice<{element}>({} elements)", self.len)
    }
}

impl<T> fmt::Debug for DeviceSliceMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.view, f)
    }
}

/// Size of `len` elements; an address must be able to count it.
pub(crate) fn bytes_of<T>(len: usize) -> Result<usize> {
    let size = size_of::<T>();
    len.checked_mul(size)
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or(DriverError::TooLarge { len, size })
}

pub(crate) fn same_length(
    operation: &'static str,
    source_len: usize,
    destination_len: usize,
) -> Result<()> {
    if source_len == destination_len {
        return Ok(());
    }
    Err(DriverError::Length {
        operation,
        source_len,
        destination_len,
    })
}

fn within(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at.saturating_add(1),
        Bound::Excluded(&at) => at,
        Bound::Unbounded => len,
    };
    let range = start..end;
    if start <= end && end <= len {
        Ok(range)
    } else {
        Err(DriverError::OutOfRange { range, len })
    }
}
