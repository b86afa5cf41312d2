//! Problems on a GPU: kernels loaded on a device, and launches on streams and memory of one's own.
//!
//! The way for someone with a stream and memory of their own:
//! 1. [`Gpu::new`] or [`Gpu::on_stream`] once per device,
//! 2. [`Call::builder`](crate::spec::Call::builder) for what is to be computed, and [`Gpu::prepare`] for its problem: plans and loads
//!    the kernel the first time, and finds it again after that,
//! 3. [`Prepared::launch`] for each call: checks the views and submits the kernel. It waits for nothing, and may be captured in
//!    a [`Graph`](warptile_driver::Graph).
//!
//! For streams, memory and captures of other libraries: [`Prepared::launch_raw`] and [`Session`].
//!
//! With `WARPTILE_SYNC=1` in the environment every launch outside captures is waited for, and its error names the kernel that failed:
//! for finding faults, as it costs the time of the wait.
//!
//! Other operations are launched in the same way: [`Gpu::prepare_for`], [`Gpu::prepare_merge`] and
//! [`Gpu::prepare_append`] prepare them.

mod append;
mod backward;
mod bindings;
mod block;
mod forward;
mod kernel;
mod log;
mod merge;
mod operation;
mod prepared;
mod prepass;
mod session;
mod sync;
mod workspace;

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use warptile_driver::{Context, DeviceBuffer, Driver, Staging, Stream};
use warptile_kernels::Image;

use crate::error::{Error, Result};
use crate::plan::{Choice, DeviceProfile, Plan, Planner, Rates};
use crate::recent::{Recent, lock};
use crate::spec::{Call, CallBuilder, Problem};
use kernel::Loaded;
use prepared::Inner;

pub(crate) use prepared::Ready;

pub use crate::backend::PassedOver;
pub use append::PositionElement;
pub use bindings::{Addresses, Bindings};
pub use operation::{Operation, Planned};
pub use prepared::Prepared;
pub use session::Session;
pub use warptile_spec::{Access, MemoryType, ViewTypes};

/// A kernel once it is loaded; until then locked by the thread that loads it.
type Loading = Mutex<Option<Arc<Loaded>>>;

/// Lists of numbers that are kept: each layer of a model may have some of its own. Few enough to look through.
const MOST_CONSTANTS: usize = 1024;

/// Prepared problems of all operations: `(Problem, Choice)` and [`Inner`] of an operation.
type AllPrepared = Recent<Box<dyn Any + Send>, Arc<dyn Any + Send + Sync>>;

/// A GPU with the kernels that were loaded on it so far, and what was prepared last.
#[derive(Debug)]
pub struct Gpu {
    profile: DeviceProfile,
    rates: Option<Rates>,
    named: Vec<&'static Image>,
    stream: Stream,
    staging: Arc<Staging>,
    kernels: Mutex<HashMap<&'static str, Arc<Loading>>>,
    prepared: Mutex<AllPrepared>,
    ready: Mutex<Recent<(CallBuilder<'static>, Choice), Arc<Ready>>>,
    constants: Mutex<Recent<Vec<u32>, Arc<DeviceBuffer<f32>>, MOST_CONSTANTS>>,
    /// Names of images whose clusters the device cannot hold.
    without: Mutex<Vec<&'static str>>,
}

impl Gpu {
    /// Opens device `ordinal` with a stream of its own.
    ///
    /// # Errors
    /// When the driver has no such device or refuses its context.
    pub fn new(driver: &Driver, ordinal: u32) -> Result<Self> {
        let stream = Stream::new(&Context::new(&driver.device(ordinal)?)?)?;
        stream.keep_spares();
        Self::on_stream(&stream)
    }

    /// Uses the device and context of `stream`, which becomes the stream of the [`Backend`](crate::Backend) level.
    ///
    /// # Errors
    /// When the driver refuses a device attribute.
    pub fn on_stream(stream: &Stream) -> Result<Self> {
        Ok(Gpu {
            profile: DeviceProfile::of(stream.context().device())?,
            rates: None,
            named: Vec::new(),
            stream: stream.clone(),
            staging: Arc::new(Staging::new(stream.context())),
            kernels: Mutex::default(),
            prepared: Mutex::default(),
            ready: Mutex::default(),
            constants: Mutex::default(),
            without: Mutex::default(),
        })
    }

