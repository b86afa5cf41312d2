//! Memory of a stream on its way back, and the end of a stream.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

use warptile_cuda_sys::CUdeviceptr;

use super::{Holder, Inner, Status, Stream};
use crate::capture::Owner;
use crate::context::{Retired, lock};
use crate::driver::call;
use crate::error::Result;

/// Pieces of memory that a stream keeps for its next allocations, and the most bytes of one.
const SPARES: usize = 4;
const SPARE_BYTES: usize = 4 << 20;

/// Memory of a stream on its way back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Freed {
    pub(crate) pointer: CUdeviceptr,
    pub(crate) bytes: usize,
    /// From the context's pool, so freed in stream order; else after waiting.
    pub(crate) pooled: bool,
}

impl Stream {
    /// Frees what was dropped during a capture, if that is over.
    pub(crate) fn flush(&self) {
        if lock(&self.inner.orphans).is_empty() {
            return;
        }
        let _current = self.context().enter_to_release();
        let _held = self.hold();
        if let Ok(Status::Free) = self.status() {
            self.free_orphans();
        }
    }

    /// Has the stream keep memory of buffers that are dropped for the next ones of just as many bytes: four pieces of up to 4 MiB each. To
    /// free and to allocate in the order of the stream costs a call of the driver each, which small calls feel. A borrowed stream keeps
    /// none.
    ///
    /// The stream gives them back to the context's pool when it ends.
    pub fn keep_spares(&self) {
        self.inner.keeps_spares.store(true, Ordering::Relaxed);
    }

    /// Memory of the pool that was dropped before and has exactly `bytes` bytes: its earlier uses come before what is queued from now
    /// on, as if it had been freed and allocated in the stream's order. None for a stream that may be in a capture.
    pub(crate) fn spare(&self, bytes: usize) -> Option<CUdeviceptr> {
        if !self.inner.keeps_spares.load(Ordering::Relaxed) {
            return None;
        }
        let _held = self.hold();
        if !self.inner.is_surely_free() {
            return None;
        }
        let mut spares = lock(&self.inner.spares);
        let at = spares.iter().rposition(|spare| spare.bytes == bytes)?;
        Some(spares.remove(at).pointer)
    }

    /// Frees memory in the stream's order, or keeps it spare; what is dropped while the stream is in a capture, by any
    /// thread, is freed when that is over.
    pub(crate) fn give_back(&self, memory: Freed) {
        let context = self.context();
        let _held = self.hold();
        let Some(memory) = self.inner.keep_spare(memory) else {
            return;
        };
        let _current = context.enter_to_release();
        match self.status() {
            Ok(Status::Free) => {
                self.free_orphans();
                self.inner.free(memory);
            }
            other => {
                context.defer(other.map(drop));
                lock(&self.inner.orphans).push(memory);
            }
        }
    }

    /// Frees what was dropped during a capture that is over. The context is current.
    pub(crate) fn free_orphans(&self) {
        let orphans = std::mem::take(&mut *lock(&self.inner.orphans));
        for memory in orphans {
            self.inner.free(memory);
        }
    }
}

impl Inner {
    /// Keeps memory for the next allocation of its size; gives back what is to be freed in its place, if anything.
    fn keep_spare(&self, memory: Freed) -> Option<Freed> {
        let keeps = self.keeps_spares.load(Ordering::Relaxed);
        let fits = memory.pooled && memory.bytes <= SPARE_BYTES;
        if !keeps || !fits || !self.is_surely_free() || self.context.has_lost_order() {
            return Some(memory);
        }
        let mut spares = lock(&self.spares);
        let oldest = (spares.len() == SPARES).then(|| spares.remove(0));
        spares.push(memory);
        oldest
    }

    /// Frees memory of a stream that is in no capture; its context is current.
    fn free(&self, memory: Freed) {
        let context = &self.context;
        // Where work is out of order, memory that cannot be waited for is left alone.
        let freed = context.is_in_order().and_then(|()| match memory.pooled {
            true => self.free_in_order(memory.pointer),
            false => self.free_after_wait(memory.pointer),
        });
        context.defer(freed);
    }

    fn free_in_order(&self, pointer: CUdeviceptr) -> Result<()> {
        // Without a guard it would break a capture that somebody has under way in global mode.
        let relaxed = self.context.relaxed();
        // SAFETY: memory of the context's pool, freed once, here. Work that this crate queued
        // elsewhere was ordered before this stream by events.
        let freed = unsafe {
            call!(
                &self.context,
                "freeing device memory",
                mem_free_async(pointer, self.raw)
            )
        };
        self.context.defer(relaxed.map(drop));
        freed
    }

    fn free_after_wait(&self, pointer: CUdeviceptr) -> Result<()> {
        // A kernel may still use the memory, and cuMemFree does not promise to wait. If neither
        // stream nor context can be waited for, the memory is left alone.
        self.wait()?;
        self.context.free_now(pointer);
        Ok(())
    }

    /// Gives back what the stream still has. The context is current.
    fn give_up_contents(&mut self) {
        let mut orphans = std::mem::take(&mut *lock(&self.orphans));
        orphans.append(&mut lock(&self.spares));
        let attached = std::mem::take(&mut *lock(&self.attached));
        if orphans.is_empty() && attached.is_empty() {
            return;
        }
        if self.is_captured() {
            // Somebody else's capture outlasts us. What is left waits for the context.
            for memory in orphans {
                self.context.retire(Retired::Memory(memory.pointer));
            }
            self.retire(attached);
            self.context.lose_end();
            return;
        }
        for memory in orphans {
            self.free(memory);
        }
        if !attached.is_empty() && self.wait().is_err() {
            self.retire(attached);
        }
    }

    /// Has the context know the end of what was launched here, which may use modules. The context is current.
    fn note_end(&self) {
        if !self.launched.load(Ordering::Relaxed) {
            return;
        }
        // For a stream in another owner's capture no event marks the end of the work before it.
        let known = !self.is_captured() && {
            let marked = self.context.mark_end(self.raw);
            marked.or_else(|_| self.wait_alone()).is_ok()
        };
        if !known {
            self.context.lose_end();
        }
    }

    fn retire(&self, attached: HashMap<TypeId, Owner>) {
        if !attached.is_empty() {
            let _value: Box<dyn Any + Send + Sync> = Box::new(attached);
            self.context.retire(Retired::Value { _value });
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let empty = lock(&self.orphans).is_empty()
            && lock(&self.spares).is_empty()
            && lock(&self.attached).is_empty();
        let owned = matches!(self.holder, Holder::Us);
        if empty && !owned && !self.launched.load(Ordering::Relaxed) {
            return;
        }
        let context = self.context.clone();
        let _current = context.enter_to_release();
        self.give_up_alone();
        self.give_up_contents();
        self.note_end();
        if owned {
            // SAFETY: this was the last user of a stream created here. Work still queued on it is
            // finished by the driver before the stream's resources go.
            let result =
                unsafe { call!(&context, "destroying a stream", stream_destroy(self.raw)) };
            context.defer(result);
        }
    }
}
