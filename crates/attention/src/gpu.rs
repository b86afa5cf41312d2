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
mod recent;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warptile_driver::{Context, Driver, Stream};
use warptile_kernels::Image;

use crate::device::DeviceProfile;
use crate::{Error, Plan, Problem, Result};
use kernel::LoadedKernel;
use recent::Recent;

pub use arguments::Arguments;
pub use launcher::Launcher;
pub(crate) use recent::PreparedCall;

/// A GPU with the kernels that were loaded on it so far, and the plans of the last calls of
/// [`Attention::forward`](crate::Attention::forward).
#[derive(Debug)]
pub struct Gpu {
    ordinal: u32,
    profile: DeviceProfile,
    stream: Stream,
    kernels: Mutex<HashMap<&'static str, Arc<LoadedKernel>>>,
    recent: Mutex<Recent<PreparedCall>>,
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
            recent: Mutex::default(),
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

    /// What it takes to solve `problem` on this GPU's own stream, from the last time if it was among the last calls.
    ///
    /// # Errors
    /// When no kernel applies, or as [`Gpu::launcher`].
    pub(crate) fn prepare(
        &self,
        problem: &Problem,
        kernel: Option<&str>,
        slopes: Option<&[f32]>,
    ) -> Result<Arc<PreparedCall>> {
        let known = lock(&self.recent).find(|call| call.is_for(problem, kernel, slopes));
        if let Some(call) = known {
            return Ok(call);
        }
        // Not under the lock: this may take long. Two threads may both come here with the same problem, at no harm.
        let plan = Plan::gpu(problem.clone(), &self.profile, kernel)?;
        let launcher = self.launcher(&plan, &self.stream)?;
        let call = Arc::new(PreparedCall::new(plan, launcher, kernel, slopes)?);
        // What makes place is dropped after the lock is released: freeing its memory may wait for the device.
        let _oldest = lock(&self.recent).keep(call.clone());
        Ok(call)
    }

    /// The kernel of `image`, loaded once per device.
    fn kernel(&self, image: &'static Image) -> Result<Arc<LoadedKernel>> {
        let mut kernels = lock(&self.kernels);
        if let Some(kernel) = kernels.get(image.name) {
            return Ok(kernel.clone());
        }
        let kernel = Arc::new(LoadedKernel::load(self.stream.context(), image)?);
        kernels.insert(image.name, kernel.clone());
        Ok(kernel)
    }
}

/// Nothing that holds one of these locks can leave its value half changed, so a poisoned one is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
