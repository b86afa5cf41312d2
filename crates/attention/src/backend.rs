//! Where attention is computed: a GPU or the CPU.

use std::fmt;
use std::sync::Arc;

use warptile_driver::Driver;

use crate::gpu::Gpu;
use crate::{Element, Layout, Result, Tensor};

/// A device to compute on. Cloning is cheap and refers to the same device.
#[derive(Debug, Clone)]
pub struct Backend {
    place: Place,
}

#[derive(Debug, Clone)]
pub(crate) enum Place {
    Cpu,
    Gpu(Arc<Gpu>),
}

impl Backend {
    /// The best GPU: the one with the highest compute capability, then the most multiprocessors; the CPU if there is no
    /// usable GPU. [`Backend::cuda`] tells why a GPU is not usable.
    ///
    /// # Errors
    /// None at present: a machine without a working GPU gives the CPU.
    pub fn auto() -> Result<Self> {
        Ok(Self::best_gpu().unwrap_or_else(|_| Self::cpu()))
    }

    fn best_gpu() -> Result<Self> {
        let driver = Driver::load()?;
        let profiles = driver
            .devices()?
            .iter()
            .map(crate::DeviceProfile::of)
            .collect::<Result<Vec<_>>>()?;
        // Among equals the first, as CUDA_VISIBLE_DEVICES orders them.
        let best = (0_u32..)
            .zip(&profiles)
            .max_by_key(|(ordinal, profile)| {
                (
                    profile.major,
                    profile.minor,
                    profile.multiprocessors,
                    std::cmp::Reverse(*ordinal),
                )
            })
            .map_or(0, |(ordinal, _)| ordinal);
        Self::cuda_with(&driver, best)
    }

    /// The CPU, with all its cores.
    #[must_use]
    pub fn cpu() -> Self {
        Backend { place: Place::Cpu }
    }

    /// The GPU with this ordinal, in the driver's order.
    ///
    /// # Errors
    /// When there is no driver, it is too old, or it has no such device; the message says what was tried.
    pub fn cuda(ordinal: u32) -> Result<Self> {
        Self::cuda_with(&Driver::load()?, ordinal)
    }

    /// [`Backend::cuda`] through a driver that was loaded by hand.
    ///
    /// # Errors
    /// As [`Backend::cuda`].
    pub fn cuda_with(driver: &Driver, ordinal: u32) -> Result<Self> {
        Ok(Backend {
            place: Place::Gpu(Arc::new(Gpu::new(driver, ordinal)?)),
        })
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The GPU behind this backend, for launching on streams and buffers of one's own; `None` for the CPU.
    #[must_use]
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match &self.place {
            Place::Cpu => None,
            Place::Gpu(gpu) => Some(gpu),
        }
    }

    /// Whether this is a GPU.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        self.gpu().is_some()
    }

    /// The device's name, `CPU` for the CPU.
    #[must_use]
    pub fn device_name(&self) -> &str {
        self.gpu().map_or("CPU", |gpu| &gpu.profile().name)
    }

    /// Waits until everything submitted to this backend is done.
    ///
    /// # Errors
    /// The first error the device met since the last wait.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu()
            .map_or(Ok(()), |gpu| Ok(gpu.stream().synchronize()?))
    }

    /// Whether both are the same device through the same handle.
    pub(crate) fn is_same(&self, other: &Backend) -> bool {
        match (&self.place, &other.place) {
            (Place::Cpu, Place::Cpu) => true,
            (Place::Gpu(a), Place::Gpu(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Copies `data`, stored densely as `[batch, length, heads, head size]`, to the device.
    ///
    /// # Errors
    /// When `data` is shorter than the shape needs, or the device is out of memory.
    pub fn tensor<T: Element>(&self, data: &[T], shape: [usize; 4]) -> Result<Tensor<T>> {
        self.tensor_with_layout(data, Layout::bshd(shape))
    }

    /// Copies `data`, stored as `layout` says, to the device.
    ///
    /// # Errors
    /// As [`Backend::tensor`], and when the head dimension is not contiguous.
    pub fn tensor_with_layout<T: Element>(&self, data: &[T], layout: Layout) -> Result<Tensor<T>> {
        Tensor::upload(self, data, layout)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Cpu => f.write_str("cpu"),
            Place::Gpu(gpu) => write!(f, "cuda:{} ({})", gpu.ordinal(), gpu.profile().name),
        }
    }
}
