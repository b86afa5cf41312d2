//! Small host arrays on their way to the device, such as the row offsets of a packed batch.

use std::fmt;
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use warptile_cuda_sys::CUdeviceptr;

use crate::buffer::{DeviceSliceMut, same_length};
use crate::context::{Context, Retired, lock};
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::event::Event;
use crate::pinned::PinnedBuffer;
use crate::scratch::Scratch;
use crate::stream::{Status, Stream};

/// Slots are of powers of two, and at least this large, so that few sizes serve all.
const SMALLEST_BYTES: usize = 256;
/// Slots beyond this many are given up as soon as they are free.
const MOST_SLOTS: usize = 16;

/// Brings small host arrays to the device without waiting: by way of pinned memory, each into memory
/// of its own, which an event gives back for the next array of its size. If all are busy, one more
/// is made. A cheap handle: clones share the slots.
///
/// ```no_run
/// # use warptile_driver::{Staging, Stream};
/// # fn f(staging: &Staging, stream: &Stream) -> warptile_driver::Result<()> {
/// let offsets = staging.upload(stream, &[0_i32, 100, 300])?;
/// // ... launch on `stream` a kernel that reads at `offsets.pointer()` ...
/// drop(offsets);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Staging {
    pool: Arc<Pool>,
}

struct Pool {
    context: Context,
    /// Free slots, those given back first at the front.
    slots: Mutex<Vec<Slot>>,
}

/// The two sides of an upload, of equal size.
struct Memory {
    pinned: PinnedBuffer<u8>,
    device: Scratch,
}

struct Slot {
    memory: Memory,
    event: Event,
    busy: Busy,
}

/// Until when the device uses a slot.
enum Busy {
    /// Not at all.
    No,
    /// Until the event has happened.
    Marked,
    /// Until this stream has done what it had to do when the slot was given back, whose end could
    /// not be marked then: the stream had entered a capture.
    Unmarked(Stream),
}

/// An array on the device, for what is queued on the stream that it was uploaded to until this is
/// dropped.
#[must_use = "the memory is used again as soon as this is dropped"]
pub struct Staged {
    pointer: CUdeviceptr,
    /// The slot to give back; `None` if a graph has it, or for zero bytes.
    lent: Option<(Arc<Pool>, Stream, Slot)>,
}

impl Staging {
    /// Without slots; they are made as they are needed.
    pub fn new(context: &Context) -> Staging {
        let pool = Pool {
            context: context.clone(),
            slots: Mutex::default(),
        };
        Staging {
            pool: Arc::new(pool),
        }
    }

    /// Queues a copy of `values` on the stream. Waits for nothing; `values` are the caller's again
    /// when this returns.
    ///
    /// In a capture the array gets a slot of its own, which each launch of the graph copies again. It is made outside
    /// the capture and kept with the graph, or for good if other code began the capture.
    ///
    /// # Errors
    /// [`DriverError::OtherContext`], out of memory, or what the driver reports.
    pub fn upload<T: Pod>(&self, stream: &Stream, values: &[T]) -> Result<Staged> {
        if !stream.context().is_same(&self.pool.context) {
            return Err(DriverError::OtherContext {
                operation: "uploading a host array",
            });
        }
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if bytes.is_empty() {
            return Ok(Staged {
                pointer: 0,
                lent: None,
            });
        }
        let _current = stream.context().enter()?;
        let _held = stream.hold();
        if let Some(capture) = stream.capture()? {
            let mut memory = Memory::new(&self.pool.context, bytes.len())?;
            memory.pinned[..bytes.len()].copy_from_slice(bytes);
            let memory = Arc::new(memory);
            stream.keep_in(capture, memory.clone());
            memory.copy(stream, memory.device.pointer(), bytes.len())?;
            return Ok(Staged {
                pointer: memory.device.pointer(),
                lent: None,
            });
        }
        let slot = self.pool.filled(bytes)?;
        let to = slot.memory.device.pointer();
        let queued = slot.memory.copy(stream, to, bytes.len());
        // Dropping it marks the end of the copy, if there is an error.
        let staged = self.pool.lend(stream, to, slot);
        queued.map(|()| staged)
    }

    /// Queues a copy of `values` into memory of the caller's, on its stream. Waits for nothing; `values` are the caller's again
    /// when this returns.
    ///
    /// # Errors
    /// [`DriverError::OtherContext`], [`DriverError::Length`], [`DriverError::Capturing`], out of memory, or what the driver
    /// reports.
    pub fn copy_into<T: Pod>(&self, values: &[T], to: &mut DeviceSliceMut<'_, T>) -> Result<()> {
        const OPERATION: &str = "copying a host array into device memory";
        let stream = to.stream();
        if !stream.context().is_same(&self.pool.context) {
            return Err(DriverError::OtherContext {
                operation: OPERATION,
            });
        }
        same_length(OPERATION, values.len(), to.len())?;
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if bytes.is_empty() {
            return Ok(());
        }
        let _current = stream.context().enter()?;
        let _held = stream.outside_captures(OPERATION)?;
        let slot = self.pool.filled(bytes)?;
        let queued = slot.memory.copy(stream, to.pointer(), bytes.len());
        // Marks the end of the copy, also if there is an error.
        drop(self.pool.lend(stream, to.pointer(), slot));
        queued
    }
}

