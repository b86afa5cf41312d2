//! Copies between host and device by way of pinned memory.

use std::sync::{Mutex, PoisonError};

use bytemuck::Pod;
use warptile_driver::{DeviceBuffer, PinnedBuffer, Stream};

/// Bytes that are copied at once, and bytes up to which the driver copies directly.
const CHUNK_BYTES: usize = 1 << 20;
const FEW_BYTES: usize = 16 << 10;

/// Pinned memory for the copies of a thread, which is made when the first needs it. Other memory the driver copies by way of its own, of
/// which all threads of a process share a little.
#[derive(Debug, Default)]
pub struct Ferry(Mutex<Option<PinnedBuffer<u64>>>);

impl Ferry {
    /// Calls `copy` with the pinned memory.
    fn with<R>(
        &self,
        stream: &Stream,
        copy: impl FnOnce(&mut [u64]) -> warptile::Result<R>,
    ) -> warptile::Result<R> {
        let mut pinned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = match pinned.take() {
            Some(memory) => memory,
            None => PinnedBuffer::zeroed(stream.context(), CHUNK_BYTES / size_of::<u64>())?,
        };
        copy(pinned.insert(memory))
    }

    /// A copy of host memory on the device.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn upload<T: Pod>(
        &self,
        stream: &Stream,
        values: &[T],
    ) -> warptile::Result<DeviceBuffer<T>> {
        if size_of_val(values) <= FEW_BYTES {
            return Ok(DeviceBuffer::from_slice(stream, values)?);
        }
        let mut buffer = DeviceBuffer::uninit(stream, values.len())?;
        self.with(stream, |pinned| {
            let pinned = bytemuck::cast_slice_mut::<u64, T>(pinned);
            let mut begin = 0;
            for part in values.chunks(pinned.len()) {
                let pinned = &mut pinned[..part.len()];
                pinned.copy_from_slice(part);
                let end = begin + part.len();
                buffer.slice_mut(begin..end)?.copy_from_slice(pinned)?;
                begin = end;
            }
            Ok(())
        })?;
        Ok(buffer)
    }

    /// A copy of device memory on the host. Waits for the buffer's stream.
    ///
    /// # Errors
    /// What failed on the stream up to here.
    pub fn download<T: Pod>(&self, buffer: &DeviceBuffer<T>) -> warptile::Result<Vec<T>> {
        if buffer.byte_len() <= FEW_BYTES {
            return Ok(buffer.to_vec()?);
        }
        self.with(buffer.stream(), |pinned| {
            let pinned = bytemuck::cast_slice_mut::<u64, T>(pinned);
            let mut values = Vec::with_capacity(buffer.len());
            while values.len() < buffer.len() {
                let begin = values.len();
                let end = buffer.len().min(begin + pinned.len());
                let pinned = &mut pinned[..end - begin];
                buffer.slice(begin..end)?.copy_to_slice(pinned)?;
                values.extend_from_slice(pinned);
            }
            Ok(values)
        })
    }
}
