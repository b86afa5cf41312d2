//! Running a case on a GPU.

use warptile::gpu::{Bindings, Gpu, Prepared};
use warptile::{Call, Choice, Element, Plan, Planner};
use warptile_driver::{DeviceBuffer, Stream};

use crate::{Case, Inputs, Lists, Result, ResultBuffers};

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
    /// Only if the call has them on the device.
    lists: DeviceLists,
    poison: ResultBuffers<T>,
    out: DeviceBuffer<T>,
    lse: DeviceBuffer<f32>,
}

/// The [`Lists`] of a case in device memory.
#[derive(Debug, Default)]
pub struct DeviceLists {
    query_offsets: Option<DeviceBuffer<i32>>,
    key_offsets: Option<DeviceBuffer<i32>>,
    query_lengths: Option<DeviceBuffer<i32>>,
    key_lengths: Option<DeviceBuffer<i32>>,
    block_table: Option<DeviceBuffer<i32>>,
}

impl DeviceLists {
    /// Copies the lists that there are.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn upload(stream: &Stream, lists: &Lists) -> warptile::Result<Self> {
        let upload = |list: Option<&[i32]>| {
            list.map(|list| DeviceBuffer::from_slice(stream, list))
                .transpose()
        };
        let table = lists.block_table.as_ref();
        Ok(DeviceLists {
            query_offsets: upload(lists.query_offsets.as_deref())?,
            key_offsets: upload(lists.key_offsets.as_deref())?,
            query_lengths: upload(lists.query_lengths.as_deref())?,
            key_lengths: upload(lists.key_lengths.as_deref())?,
            block_table: upload(table.map(|table| &table.entries[..]))?,
        })
    }

    /// Adds them to the memory of a launch.
    pub fn bind<'a>(&'a self, mut bindings: Bindings<'a>) -> Bindings<'a> {
        if let Some(list) = &self.query_offsets {
            bindings = bindings.query_offsets(list.as_slice());
        }
        if let Some(list) = &self.key_offsets {
            bindings = bindings.key_offsets(list.as_slice());
        }
        if let Some(list) = &self.query_lengths {
            bindings = bindings.query_lengths(list.as_slice());
        }
        if let Some(list) = &self.key_lengths {
            bindings = bindings.key_lengths(list.as_slice());
        }
        if let Some(list) = &self.block_table {
            bindings = bindings.block_table(list.as_slice());
        }
        bindings
    }
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
                lists: match self.device_lengths {
                    true => DeviceLists::upload(stream, &self.lists())?,
                    false => DeviceLists::default(),
                },
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
        bindings = self.lists.bind(bindings);
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
