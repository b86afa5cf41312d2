//! The log-sum-exp of each row, on the backend of its output.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use warptile_driver::{DeviceBuffer, DeviceSlice, DeviceSliceMut};

use crate::backend::{Backend, Place};
use crate::error::{Error, Result};
use crate::spec::Invalid;
use crate::tensor::{Storage, elsewhere, expect_context, uninit, zeros};

/// Natural logarithm of the softmax denominator of each query row; `-inf` for rows whose denominator is 0.
#[derive(Clone)]
pub struct Lse {
    backend: Backend,
    shape: [usize; 3],
    /// Values before the first one.
    offset: usize,
    storage: Storage<f32>,
}

impl Lse {
    /// An lse to be written by [`Attention::forward_into`](crate::Attention::forward_into), for queries of this shape: batch,
    /// length, heads, head size.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn zeros(backend: &Backend, shape: [usize; 4]) -> Result<Self> {
        Self::new(backend, shape, |len| match backend.place() {
            Place::Cpu => Ok(Storage::Host(Arc::new(zeros("lse", len)?))),
            Place::Gpu(gpu) => {
                let buffer = DeviceBuffer::zeroed(gpu.stream(), len)?;
                Ok(Storage::Device(Arc::new(buffer)))
            }
        })
    }

    /// A copy of values from elsewhere, stored as `[batch, heads, length]`, for queries of this shape: batch, length, heads,
    /// head size.
    ///
    /// # Errors
    /// [`Invalid::Count`] if there are not as many values; when there is no memory for them.
    pub fn from_slice(backend: &Backend, values: &[f32], shape: [usize; 4]) -> Result<Self> {
        Self::new(backend, shape, |needed| {
            if values.len() != needed {
                return Err(Invalid::count("lse", values.len(), needed).into());
            }
            match backend.place() {
                Place::Cpu => Ok(Storage::Host(Arc::new(values.to_vec()))),
                Place::Gpu(gpu) => {
                    let buffer = DeviceBuffer::from_slice(gpu.stream(), values)?;
                    Ok(Storage::Device(Arc::new(buffer)))
                }
            }
        })
    }

    /// An lse of a device buffer, stored as `shape`: batch, heads, length. The buffer may belong to any stream of the backend's context.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] if the buffer is not of the backend's context; [`Invalid::Count`] if it has another number of values.
    pub fn from_device(
        backend: &Backend,
        buffer: DeviceBuffer<f32>,
        [batch, heads, length]: [usize; 3],
    ) -> Result<Self> {
        expect_context(backend, &buffer)?;
        Self::new(backend, [batch, length, heads, 1], |needed| {
            match buffer.len() == needed {
                true => Ok(Storage::Device(Arc::new(buffer))),
                false => Err(Invalid::count("lse", buffer.len(), needed).into()),
            }
        })
    }

    /// An uninitialized lse; every value is about to be written.
    pub(crate) fn uninit(backend: &Backend, shape: [usize; 4]) -> Result<Self> {
        Self::new(backend, shape, |len| uninit(backend, "lse", len))
    }

    fn new(
        backend: &Backend,
        [batch, length, heads, _]: [usize; 4],
        storage: impl FnOnce(usize) -> Result<Storage<f32>>,
    ) -> Result<Self> {
        let shape = [batch, heads, length];
        let len = shape
            .iter()
            .try_fold(1_usize, |product, &extent| product.checked_mul(extent))
            .ok_or(Invalid::LayoutTooLarge { argument: "lse" })?;
        Ok(Self::from_storage(backend.clone(), shape, storage(len)?))
    }

    pub(crate) fn from_storage(backend: Backend, shape: [usize; 3], storage: Storage<f32>) -> Self {
        Lse {
            backend,
            shape,
            offset: 0,
            storage,
        }
    }

    /// Some heads of a batch entry, which share the values.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn part(&self, entry: usize, heads: Range<usize>) -> Result<Self> {
        let [batch, of_entry, length] = self.shape;
        let entries = entry..entry.saturating_add(1);
        for (dimension, range, extent) in [("batch", &entries, batch), ("heads", &heads, of_entry)]
        {
            if range.start > range.end || range.end > extent {
                return Err(Error::OutOfRange {
                    dimension,
                    start: range.start,
                    end: range.end,
                    extent,
                });
            }
        }
        Ok(Lse {
            shape: [1, heads.len(), length],
            offset: self.offset + (entry * of_entry + heads.start) * length,
            ..self.clone()
        })
    }

    /// Where the values are.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Batch, heads, length; of packed queries 1, heads, rows.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    fn range(&self) -> Range<usize> {
        // Elements that exist, so the product does not overflow.
        self.offset..self.offset + self.shape.iter().product::<usize>()
    }

    /// Copies the values to the host, ordered as [`shape`](Self::shape) says. Waits for the computation.
    ///
    /// # Errors
    /// When the device reports an error.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        self.storage.to_vec(self.range())
    }

    /// The values on the host; `None` on a GPU.
    pub fn as_slice(&self) -> Option<&[f32]> {
        match &self.storage {
            Storage::Host(data) => data.get(self.range()),
            Storage::Device(_) => None,
        }
    }

    /// The values on the device, for kernels of one's own; `None` on the CPU.
    pub fn device_slice(&self) -> Option<DeviceSlice<'_, f32>> {
        match &self.storage {
            Storage::Host(_) => None,
            Storage::Device(buffer) => buffer.slice(self.range()).ok(),
        }
    }

    pub(crate) fn on_host(&self, argument: &'static str) -> Result<&[f32]> {
        let place = || elsewhere(argument, "the CPU", self.backend.to_string());
        self.as_slice().ok_or_else(place)
    }

    pub(crate) fn on_device(&self, argument: &'static str) -> Result<DeviceSlice<'_, f32>> {
        let place = || elsewhere(argument, "a GPU", self.backend.to_string());
        self.device_slice().ok_or_else(place)
    }

    /// The values on the host, for writing.
    ///
    /// # Errors
    /// [`Error::Shared`] if somebody else holds them.
    pub(crate) fn host_mut(&mut self, argument: &'static str) -> Result<&mut [f32]> {
        let range = self.range();
        match &mut self.storage {
            Storage::Host(data) => { Arc::get_mut(data) }
                .and_then(|data| data.get_mut(range))
                .ok_or(Error::Shared { argument }),
            Storage::Device(_) => Err(elsewhere(argument, "the CPU", self.backend.to_string())),
        }
    }

    /// The values on the device, for writing.
    ///
    /// # Errors
    /// [`Error::Shared`] if somebody else holds them.
    pub(crate) fn device_mut(&mut self, argument: &'static str) -> Result<DeviceSliceMut<'_, f32>> {
        let range = self.range();
        match &mut self.storage {
            Storage::Device(buffer) => {
                let buffer = Arc::get_mut(buffer).ok_or(Error::Shared { argument })?;
                Ok(buffer.slice_mut(range)?)
            }
            Storage::Host(_) => Err(elsewhere(argument, "a GPU", self.backend.to_string())),
        }
    }
}

impl fmt::Debug for Lse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lse({:?} on {})", self.shape, self.backend)
    }
}