    /// Plans with other rates than the embedded ones, such as those that were measured on this very GPU.
    pub fn with_rates(self, rates: Rates) -> Self {
        Gpu {
            rates: Some(rates),
            ..self.unplanned()
        }
    }

    /// Forgets what was planned, as by other rates or for another device.
    fn unplanned(mut self) -> Self {
        self.prepared = Mutex::default();
        self.ready = Mutex::default();
        self
    }

    /// Plans with the rates that `warptile tune` measured on this GPU, if the user has a file of them ([`Rates::of_user`]). The library
    /// reads no file unless it is asked to.
    ///
    /// # Errors
    /// [`Error::RatesFile`] if there is a file that can't be used.
    pub fn with_user_rates(self) -> Result<Self> {
        match Rates::of_user(&self.profile, &self.driver_name())? {
            Some(rates) => Ok(self.with_rates(rates)),
            None => Ok(self),
        }
    }

    /// The rates that the planner goes by.
    pub fn rates(&self) -> &Rates {
        self.rates
            .as_ref()
            .unwrap_or_else(|| Rates::embedded(&self.profile))
    }

    /// The driver, as files of rates name it: `CUDA 13.0`.
    pub fn driver_name(&self) -> String {
        format!("CUDA {}", self.context().driver().version())
    }

    /// Plans as if the device were `profile`: of fewer multiprocessors, so that small problems take the paths of large ones.
    pub fn with_profile(self, profile: DeviceProfile) -> Self {
        Gpu {
            profile,
            // They were loaded for launches with the shared memory of the other device.
            kernels: Mutex::default(),
            without: Mutex::default(),
            ..self.unplanned()
        }
    }

    /// With images besides the embedded ones, which run only if a [`Choice`] names them: see
    /// [`External`](warptile_kernels::External).
    pub fn with_named_images(mut self, images: impl IntoIterator<Item = &'static Image>) -> Self {
        self.named = images.into_iter().collect();
        self
    }

    /// The device's position in the driver's order.
    pub fn ordinal(&self) -> u32 {
        self.stream.context().device().ordinal()
    }

    /// The device's limits.
    pub fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    /// The stream that [`Backend`](crate::Backend) tensors are ordered on.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The device's context.
    pub fn context(&self) -> &Context {
        self.stream.context()
    }

    /// Chooses the kernels for a problem.
    ///
    /// # Errors
    /// As [`Plan::gpu`].
    pub fn plan(&self, problem: Problem, choice: &Choice) -> Result<Plan> {
        self.plan_of::<Call>(problem, choice)
    }

    /// As [`plan`](Self::plan), of any operation.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub fn plan_of<O: Operation>(
        &self,
        problem: O::Problem,
        choice: &Choice,
    ) -> Result<Plan<O::Problem>> {
        let without = lock(&self.without).clone();
        let planner = Planner::new(&self.profile)
            .rates(self.rates())
            .named(&self.named)
            .without(&without);
        problem.plan(&planner, choice)
    }

    /// A problem planned and its kernels loaded: from the last time, if it is among the last 64.
    ///
    /// # Errors
    /// When no kernel applies, the driver refuses an image, or the device is out of memory.
    pub fn prepare(&self, problem: Problem, choice: &Choice) -> Result<Prepared> {
        self.prepared::<Call>(problem, choice)
    }

