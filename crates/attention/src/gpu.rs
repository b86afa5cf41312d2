//! Plan to launch: kernels loaded on a device, and launching them on streams and buffers of one's own.
//!
//! The way for someone with a stream and memory of their own:
//! 1. [`Gpu::new`] or [`Gpu::on_stream`] once per device,
//! 2. [`Plan::gpu`] and [`Gpu::launcher`] once per problem: loads the kernel and uploads what the problem brings along,
//! 3. [`Launcher::launch`] per call: checks the buffers and submits one kernel. It allocates nothing, synchronizes
//!    nothing, and may be captured in a graph.

mod arguments;
mod kernel;
mod launcher;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use warptile_driver::{Context, Driver, Stream};
use warptile_kernels::Image;

use crate::device::DeviceProfile;
use crate::{Error, Plan, Result};
use kernel::LoadedKernel;

pub use arguments::Arguments;
pub use launcher::Launcher;

/// A GPU with the kernels that were loaded on it so far.
#[derive(Debug)]
pub struct Gpu {
    ordinal: u32,
    profile: DeviceProfile,
    stream: Stream,
    kernels: Mutex<HashMap<&'static str, Arc<LoadedKernel>>>,
}

impl Gpu {
    /// Opens device `ordinal` with a stream of its own.
    ///
    /// # Errors
    /// When the driver has no such device or refuses its context.
    pub fn new(driver: &Driver, ordinal: u32) -> Result<Self> {
        let device = driver.device(ordinal)?;
        Self::on_stream(&Stream::new(&Context::new(&device)?)?)
    }

    /// Uses the device and context of `stream`, which becomes the stream of the [`Backend`](crate::Backend) level.
    ///
    /// # Errors
    /// When the driver refuses a device attribute.
    pub fn on_stream(stream: &Stream) -> Result<Self> {
        let device = stream.context().device();
        Ok(Gpu {
            ordinal: device.ordinal(),
            profile: DeviceProfile::of(device)?,
            stream: stream.clone(),
            kernels: Mutex::default(),
        })
    }

    /// The device's position in the driver's order.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The device's limits.
    #[must_use]
    pub fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    /// The stream that [`Backend`](crate::Backend) tensors are ordered on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Prepares to run `plan` on `stream`: loads the kernel if this is its first use, and makes the workspace.
    ///
    /// # Errors
    /// When the plan is for the CPU, `stream` belongs to another device, the driver refuses the image, or the device is
    /// out of memory.
    pub fn launcher(&self, plan: &Plan, stream: &Stream) -> Result<Launcher> {
        let launch = plan.launch().ok_or_else(|| Error::DeviceMismatch {
            argument: "plan",
            expected: self.profile.name.clone(),
            found: "the CPU".to_owned(),
        })?;
        let ordinal = stream.context().device().ordinal();
        if ordinal != self.ordinal {
            return Err(Error::DeviceMismatch {
                argument: "stream",
                expected: format!("cuda:{}", self.ordinal),
                found: format!("cuda:{ordinal}"),
            });
        }
        Launcher::new(self.kernel(launch.image)?, plan.problem(), launch, stream)
    }

    /// The kernel of `image`, loaded once per device.
    fn kernel(&self, image: &'static Image) -> Result<Arc<LoadedKernel>> {
        // Nothing can panic while the lock is held, and a half-done insert can't be observed.
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(image.name) {
            return Ok(kernel.clone());
        }
        let kernel = Arc::new(LoadedKernel::load(self.stream.context(), image)?);
        kernels.insert(image.name, kernel.clone());
        Ok(kernel)
    }
}
