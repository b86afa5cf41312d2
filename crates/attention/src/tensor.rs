//! Tensors of the newcomer's level: data together with its layout and the backend it lives on.

use std::sync::Arc;

use warptile_driver::{DeviceBuffer, DeviceSlice};

use crate::backend::{Backend, Place};
use crate::{Element, Error, Layout, Result, View};

/// A tensor on a [`Backend`]: batch, length, heads and head size, as its [`Layout`] says.
///
/// Cloning shares the elements.
#[derive(Debug, Clone)]
pub struct Tensor<T: Element> {
    backend: Backend,
    layout: Layout,
    storage: Storage<T>,
}

#[derive(Debug, Clone)]
pub(crate) enum Storage<T: Element> {
    Host(Arc<Vec<T>>),
    Device(Arc<DeviceBuffer<T>>),
}

impl<T: Element> Tensor<T> {
    /// Copies `data` to `backend`; see [`Backend::tensor_with_layout`].
    pub(crate) fn upload(backend: &Backend, data: &[T], layout: Layout) -> Result<Self> {
        layout.validate("data")?;
        let needed = layout
            .required_len()
            .ok_or(Error::LayoutTooLarge { argument: "data" })?;
        if data.len() < needed {
            return Err(Error::BufferTooSmall {
                argument: "data",
                needed,
                available: data.len(),
            });
        }
        let data = &data[..needed];
        let storage = match backend.place() {
            Place::Cpu => Storage::Host(Arc::new(data.to_vec())),
            Place::Gpu(gpu) => {
                Storage::Device(Arc::new(DeviceBuffer::from_slice(gpu.stream(), data)?))
            }
        };
        Ok(Tensor {
            backend: backend.clone(),
            layout,
            storage,
        })
    }

    pub(crate) fn from_storage(backend: Backend, layout: Layout, storage: Storage<T>) -> Self {
        Tensor {
            backend,
            layout,
            storage,
        }
    }

    /// Batch, length, heads and head size, whatever the order in memory.
    #[must_use]
    pub fn shape(&self) -> [usize; 4] {
        self.layout.shape
    }

    /// Shape and strides.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where the elements are.
    #[must_use]
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Copies the elements to the host in the order of memory: `[batch, length, heads, head size]` for a BSHD layout,
    /// `[batch, heads, length, head size]` for BHSD. Waits for the computation that writes them.
    ///
    /// # Errors
    /// When the device reports an error, of this copy or of an earlier launch.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        match &self.storage {
            Storage::Host(data) => Ok(data.to_vec()),
            Storage::Device(buffer) => Ok(buffer.to_vec()?),
        }
    }

    /// The elements on the host.
    pub(crate) fn view(&self) -> Result<View<'_, T>> {
        match &self.storage {
            Storage::Host(data) => Ok(View::new(data.as_slice(), self.layout)),
            Storage::Device(_) => Err(self.elsewhere("the CPU")),
        }
    }

    /// The elements on the device.
    pub(crate) fn device_slice(&self) -> Result<DeviceSlice<'_, T>> {
        match &self.storage {
            Storage::Device(buffer) => Ok(buffer.as_slice()),
            Storage::Host(_) => Err(self.elsewhere("a GPU")),
        }
    }

    fn elsewhere(&self, expected: &str) -> Error {
        Error::DeviceMismatch {
            argument: "tensor",
            expected: expected.to_owned(),
            found: self.backend.to_string(),
        }
    }
}
