//! The log-sum-exp of each row, on the backend of its output.

use std::fmt;
use std::ops::Range;

use warptile_driver::{DeviceBuffer, DeviceSlice};

use crate::backend::Backend;
use crate::error::Result;
use crate::spec::{Invalid, Layout};
use crate::tensor::{Storage, Tensor, expect_context};

/// Natural logarithm of the softmax denominator of each query row; `-inf` for rows whose denominator is 0.
#[derive(Clone)]
pub struct Lse(
    /// Stored as `[batch, heads, length]`, with one number in place of each row.
    pub(crate) Tensor<f32>,
);

impl Lse {
    /// An lse to be written by [`Attention::forward_into`](crate::Attention::forward_into), for queries of this shape: batch,
    /// length, heads, head size.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn zeros(backend: &Backend, shape: [usize; 4]) -> Result<Self> {
        Tensor::zeros(backend, "lse", layout_of(shape)?).map(Lse)
    }

    /// A copy of values from elsewhere, stored as `[batch, heads, length]`, for queries of this shape: batch, length, heads,
    /// head size.
    ///
    /// # Errors
    /// [`Invalid::Count`] if there are not as many values; when there is no memory for them.
    pub fn from_slice(backend: &Backend, values: &[f32], shape: [usize; 4]) -> Result<Self> {
        let layout = layout_of(shape)?;
        expect_count(values.len(), &layout)?;
        Tensor::upload(backend, values, layout).map(Lse)
    }

    /// An lse of a device buffer, stored as `shape`: batch, heads, length. The buffer may belong to any stream of the backend's context.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) if the buffer is not of the backend's context; [`Invalid::Count`] if it has
    /// another number of values.
    pub fn from_device(
        backend: &Backend,
        buffer: DeviceBuffer<f32>,
        [batch, heads, length]: [usize; 3],
    ) -> Result<Self> {
        expect_context(backend, &buffer)?;
        let layout = layout_of([batch, length, heads, 1])?;
        expect_count(buffer.len(), &layout)?;
        Tensor::from_device(backend, buffer, layout).map(Lse)
    }

    /// An uninitialized lse; every value is about to be written.
    pub(crate) fn uninit(backend: &Backend, shape: [usize; 4]) -> Result<Self> {
        Tensor::uninit(backend, "lse", layout_of(shape)?).map(Lse)
    }

    pub(crate) fn from_storage(
        backend: Backend,
        [batch, heads, length]: [usize; 3],
        storage: Storage<f32>,
    ) -> Self {
        let layout = Layout::bhsd([batch, heads, length, 1]);
        Lse(Tensor::from_storage(backend, layout, storage))
    }

    /// Some heads of a batch entry, which share the values.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn part(&self, entry: usize, heads: Range<usize>) -> Result<Self> {
        let entry = self.0.entries(entry..entry.saturating_add(1))?;
        entry.heads(heads).map(Lse)
    }

    /// Runs `f` on some heads of a batch entry, such as to have [`forward_into`](crate::Attention::forward_into) write them: as
    /// [`Tensor::with_part`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn with_part<R>(
        &mut self,
        entry: usize,
        heads: Range<usize>,
        f: impl FnOnce(&mut Self) -> R,
    ) -> Result<R> {
        let Lse(part) = self.part(entry, heads)?;
        Ok(Tensor::with_view(self, |lse| &mut lse.0, part, f))
    }

    /// Where the values are.
    pub fn backend(&self) -> &Backend {
        self.0.backend()
    }

    /// Batch, heads, length; of packed queries 1, heads, rows.
    pub fn shape(&self) -> [usize; 3] {
        let [batch, length, heads, _] = self.0.shape();
        [batch, heads, length]
    }

    /// Copies the values to the host, ordered as [`shape`](Self::shape) says. Waits for the computation.
    ///
    /// # Errors
    /// When the device reports an error.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        self.0.to_vec()
    }

    /// The values on the host; `None` on a GPU.
    pub fn as_slice(&self) -> Option<&[f32]> {
        self.0.as_slice()
    }

    /// The values on the device, for kernels of one's own; `None` on the CPU.
    pub fn device_slice(&self) -> Option<DeviceSlice<'_, f32>> {
        self.0.device_slice()
    }
}

impl fmt::Debug for Lse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lse({:?} on {})", self.shape(), self.backend())
    }
}

/// The layout for queries of a shape.
fn layout_of([batch, length, heads, _]: [usize; 4]) -> Result<Layout> {
    let layout = Layout::bhsd([batch, heads, length, 1]);
    layout.validate("lse")?;
    Ok(layout)
}

fn expect_count(found: usize, layout: &Layout) -> Result<()> {
    match layout.reach() {
        needed if needed == found => Ok(()),
        needed => Err(Invalid::count("lse", found, needed).into()),
    }
}
