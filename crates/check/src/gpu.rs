//! Running a case on a GPU.

use warptile::gpu::{Bindings, Gpu, Prepared};
use warptile::{Call, Choice, Element, Plan, Planner};
use warptile_driver::{DeviceBuffer, Stream};

use crate::{Case, Inputs, Result, ResultBuffers};

/// A case's data on a GPU, prepared to launch.
///
/// Poison, margins and misalignment are those of the host buffers.
#[derive(Debug)]
pub struct OnGpu<T: Element> {
    prepared: Prepared,
    stream: Stream,
    call: Call,
    offset: usize,
    q: DeviceBuffer<T>,
    k: DeviceBuffer<T>,
    v: DeviceBuffer<T>,
    slopes: Option<DeviceBuffer<f32>>,
    sinks: Option<DeviceBuffer<f32>>,
    bias: Option<DeviceBuffer<T>>,
    key_mask: Option<DeviceBuffer<u8>>,
    /// Offsets, then used lengths, of queries and keys; only if the call has them on the device.
    offsets: Option<[DeviceBuffer<i32>; 2]>,
    used: Option<[DeviceBuffer<i32>; 2]>,
    poison: ResultBuffers<T>,
    out: DeviceBuffer<T>,
    lse: DeviceBuffer<f32>,
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
    /// What the driver reports.
    pub fn upload<T: Element>(
        &self,
        inputs: &Inputs<T>,
        gpu: &Gpu,
        plan: &Plan,
    ) -> Result<OnGpu<T>> {
        self.upload_on(inputs, gpu, &Stream::new(gpu.context())?, plan)
    }

    /// [`upload`](Self::upload) on a stream of the GPU's context, for those who compute one case after the other: a stream
    /// keeps its workspace, and getting one takes the driver longer than many a kernel.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn upload_on<T: Element>(
        &self,
        inputs: &Inputs<T>,
        gpu: &Gpu,
        stream: &Stream,
        plan: &Plan,
    ) -> Result<OnGpu<T>> {
        let call = self.call_on_gpu()?;
        let on_gpu = || -> warptile::Result<OnGpu<T>> {
            let poison = self.result::<T>();
            let floats = |values: Option<&Vec<f32>>| {
                let upload = |values: &Vec<f32>| DeviceBuffer::from_slice(stream, values);
                values.map(upload).transpose()
            };
            let numbers = |lists: Option<(Vec<i32>, Vec<i32>)>| match lists {
                Some((q, k)) if call.lengths_on_device() => {
                    let q = DeviceBuffer::from_slice(stream, &q)?;
                    Ok::<_, warptile::Error>(Some([q, DeviceBuffer::from_slice(stream, &k)?]))
                }
                _ => Ok(None),
            };
            let bias = inputs.bias.as_ref();
            let key_mask = inputs.key_mask.as_ref();
            Ok(OnGpu {
                prepared: gpu.load(plan.clone())?,
                offset: inputs.q.offset,
                q: DeviceBuffer::from_slice(stream, &inputs.q.data)?,
                k: DeviceBuffer::from_slice(stream, &inputs.k.data)?,
                v: DeviceBuffer::from_slice(stream, &inputs.v.data)?,
                slopes: floats(inputs.slopes.as_ref())?,
                sinks: floats(inputs.sinks.as_ref())?,
                bias: bias
                    .map(|bias| DeviceBuffer::from_slice(stream, &bias.data))
                    .transpose()?,
                key_mask: key_mask
                    .map(|mask| DeviceBuffer::from_slice(stream, &mask.data))
                    .transpose()?,
                offsets: numbers(self.offsets())?,
                used: numbers(self.used_lengths())?,
                out: DeviceBuffer::from_slice(stream, &poison.out)?,
                lse: DeviceBuffer::from_slice(stream, &poison.lse)?,
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
    /// What the driver reports.
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
    /// Submits one launch.
    ///
    /// # Errors
    /// As [`Prepared::launch`].
    pub fn launch(&mut self) -> warptile::Result<()> {
        let mut bindings = Bindings::new(
            self.q.slice(self.offset..)?,
            self.k.slice(self.offset..)?,
            self.v.slice(self.offset..)?,
            self.out.slice_mut(self.poison.offset..)?,
        );
        if self.call.wants_lse() {
            bindings = bindings.lse(self.lse.as_slice_mut());
        }
        if let Some(slopes) = &self.slopes {
            bindings = bindings.slopes(slopes.as_slice());
        }
        if let Some(sinks) = &self.sinks {
            bindings = bindings.sinks(sinks.as_slice());
        }
        if let Some(bias) = &self.bias {
            bindings = bindings.bias(bias.slice(self.offset..)?);
        }
        if let Some(key_mask) = &self.key_mask {
            bindings = bindings.key_mask(key_mask.slice(self.offset..)?);
        }
        if let Some([queries, keys]) = &self.offsets {
            bindings = bindings
                .query_offsets(queries.as_slice())
                .key_offsets(keys.as_slice());
        }
        if let Some([queries, keys]) = &self.used {
            bindings = bindings
                .query_lengths(queries.as_slice())
                .key_lengths(keys.as_slice());
        }
        self.prepared.launch(&self.stream, &self.call, &bindings)
    }

    /// The stream of the launches.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Poisons the result buffers again.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn poison(&mut self) -> warptile::Result<()> {
        self.out.copy_from_slice(&self.poison.out)?;
        Ok(self.lse.copy_from_slice(&self.poison.lse)?)
    }

    /// Waits for the launches and reads the result.
    ///
    /// # Errors
    /// What went wrong in the launches.
    pub fn result(&self) -> warptile::Result<ResultBuffers<T>> {
        Ok(ResultBuffers {
            out: self.out.to_vec()?,
            offset: self.poison.offset,
            lse: self.lse.to_vec()?,
        })
    }
}