    /// As [`prepare`](Self::prepare), of any operation, by one of its calls.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_for<O: Operation>(&self, call: &O, choice: &Choice) -> Result<Prepared<O>> {
        self.prepared(call.problem(), choice)
    }

    fn prepared<O: Operation>(&self, problem: O::Problem, choice: &Choice) -> Result<Prepared<O>> {
        let is_it = |known: &Box<dyn Any + Send>| {
            { known.downcast_ref::<(O::Problem, Choice)>() }
                .is_some_and(|(known, by)| *known == problem && by == choice)
        };
        let known = lock(&self.prepared).find(is_it);
        if let Some(Ok(inner)) = known.map(Arc::downcast::<Inner<O::Problem>>) {
            return Ok(Prepared::of(inner));
        }
        // Not under the lock: this may take long. Two threads may both come here with the same problem, at no harm.
        let prepared = loop {
            let loaded = self
                .plan_of::<O>(problem, choice)
                .and_then(|plan| self.load_of::<O>(plan));
            match (loaded, choice) {
                (loaded, Choice::Image(_)) => break loaded?,
                // Another image may do.
                (Err(Error::Clusters { image, .. }), _) => lock(&self.without).push(image),
                (loaded, _) => break loaded?,
            }
        };
        problem.note();
        // The evicted value is dropped after the lock is released: unloading may wait for the device.
        let key = Box::new((problem, choice.clone()));
        let _oldest = lock(&self.prepared).keep(key, prepared.inner().clone());
        Ok(prepared)
    }

    /// A call described, checked and prepared. It is taken from the cache if it is among the last 64 without lists on the host. `check` is
    /// an additional check that runs for every call.
    pub(crate) fn ready(
        &self,
        request: CallBuilder<'_>,
        choice: &Choice,
        check: impl FnOnce(&Call) -> Result<()>,
    ) -> Result<Arc<Ready>> {
        let known = lock(&self.ready).find(|(known, by)| *known == request && by == choice);
        if let Some(ready) = known {
            check(ready.call())?;
            return Ok(ready);
        }
        let kept = request.kept();
        let call = request.build()?;
        check(&call)?;
        let prepared = self.prepare(call.problem(), choice)?;
        let ready = Arc::new(Ready::new(call, prepared)?);
        if let Some(request) = kept {
            let _oldest = lock(&self.ready).keep((request, choice.clone()), ready.clone());
        }
        Ok(ready)
    }

    /// Loads the kernels of a plan made for this device.
    ///
    /// # Errors
    /// When the plan is for the CPU, the driver refuses an image, or the device is out of memory; [`Error::Clusters`].
    pub fn load(&self, plan: Plan) -> Result<Prepared> {
        self.load_of::<Call>(plan)
    }

    /// As [`load`](Self::load), of any operation.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_of<O: Operation>(&self, plan: Plan<O::Problem>) -> Result<Prepared<O>> {
        if plan.steps().is_empty() {
            return Err(Error::DeviceMismatch {
                argument: "plan",
                expected: self.profile.name.clone(),
                found: "the CPU".to_owned(),
            });
        }
        let mut kernels = Vec::with_capacity(plan.steps().len());
        let mut clustered_ctas = Vec::with_capacity(plan.steps().len());
        for step in plan.steps() {
            if !O::BLOCKS.contains(&step.image.abi_hash) {
                let image = step.image.name;
                return Err(Error::OtherAbi { image });
            }
            let kernel = self.kernel(step.image)?;
            clustered_ctas.push(kernel.clustered_ctas(&self.stream, step)?);
            kernels.push(kernel);
        }
        Ok(Prepared::new(
            plan.with_clustered_ctas(&clustered_ctas),
            self.context(),
            kernels,
            self.staging.clone(),
        ))
    }

    /// The kernel of `image`, loaded once per device. Threads that want another one do not wait for it: the driver may take a second
    /// to compile PTX.
    fn kernel(&self, image: &'static Image) -> Result<Arc<Loaded>> {
        let loading = lock(&self.kernels).entry(image.name).or_default().clone();
        let mut kernel = lock(&loading);
        if let Some(kernel) = &*kernel {
            return Ok(kernel.clone());
        }
        let loaded = Arc::new(Loaded::load(self.context(), image, &self.profile)?);
        Ok(kernel.insert(loaded).clone())
    }

    /// Brings small arrays to the device.
    pub(crate) fn staging(&self) -> &Arc<Staging> {
        &self.staging
    }

    /// Numbers of options, which calls repeat, on the device: uploaded once, which waits, and found again while they are among the last
    /// [`MOST_CONSTANTS`] lists.
    pub(crate) fn constant(&self, values: &[f32]) -> Result<Arc<DeviceBuffer<f32>>> {
        let same = |known: &Vec<u32>| {
            known.len() == values.len() && known.iter().zip(values).all(|(&a, b)| a == b.to_bits())
        };
        let known = lock(&self.constants).find(same);
        if let Some(constant) = known {
            return Ok(constant);
        }
        let constant = Arc::new(DeviceBuffer::from_slice(&self.stream, values)?);
        let key = values.iter().map(|value| value.to_bits()).collect();
        let _oldest = lock(&self.constants).keep(key, constant.clone());
        Ok(constant)
    }
}
