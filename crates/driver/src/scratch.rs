//! Device memory that belongs to no stream, and the private stream that prepares it.

use std::fmt;

use warptile_cuda_sys::{CU_STREAM_NON_BLOCKING, CUdeviceptr, CUstream, CUstreamCaptureMode};

use crate::context::{Context, Retired, lock};
use crate::driver::{Driver, call};
use crate::error::Result;

/// Device memory that kernels need in addition to their tensors. It belongs to no stream, is made outside of any
/// capture that is under way, and holds zeros from the start.
///
/// Dropping it frees it at once, without looking whether a kernel still uses it. What owns it
/// sees to that: values attached to a stream ([`Stream::attached`](crate::Stream::attached)) or
/// to a capture ([`Stream::attached_in`](crate::Stream::attached_in)) are dropped when the device
/// is past their last use, and a kernel's launch is `unsafe` for the sake of all others.
pub struct Scratch {
    context: Context,
    pointer: CUdeviceptr,
    bytes: usize,
}

impl Scratch {
    /// Zeros, ready when this returns.
    ///
    /// # Errors
    /// Out of memory, or what the driver reports.
    pub fn zeroed(context: &Context, bytes: usize) -> Result<Scratch> {
        let mut scratch = Scratch::uninit(context, bytes)?;
        if bytes != 0 {
            scratch.zero()?;
        }
        Ok(scratch)
    }

    /// Fills the memory, which is not in use yet, with zeros and waits for that.
    fn zero(&mut self) -> Result<()> {
        let (pointer, bytes) = (self.pointer, self.bytes);
        self.fill("zeroing device memory", |context, operation, stream| {
            // SAFETY: the memory has this many bytes, stream and context are live, the latter current.
            unsafe {
                call!(
                    context,
                    operation,
                    memset_d8_async(pointer, 0, bytes, stream)
                )
            }
        })
    }

    /// Runs `queue` on the private stream and waits for what it queued.
    fn fill(
        &mut self,
        operation: &'static str,
        queue: impl FnOnce(&Context, &'static str, CUstream) -> Result<()>,
    ) -> Result<()> {
        let context = self.context.clone();
        let _current = context.enter()?;
        let _relaxed = context.relaxed()?;
        let stream = context.private_stream()?;
        let queued = queue(&context, operation, stream);
        // SAFETY: stream and context are live, the latter current.
        let wait = || unsafe { call!(&context, operation, stream_synchronize(stream)) };
        let done = wait();
        // The first failure may be an error of earlier work. The context is no other way:
        // waiting for it would break the captures that are under way.
        if done.is_err() && wait().is_err() {
            context.retire(Retired::Memory(std::mem::take(&mut self.pointer)));
        }
        queued.and(done)
    }

    /// Whatever was there before.
    pub(crate) fn uninit(context: &Context, bytes: usize) -> Result<Scratch> {
        let mut pointer = 0;
        if bytes != 0 {
            let _current = context.enter()?;
            let _relaxed = context.relaxed()?;
            // SAFETY: `pointer` outlives the call, and the context is current.
            unsafe {
                call!(
                    context,
                    format!("allocating {bytes} bytes of device memory"),
                    mem_alloc(&mut pointer, bytes)
                )
            }?;
        }
        Ok(Scratch {
            context: context.clone(),
            pointer,
            bytes,
        })
    }

    /// The device address, aligned to 256 bytes; 0 for no bytes.
    pub fn pointer(&self) -> CUdeviceptr {
        self.pointer
    }

    /// How many bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// Never freed: the memory ends with the CUDA context.
    fn leak(mut self) -> CUdeviceptr {
        std::mem::take(&mut self.pointer)
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scratch({} bytes)", self.bytes)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.pointer != 0 {
            let _current = self.context.enter_to_release();
            self.context.free_now(self.pointer);
        }
    }
}

impl Context {
    /// Device memory of zeros that lives as long as the CUDA context does, so that even a graph that
    /// somebody else captured may use it. It is made outside of any capture that is under way, and
    /// is ready when this returns.
    ///
    /// # Errors
    /// Out of memory, or what the driver reports.
    pub fn permanent_zeroed(&self, bytes: usize) -> Result<CUdeviceptr> {
        Ok(Scratch::zeroed(self, bytes)?.leak())
    }

    /// A copy of host memory in device memory that lives as long as the CUDA context does, made like
    /// [`permanent_zeroed`](Context::permanent_zeroed).
    ///
    /// # Errors
    /// Out of memory, or what the driver reports.
    pub fn permanent_copy(&self, values: &[u8]) -> Result<CUdeviceptr> {
        let mut scratch = Scratch::uninit(self, values.len())?;
        if !values.is_empty() {
            let to = scratch.pointer;
            let from = values.as_ptr().cast();
            scratch.fill("copying to device memory", |context, operation, stream| {
                // SAFETY: both have this many bytes, and `fill` waits for the copy before they may be freed; stream and context are
                // live, the latter current.
                unsafe {
                    call!(
                        context,
                        operation,
                        memcpy_htod_async(to, from, values.len(), stream)
                    )
                }
            })?;
        }
        Ok(scratch.leak())
    }

    /// A stream that never is in a capture, made at the first use. The context destroys it.
    fn private_stream(&self) -> Result<CUstream> {
        let mut private = lock(self.private());
        if let Some(stream) = *private {
            return Ok(stream);
        }
        let mut stream = CUstream::NULL;
        // SAFETY: `stream` outlives the call, and callers have made the context current.
        unsafe {
            call!(
                self,
                "creating a stream",
                stream_create_with_priority(&mut stream, CU_STREAM_NON_BLOCKING, 0)
            )
        }?;
        Ok(*private.insert(stream))
    }

    /// Lets this thread make calls that would disturb captures under way if those were theirs.
    pub(crate) fn relaxed(&self) -> Result<Relaxed<'_>> {
        Ok(Relaxed {
            context: self,
            before: exchange(self.driver(), CUstreamCaptureMode::RELAXED)?,
        })
    }

    /// Frees memory that the device is known to be past. The context is current.
    pub(crate) fn free_now(&self, pointer: CUdeviceptr) {
        let relaxed = self.relaxed();
        // SAFETY: callers give up memory of this context that nothing uses any more. Memory of a
        // pool may be freed this way, too.
        let freed = unsafe { call!(self, "freeing device memory", mem_free(pointer)) };
        self.defer(freed);
        self.defer(relaxed.map(drop));
    }
}

/// Sets how much this thread minds captures under way; returns how much it did.
pub(crate) fn exchange(
    driver: &Driver,
    mut mode: CUstreamCaptureMode,
) -> Result<CUstreamCaptureMode> {
    // SAFETY: `mode` outlives the call.
    unsafe {
        call!(
            driver,
            "setting the capture mode of the thread",
            thread_exchange_stream_capture_mode(&mut mode)
        )
    }?;
    Ok(mode)
}

/// While it lives, this thread minds no captures; see [`Context::relaxed`].
pub(crate) struct Relaxed<'a> {
    context: &'a Context,
    before: CUstreamCaptureMode,
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        let mut back = exchange(self.context.driver(), self.before);
        if back.is_err() {
            // A thread must not stay so. What failed may be an error of earlier work.
            let again = exchange(self.context.driver(), self.before);
            back = back.and(again);
        }
        self.context.defer(back.map(drop));
    }
}
