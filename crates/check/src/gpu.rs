//! Running a case on a GPU.

use warptile::gpu::{Arguments, Gpu, Launcher};
use warptile::{Element, Plan, Result};
use warptile_driver::DeviceBuffer;

use crate::{Case, Inputs, ResultBuffers};

/// A case's data on a GPU, with a launcher for it.
///
/// Poison, margins and misalignment are those of the host buffers.
#[derive(Debug)]
pub struct OnGpu<T: Element> {
    launcher: Launcher,
    offset: usize,
    q: DeviceBuffer<T>,
    k: DeviceBuffer<T>,
    v: DeviceBuffer<T>,
    slopes: Option<DeviceBuffer<f32>>,
    poison: ResultBuffers<T>,
    out: DeviceBuffer<T>,
    lse: DeviceBuffer<f32>,
}

impl Case {
    /// Uploads the case to `gpu` for `plan`, on a stream of its own.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn upload<T: Element>(
        &self,
        inputs: &Inputs<T>,
        gpu: &Gpu,
        plan: &Plan,
    ) -> Result<OnGpu<T>> {
        let stream = &warptile_driver::Stream::new(gpu.stream().context())?;
        let poison = self.result::<T>();
        let slopes = inputs
            .slopes()
            .map(|slopes| DeviceBuffer::from_slice(stream, slopes))
            .transpose()?;
        Ok(OnGpu {
            launcher: gpu.launcher(plan, stream)?,
            offset: inputs.q.offset,
            q: DeviceBuffer::from_slice(stream, &inputs.q.data)?,
            k: DeviceBuffer::from_slice(stream, &inputs.k.data)?,
            v: DeviceBuffer::from_slice(stream, &inputs.v.data)?,
            slopes,
            out: DeviceBuffer::from_slice(stream, &poison.out)?,
            lse: DeviceBuffer::from_slice(stream, &poison.lse)?,
            poison,
        })
    }

    /// Uploads, launches once and reads the result back.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn run_on_gpu<T: Element>(
        &self,
        inputs: &Inputs<T>,
        gpu: &Gpu,
        plan: &Plan,
    ) -> Result<ResultBuffers<T>> {
        let mut on_gpu = self.upload(inputs, gpu, plan)?;
        on_gpu.launch()?;
        on_gpu.result()
    }
}

impl<T: Element> OnGpu<T> {
    /// Submits one launch.
    ///
    /// # Errors
    /// As [`Launcher::launch`](warptile::gpu::Launcher::launch).
    pub fn launch(&mut self) -> Result<()> {
        let wants_lse = self.launcher.problem().wants_lse();
        let mut arguments = Arguments::new(
            self.q.slice(self.offset..)?,
            self.k.slice(self.offset..)?,
            self.v.slice(self.offset..)?,
            self.out.slice_mut(self.poison.offset..)?,
        );
        if wants_lse {
            arguments = arguments.with_lse(self.lse.as_slice_mut());
        }
        if let Some(slopes) = &self.slopes {
            arguments = arguments.with_alibi_slopes(slopes.as_slice());
        }
        self.launcher.launch(arguments)
    }

    /// The stream of the launches.
    #[must_use]
    pub fn stream(&self) -> &warptile_driver::Stream {
        self.launcher.stream()
    }

    /// Poisons the result buffers again.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn poison(&mut self) -> Result<()> {
        self.out.copy_from_slice(&self.poison.out)?;
        Ok(self.lse.copy_from_slice(&self.poison.lse)?)
    }

    /// Waits for the launches and reads the result.
    ///
    /// # Errors
    /// What went wrong in the launches.
    pub fn result(&self) -> Result<ResultBuffers<T>> {
        Ok(ResultBuffers {
            out: self.out.to_vec()?,
            offset: self.poison.offset,
            lse: self.lse.to_vec()?,
        })
    }
}