impl Memory {
    fn new(context: &Context, bytes: usize) -> Result<Memory> {
        let bytes = bytes
            .checked_next_power_of_two()
            .ok_or(DriverError::TooLarge {
                len: bytes,
                size: 1,
            })?
            .max(SMALLEST_BYTES);
        Ok(Memory {
            pinned: PinnedBuffer::zeroed(context, bytes)?,
            device: Scratch::uninit(context, bytes)?,
        })
    }

    /// Queues the copy of the first `bytes` to `to`, which is the device side or a caller's view of `bytes` bytes on this stream,
    /// whose context is current.
    fn copy(&self, stream: &Stream, to: CUdeviceptr, bytes: usize) -> Result<()> {
        let from = self.pinned.as_ptr();
        // SAFETY: both sides have `bytes` bytes. The pinned one and the device side stay until the device is past the copy: as
        // long as the graph, or until the slot's event. A view's memory is freed in the order of its stream, which is this one.
        unsafe {
            call!(
                stream,
                "copying a host array to the device",
                memcpy_htod_async(to, from.cast(), bytes, stream.raw())
            )
        }
    }
}

impl Slot {
    fn len(&self) -> usize {
        self.memory.pinned.len()
    }

    /// Returns true if the device is past the slot; doesn't wait. The thread minds no captures.
    fn is_free(&mut self) -> bool {
        if let Busy::Unmarked(stream) = &self.busy {
            let stream = stream.clone();
            self.mark(&stream);
        }
        match self.busy {
            Busy::No => true,
            Busy::Marked => self.event.ask().unwrap_or_else(|error| {
                self.event.context().defer(Err(error));
                false
            }),
            Busy::Unmarked(_) => false,
        }
    }

    /// Records the event at the current end of the stream's work, if that is possible now.
    fn mark(&mut self, stream: &Stream) {
        let _held = stream.hold();
        let marked = match stream.status() {
            Ok(Status::Free) => stream.record(&self.event).map(|()| Busy::Marked),
            other => other.map(|_| Busy::Unmarked(stream.clone())),
        };
        self.busy = marked.unwrap_or_else(|error| {
            stream.context().defer(Err(error));
            Busy::Unmarked(stream.clone())
        });
    }
}

impl Pool {
    /// A slot with these bytes in its pinned memory.
    fn filled(&self, bytes: &[u8]) -> Result<Slot> {
        let mut slot = self.take(bytes.len())?;
        slot.memory.pinned[..bytes.len()].copy_from_slice(bytes);
        Ok(slot)
    }

    /// Gives a slot to what is queued on the stream until the result is dropped.
    fn lend(self: &Arc<Self>, stream: &Stream, pointer: CUdeviceptr, slot: Slot) -> Staged {
        Staged {
            pointer,
            lent: Some((self.clone(), stream.clone(), slot)),
        }
    }

    /// A slot of at least `bytes` bytes that the device is past.
    fn take(&self, bytes: usize) -> Result<Slot> {
        // Asking for events would disturb captures that others have under way.
        let relaxed = self.context.relaxed()?;
        let mut slots = lock(&self.slots);
        let fits = |slot: &Slot| (bytes..4 * bytes.max(SMALLEST_BYTES)).contains(&slot.len());
        let free = (0..slots.len()).find(|&at| fits(&slots[at]) && slots[at].is_free());
        let taken = free.map(|at| slots.remove(at));
        let superfluous = if slots.len() > MOST_SLOTS {
            let free = (0..slots.len()).find(|&at| slots[at].is_free());
            free.map(|at| slots.remove(at))
        } else {
            None
        };
        drop(slots);
        drop(relaxed);
        drop(superfluous);
        match taken {
            Some(slot) => Ok(slot),
            None => Ok(Slot {
                memory: Memory::new(&self.context, bytes)?,
                event: Event::new(&self.context)?,
                busy: Busy::No,
            }),
        }
    }
}

impl Staged {
    /// The device address of the first element, aligned to 256 bytes; 0 for an empty array.
    pub fn pointer(&self) -> CUdeviceptr {
        self.pointer
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some((pool, stream, mut slot)) = self.lent.take() {
            slot.mark(&stream);
            lock(&pool.slots).push(slot);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _current = self.context.enter_to_release();
        let relaxed = self.context.relaxed();
        for slot in std::mem::take(&mut *lock(&self.slots)) {
            let over = match &slot.busy {
                Busy::No => Ok(()),
                Busy::Marked => slot.event.synchronize().or_else(|_| self.context.drain()),
                Busy::Unmarked(stream) => stream.wait_for_end(),
            };
            if over.is_err() {
                let _value = Box::new(slot);
                self.context.retire(Retired::Value { _value });
            }
        }
        self.context.defer(relaxed.map(drop));
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staging({} idle slots)", lock(&self.pool.slots).len())
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staged({:#x})", self.pointer)
    }
}
