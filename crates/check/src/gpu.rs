//! Running a case on a GPU.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use warptile::Element;
use warptile::gpu::{Gpu, Prepared};
use warptile::plan::{Choice, Plan, Planner};
use warptile::spec::{Call, Operand};
use warptile_driver::{DeviceBuffer, Stream};

use crate::device::{DeviceInputs, once_more};
use crate::{Case, Coming, Ferry, Inputs, Result, ResultBuffers};

/// Times that who rests offers its core before it sleeps, and how long it sleeps then. Most kernels of small problems are done before.
const TURNS: u32 = 16;
const NAP: Duration = Duration::from_micros(50);

/// A case's data on a GPU, prepared to launch.
///
/// Poison, margins and misalignment are those of the host buffers.
#[derive(Debug)]
pub struct OnGpu<T: Element> {
    prepared: Prepared,
    stream: Stream,
    ferry: Arc<Ferry>,
    call: Call,
    inputs: DeviceInputs,
    /// Only if the call has them on the device.
    lists: DeviceInputs,
    /// The element of the output's buffer that the output starts at.
    offset: usize,
    /// The contents of the result buffers before a launch.
    poison: (DeviceBuffer<T>, DeviceBuffer<f32>),
    out: DeviceBuffer<T>,
    lse: DeviceBuffer<f32>,
}

/// Waits for a stream, and leaves the core to others meanwhile: the driver's own waiting keeps it busy. For work whose time nobody takes.
///
/// # Errors
/// An error of the stream.
pub fn rest(stream: &Stream) -> warptile::Result<()> {
    for turn in 0_u32.. {
        if stream.query()? {
            break;
        }
        match turn < TURNS {
            true => thread::yield_now(),
            false => thread::sleep(NAP),
        }
    }
    Ok(stream.synchronize()?)
}

impl Case {
    /// The plan for the case on `gpu`, or on a GPU like it with as many multiprocessors as the case says.
    ///
    /// # Errors
    /// When no kernel, or not the one chosen, can run.
    pub fn plan(&self, gpu: &Gpu, choice: &Choice) -> Result<Plan> {
        let profile = self.profile(gpu.profile());
        let problem = self.call_on_gpu()?.problem();
        Ok(Planner::new(&profile).plan(problem, choice)?)
    }

    /// Uploads the case to `gpu` for `plan`, on a stream of its own.
    ///
    /// # Errors
    /// The driver's error.
    pub fn upload<T: Element>(
        &self,
        inputs: &Inputs<T>,
        gpu: &Gpu,
        plan: &Plan,
    ) -> Result<OnGpu<T>> {
        self.upload_on(
            inputs,
            gpu,
            &Stream::new(gpu.context())?,
            &Arc::default(),
            plan,
        )
    }

    /// [`upload`](Self::upload) on a stream of the GPU's context and by way of pinned memory, for those who compute one case after the
    /// other: a stream keeps its workspace, and getting one takes the driver longer than many a kernel.
    ///
    /// # Errors
    /// The driver's error.
    pub fn upload_on<T: Element>(
        &self,
        inputs: &Inputs<T>,
        gpu: &Gpu,
        stream: &Stream,
        ferry: &Arc<Ferry>,
        plan: &Plan,
    ) -> Result<OnGpu<T>> {
        let call = self.call_on_gpu()?;
        let on_gpu = || -> warptile::Result<OnGpu<T>> {
            let poison = self.result::<T>();
            let poison = (
                ferry.upload(stream, &poison.out)?,
                ferry.upload(stream, &poison.lse)?,
            );
            Ok(OnGpu {
                prepared: gpu.load(plan.clone())?,
                ferry: ferry.clone(),
                inputs: DeviceInputs::upload(stream, ferry, inputs)?,
                lists: match self.device_lengths {
                    true => DeviceInputs::of_lists(stream, ferry, &self.lists())?,
                    false => DeviceInputs::default(),
                },
                offset: inputs.q.offset,
                out: once_more(stream, &poison.0)?,
                lse: once_more(stream, &poison.1)?,
                stream: stream.clone(),
                call: call.clone(),
                poison,
            })
        };
        Ok(on_gpu()?)
    }

    /// Uploads, launches once and reads the result back.
    ///
    /// # Errors
    /// The driver's error.
    pub fn run_on_gpu<T: Element>(
        &self,
        inputs: &Inputs<T>,
        gpu: &Gpu,
        plan: &Plan,
    ) -> Result<ResultBuffers<T>> {
        let mut on_gpu = self.upload(inputs, gpu, plan)?;
        on_gpu.launch()?;
        Ok(on_gpu.result()?)
    }
}

impl<T: Element> OnGpu<T> {
    /// Copies the data on the device into memory of its own, with poisoned results.
    ///
    /// # Errors
    /// The driver's error.
    pub fn once_more(&self) -> warptile::Result<Self> {
        let stream = &self.stream;
        Ok(OnGpu {
            prepared: self.prepared.clone(),
            stream: stream.clone(),
            ferry: self.ferry.clone(),
            call: self.call.clone(),
            inputs: self.inputs.once_more(stream)?,
            lists: self.lists.once_more(stream)?,
            offset: self.offset,
            poison: (
                once_more(stream, &self.poison.0)?,
                once_more(stream, &self.poison.1)?,
            ),
            out: once_more(stream, &self.poison.0)?,
            lse: once_more(stream, &self.poison.1)?,
        })
    }

    /// Submits one launch.
    ///
    /// # Errors
    /// As [`Prepared::launch`].
    pub fn launch(&mut self) -> warptile::Result<()> {
        let out = self.out.slice_mut(self.offset..)?;
        let mut bindings = self.inputs.bind(out)?;
        self.lists.add_to(&mut bindings)?;
        if self.call.wants_lse() {
            bindings.set_output(Operand::Lse, self.lse.as_slice_mut());
        }
        self.prepared.launch(&self.stream, &self.call, &bindings)
    }

    /// The stream of the launches.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Poisons the result buffers again.
    ///
    /// # Errors
    /// The driver's error.
    pub fn poison(&mut self) -> warptile::Result<()> {
        self.out.copy_from(&self.poison.0)?;
        Ok(self.lse.copy_from(&self.poison.1)?)
    }

    /// Waits for the launches and reads the result.
    ///
    /// # Errors
    /// An error of the launches.
    pub fn result(&self) -> warptile::Result<ResultBuffers<T>> {
        self.begin_result()?.wait()
    }

    /// Queues copies of the result behind the launches.
    ///
    /// # Errors
    /// The driver's error.
    pub fn begin_result(&self) -> warptile::Result<ComingResult<'_, T>> {
        Ok(ComingResult {
            out: self.ferry.begin_download(&self.out)?,
            offset: self.offset,
            lse: self.ferry.begin_download(&self.lse)?,
        })
    }
}

/// A result that is on its way to the host.
#[must_use = "it is of use once it has been waited for"]
#[derive(Debug)]
pub struct ComingResult<'a, T> {
    out: Coming<'a, T>,
    offset: usize,
    lse: Coming<'a, f32>,
}

impl<T: Element> ComingResult<'_, T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// An error of the launches.
    pub fn wait(self) -> warptile::Result<ResultBuffers<T>> {
        Ok(ResultBuffers {
            out: self.out.wait()?,
            offset: self.offset,
            lse: self.lse.wait()?,
        })
    }
}
