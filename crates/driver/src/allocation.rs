//! A piece of device memory and how it is given back.

use std::any::Any;
use std::sync::Arc;

use warptile_cuda_sys::CUdeviceptr;

use crate::driver::call;
use crate::error::Result;
use crate::stream::{Freed, Stream};

/// Device memory that belongs to a stream; freed in the stream's order when dropped.
pub(crate) struct Allocation {
    stream: Stream,
    pointer: CUdeviceptr,
    origin: Origin,
}

/// Where the memory came from, so how it goes back.
enum Origin {
    /// The context's memory pool: freed in stream order, without waiting.
    Pool { bytes: usize },
    /// A device without pools: freed after waiting for the stream.
    Plain { bytes: usize },
    /// Someone else, not before this is dropped.
    Owner {
        /// Held only to be dropped.
        _owner: Arc<dyn Any + Send + Sync>,
    },
    /// Nothing to free: no bytes.
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
        if let Some(pointer) = stream.spare(bytes) {
            allocation.pointer = pointer;
            allocation.origin = Origin::Pool { bytes };
            return Ok(allocation);
        }
        let _current = stream.context().enter()?;
        let _held = stream.outside_captures("allocating device memory")?;
        let _relaxed = stream.context().relaxed()?;
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
            allocation.origin = Origin::Pool { bytes };
        } else {
            // SAFETY: `pointer` outlives the call, and the context is current.
            unsafe { call!(stream, operation(), mem_alloc(pointer, bytes)) }?;
            allocation.origin = Origin::Plain { bytes };
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

    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.origin, Origin::Owner { .. })
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn pointer(&self) -> CUdeviceptr {
        self.pointer
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let (bytes, pooled) = match self.origin {
            Origin::Pool { bytes } => (bytes, true),
            Origin::Plain { bytes } => (bytes, false),
            Origin::Owner { .. } | Origin::Nothing => return,
        };
        // Allocated by `new` and given back once, here.
        self.stream.give_back(Freed {
            pointer: self.pointer,
            bytes,
            pooled,
        });
    }
}
