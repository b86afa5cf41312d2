//! Copies between host and device by way of pinned memory.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use warptile_driver::{DeviceBuffer, PendingCopy, PinnedBuffer, Stream};

/// Bytes of the largest copy, and of the smallest pinned buffer. Sizes of buffers are powers of two, so that a few serve all copies.
const CHUNK_BYTES: usize = 4 << 20;
const LEAST_BYTES: usize = 4 << 10;

/// Bytes of pinned memory whose copies may be under way in one direction; the next copy waits for the oldest.
const BYTES_UNDER_WAY: usize = 16 << 20;

/// Pinned memory for the copies of a thread, which is made as it is needed. Other memory the driver copies by way of its own, of which
/// all threads of a process share a little.
///
/// Nothing here waits for the device but [`Coming::wait`] and those who copy more than 16 MiB: a wait takes some ten microseconds, and
/// milliseconds where other processes have work for the GPU.
#[derive(Debug, Default)]
pub struct Ferry(Mutex<Fleet>);

#[derive(Debug, Default)]
struct Fleet {
    idle: Vec<PinnedBuffer<u8>>,
    /// To the device.
    under_way: UnderWay,
}

/// Copies, the oldest first, and the bytes of their pinned memory.
#[derive(Debug, Default)]
struct UnderWay {
    copies: VecDeque<Queued>,
    bytes: usize,
}

#[derive(Debug)]
struct Queued {
    pending: PendingCopy<u8>,
    elements: usize,
    /// Bytes of its pinned memory.
    pinned: usize,
}

/// A copy of device memory that is on its way to the host.
#[must_use = "it is of use once it has been waited for"]
#[derive(Debug)]
pub struct Coming<'a, T> {
    ferry: &'a Ferry,
    /// The values that have arrived.
    values: Vec<T>,
    under_way: UnderWay,
}

impl UnderWay {
    fn push(&mut self, pending: PendingCopy<u8>, elements: usize, pinned: usize) {
        self.bytes += pinned;
        self.copies.push_back(Queued {
            pending,
            elements,
            pinned,
        });
    }

    /// Waits for the oldest copy, if there is one. After an error it is under way no more either: its memory is freed.
    fn wait(&mut self) -> warptile::Result<Option<(PinnedBuffer<u8>, usize)>> {
        let Some(copy) = self.copies.pop_front() else {
            return Ok(None);
        };
        self.bytes -= copy.pinned;
        Ok(Some((copy.pending.wait()?, copy.elements)))
    }

    fn oldest_is_done(&self) -> warptile::Result<bool> {
        match self.copies.front() {
            Some(copy) => Ok(copy.pending.is_done()?),
            None => Ok(false),
        }
    }
}

impl Ferry {
    fn fleet(&self) -> MutexGuard<'_, Fleet> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pinned memory of at least this many bytes.
    fn pinned(&self, stream: &Stream, bytes: usize) -> warptile::Result<PinnedBuffer<u8>> {
        let mut fleet = self.fleet();
        while fleet.under_way.bytes > BYTES_UNDER_WAY || fleet.under_way.oldest_is_done()? {
            let done = fleet.under_way.wait()?;
            fleet.idle.extend(done.map(|(pinned, _)| pinned));
        }
        let len = bytes.next_power_of_two().max(LEAST_BYTES);
        let found = fleet.idle.iter().position(|pinned| pinned.len() == len);
        match found {
            Some(index) => Ok(fleet.idle.swap_remove(index)),
            None => Ok(PinnedBuffer::zeroed(stream.context(), len)?),
        }
    }

    /// A copy of host memory on the device, for what is queued on the stream from now on. `values` are the caller's again when this
    /// returns.
    ///
    /// # Errors
    /// The driver's error.
    pub fn upload<T: Pod>(
        &self,
        stream: &Stream,
        values: &[T],
    ) -> warptile::Result<DeviceBuffer<T>> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let mut buffer = DeviceBuffer::uninit(stream, bytes.len())?;
        let mut begin = 0;
        for part in bytes.chunks(CHUNK_BYTES) {
            let mut pinned = self.pinned(stream, part.len())?;
            pinned[..part.len()].copy_from_slice(part);
            let (end, bytes) = (begin + part.len(), pinned.len());
            let copy = buffer.slice_mut(begin..end)?.copy_from_pinned(pinned)?;
            self.fleet().under_way.push(copy, part.len(), bytes);
            begin = end;
        }
        Ok(buffer.cast()?)
    }

    /// Queues a copy of device memory to the host on the buffer's stream.
    ///
    /// # Errors
    /// The driver's error.
    pub fn begin_download<T: Pod>(
        &self,
        buffer: &DeviceBuffer<T>,
    ) -> warptile::Result<Coming<'_, T>> {
        let mut coming = Coming {
            ferry: self,
            values: Vec::with_capacity(buffer.len()),
            under_way: UnderWay::default(),
        };
        let most = CHUNK_BYTES / size_of::<T>().max(1);
        let mut begin = 0;
        while begin < buffer.len() {
            let end = buffer.len().min(begin + most);
            let part = buffer.slice(begin..end)?.into_bytes();
            while coming.under_way.bytes > BYTES_UNDER_WAY {
                coming.land()?;
            }
            let pinned = self.pinned(buffer.stream(), part.len())?;
            let bytes = pinned.len();
            let copy = part.copy_to_pinned(pinned)?;
            coming.under_way.push(copy, end - begin, bytes);
            begin = end;
        }
        Ok(coming)
    }

    /// A copy of device memory on the host. Waits for the buffer's stream.
    ///
    /// # Errors
    /// An error of earlier work on the stream.
    pub fn download<T: Pod>(&self, buffer: &DeviceBuffer<T>) -> warptile::Result<Vec<T>> {
        self.begin_download(buffer)?.wait()
    }
}

impl<T: Pod> Coming<'_, T> {
    /// Waits for the oldest part; whether there was one.
    fn land(&mut self) -> warptile::Result<bool> {
        let Some((pinned, elements)) = self.under_way.wait()? else {
            return Ok(false);
        };
        let bytes = &pinned[..elements * size_of::<T>()];
        // Pinned memory begins with a page, so it is aligned for any type.
        self.values.extend_from_slice(bytemuck::cast_slice(bytes));
        self.ferry.fleet().idle.push(pinned);
        Ok(true)
    }

    /// Waits for the copy.
    ///
    /// # Errors
    /// An error of the stream up to the copy.
    pub fn wait(mut self) -> warptile::Result<Vec<T>> {
        while self.land()? {}
        Ok(self.values)
    }
}
