//! A piece of device memory and how it is given back.

use std::any::Any;
use std::sync::Arc;

use warptile_cuda_sys::CUdeviceptr;

use crate::driver::call;
use crate::error::Result;
use crate::stream::Stream;

/// Device memory that belongs to a stream; freed in the stream's order when dropped.
pub(crate) struct Allocation {
    stream: Stream,
    pointer: CUdeviceptr,
    origin: Origin,
}

/// Where the memory came from, so how it goes back.
enum Origin {
    /// The context's memory pool: freed in stream order, without waiting.
    Pool,
    /// A device without pools: freed after waiting for the stream.
    Plain,
    /// Someone else, not before this is dropped.
    Owner {
        /// Held only to be dropped.
        _owner: Arc<dyn Any + Send + Sync>,
    },
    /// Nothing to free: no bytes, or handed on.
    Nothing,
}

impl Allocation {
    pub(crate) fn new(stream: &Stream, bytes: usize) -> Result<Allocation> {
        let mut allocation = Allocation {
            stream: stream.clone(),
            pointer: 0,
            origin: Origin::Nothing,
        };
        // The driver refuses to allocate nothing.
        if bytes == 0 {
            return Ok(allocation);
        }
        let _current = stream.context().enter()?;
        stream.refuse_capture("allocating device memory")?;
        let operation = || format!("allocating {bytes} bytes of device memory");
        let pointer = &mut allocation.pointer;
        if let Some(pool) = stream.context().pool() {
            // SAFETY: `pointer` outlives the call, stream and pool are live and of the current
            // context.
            let allocated = unsafe {
                call!(
                    stream,
                    operation(),
                    mem_alloc_from_pool_async(pointer, bytes, pool, stream.raw())
                )
            };
            if allocated.is_err() {
                // The pool may have reserved all of the device's memory before it found that too
                // little. What the caller learns is that the allocation failed.
                stream.context().defer(stream.context().trim_memory(0));
            }
            allocated?;
            allocation.origin = Origin::Pool;
        } else {
            // SAFETY: `pointer` outlives the call, and the context is current.
            unsafe { call!(stream, operation(), mem_alloc(pointer, bytes)) }?;
            allocation.origin = Origin::Plain;
        }
        Ok(allocation)
    }

    /// Memory that someone else frees, after `owner` is dropped.
    pub(crate) fn foreign(
        stream: &Stream,
        pointer: CUdeviceptr,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Allocation {
        Allocation {
            stream: stream.clone(),
            pointer,
            origin: Origin::Owner { _owner: owner },
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn pointer(&self) -> CUdeviceptr {
        self.pointer
    }

    fn free(&self) -> Result<()> {
        let _current = self.stream.context().enter_to_release();
        let operation = "freeing device memory";
        match self.origin {
            Origin::Pool => {
                // SAFETY: allocated from the pool by `new` and freed once, here. Work that this
                // crate queued elsewhere was ordered before this stream by events.
                unsafe {
                    call!(
                        &self.stream,
                        operation,
                        mem_free_async(self.pointer, self.stream.raw())
                    )
                }
            }
            Origin::Plain => {
                // A kernel may still use the memory, and cuMemFree does not promise to wait. If
                // neither stream nor context can be waited for, the memory is left alone.
                // SAFETY: the stream is live and its context current.
                let waited = unsafe {
                    call!(
                        &self.stream,
                        "waiting before freeing device memory",
                        stream_synchronize(self.stream.raw())
                    )
                };
                waited.or_else(|_| self.stream.context().drain())?;
                // SAFETY: allocated by cuMemAlloc in `new` and freed once, here.
                unsafe { call!(&self.stream, operation, mem_free(self.pointer)) }
            }
            Origin::Owner { .. } | Origin::Nothing => Ok(()),
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let captures = self.stream.context().captures();
        let ours = matches!(self.origin, Origin::Pool | Origin::Plain);
        if ours && captures.active() {
            // The graph under capture may use the memory whenever it is launched, and freeing now
            // could become part of the graph. So the graph takes it over.
            let moved = Allocation {
                stream: self.stream.clone(),
                pointer: self.pointer,
                origin: std::mem::replace(&mut self.origin, Origin::Nothing),
            };
            captures.keep(Arc::new(moved));
        } else {
            let result = self.free();
            self.stream.context().defer(result);
        }
    }
}
