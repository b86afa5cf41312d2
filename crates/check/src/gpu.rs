//! Running a case on a GPU.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use warptile::gpu::{Bindings, Gpu, Prepared};
use warptile::{Call, Choice, Element, Plan, Planner, QuantizedType};
use warptile_driver::{DeviceBuffer, DeviceSlice, DeviceSliceMut, Stream};

use crate::{Case, Coming, Ferry, Inputs, Lists, Quantized, Result, ResultBuffers};

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
    offset: usize,
    q: DeviceBuffer<T>,
    keys: KeyBuffers<T>,
    slopes: Option<DeviceBuffer<f32>>,
    sinks: Option<DeviceBuffer<f32>>,
    bias: Option<DeviceBuffer<T>>,
    key_mask: Option<DeviceBuffer<u8>>,
    /// Only if the call has them on the device.
    lists: DeviceLists,
    /// What the result buffers have before a launch.
    poison: (DeviceBuffer<T>, DeviceBuffer<f32>),
    out: DeviceBuffer<T>,
    lse: DeviceBuffer<f32>,
}

/// Keys and values in device memory.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyBuffers<T: Element> {
    /// Of the queries' type.
    Same(DeviceBuffer<T>, DeviceBuffer<T>),
    /// Of a type of 8 bits, each with its scales.
    Quantized {
        /// Their type.
        element: QuantizedType,
        /// The bits of the keys.
        k: DeviceBuffer<u8>,
        /// Those of the values.
        v: DeviceBuffer<u8>,
        /// Of the keys.
        k_scale: DeviceBuffer<f32>,
        /// Of the values.
        v_scale: DeviceBuffer<f32>,
    },
}

/// A copy of a buffer in device memory: from the host it takes many times as long.
///
/// # Errors
/// What the driver reports.
pub fn once_more<T: bytemuck::Pod>(
    stream: &Stream,
    from: &DeviceBuffer<T>,
) -> warptile::Result<DeviceBuffer<T>> {
    let mut copy = DeviceBuffer::uninit(stream, from.len())?;
    copy.copy_from(from)?;
    Ok(copy)
}

fn maybe_once_more<T: bytemuck::Pod>(
    stream: &Stream,
    from: Option<&DeviceBuffer<T>>,
) -> warptile::Result<Option<DeviceBuffer<T>>> {
    from.map(|from| once_more(stream, from)).transpose()
}

/// Waits for a stream, and leaves the core to others meanwhile: the driver's own waiting keeps it busy. For work whose time nobody takes.
///
/// # Errors
/// What failed on the stream.
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

impl<T: Element> KeyBuffers<T> {
    /// The same keys and values once more, copied on the device.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn once_more(&self, stream: &Stream) -> warptile::Result<Self> {
        Ok(match self {
            KeyBuffers::Same(k, v) => {
                KeyBuffers::Same(once_more(stream, k)?, once_more(stream, v)?)
            }
            KeyBuffers::Quantized {
                element,
                k,
                v,
                k_scale,
                v_scale,
            } => KeyBuffers::Quantized {
                element: *element,
                k: once_more(stream, k)?,
                v: once_more(stream, v)?,
                k_scale: once_more(stream, k_scale)?,
                v_scale: once_more(stream, v_scale)?,
            },
        })
    }

    /// The memory of a launch with them, from element `offset` on.
    ///
    /// # Errors
    /// When they are shorter than `offset`.
    pub fn bind<'a>(
        &'a self,
        q: DeviceSlice<'a, T>,
        out: DeviceSliceMut<'a, T>,
        offset: usize,
    ) -> warptile::Result<Bindings<'a>> {
        Ok(match self {
            KeyBuffers::Same(k, v) => Bindings::new(q, k.slice(offset..)?, v.slice(offset..)?, out),
            KeyBuffers::Quantized {
                element,
                k,
                v,
                k_scale,
                v_scale,
            } => Bindings::quantized(
                q,
                *element,
                [k.slice(offset..)?, v.slice(offset..)?],
                [k_scale.as_slice(), v_scale.as_slice()],
                out,
            ),
        })
    }

    /// Bytes of keys and values.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        match self {
            KeyBuffers::Same(k, v) => k.byte_len() + v.byte_len(),
            KeyBuffers::Quantized { k, v, .. } => k.byte_len() + v.byte_len(),
        }
    }
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
    pub fn upload(stream: &Stream, ferry: &Ferry, lists: &Lists) -> warptile::Result<Self> {
        let upload = |list: Option<&[i32]>| list.map(|list| ferry.upload(stream, list)).transpose();
        let table = lists.block_table.as_ref();
        Ok(DeviceLists {
            query_offsets: upload(lists.query_offsets.as_deref())?,
            key_offsets: upload(lists.key_offsets.as_deref())?,
            query_lengths: upload(lists.query_lengths.as_deref())?,
            key_lengths: upload(lists.key_lengths.as_deref())?,
            block_table: upload(table.map(|table| &table.entries[..]))?,
        })
    }

    /// The same lists once more, copied on the device.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn once_more(&self, stream: &Stream) -> warptile::Result<Self> {
        let list = |list: &Option<DeviceBuffer<i32>>| maybe_once_more(stream, list.as_ref());
        Ok(DeviceLists {
            query_offsets: list(&self.query_offsets)?,
            key_offsets: list(&self.key_offsets)?,
            query_lengths: list(&self.query_lengths)?,
            key_lengths: list(&self.key_lengths)?,
            block_table: list(&self.block_table)?,
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
    /// What the driver reports.
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
            let floats = |values: Option<&Vec<f32>>| {
                let upload = |values: &Vec<f32>| ferry.upload(stream, values);
                values.map(upload).transpose()
            };
            let bias = inputs.bias.as_ref();
            let key_mask = inputs.key_mask.as_ref();
            Ok(OnGpu {
                prepared: gpu.load(plan.clone())?,
                offset: inputs.q.offset,
                ferry: ferry.clone(),
                q: ferry.upload(stream, &inputs.q.data)?,
                keys: match &inputs.quantized {
                    None => KeyBuffers::Same(
                        ferry.upload(stream, &inputs.k.data)?,
                        ferry.upload(stream, &inputs.v.data)?,
                    ),
                    Some(Quantized {
                        element,
                        k,
                        v,
                        k_scale,
                        v_scale,
                    }) => KeyBuffers::Quantized {
                        element: *element,
                        k: ferry.upload(stream, &k.data)?,
                        v: ferry.upload(stream, &v.data)?,
                        k_scale: ferry.upload(stream, k_scale)?,
                        v_scale: ferry.upload(stream, v_scale)?,
                    },
                },
                slopes: floats(inputs.slopes.as_ref())?,
                sinks: floats(inputs.sinks.as_ref())?,
                bias: bias
                    .map(|bias| ferry.upload(stream, &bias.data))
                    .transpose()?,
                key_mask: key_mask
                    .map(|mask| ferry.upload(stream, &mask.data))
                    .transpose()?,
                lists: match self.device_lengths {
                    true => DeviceLists::upload(stream, ferry, &self.lists())?,
                    false => DeviceLists::default(),
                },
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
    /// The same data in memory of its own, copied on the device, with results that are poisoned.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn once_more(&self) -> warptile::Result<Self> {
        let stream = &self.stream;
        let floats = |values: &Option<DeviceBuffer<f32>>| maybe_once_more(stream, values.as_ref());
        Ok(OnGpu {
            prepared: self.prepared.clone(),
            stream: stream.clone(),
            ferry: self.ferry.clone(),
            call: self.call.clone(),
            offset: self.offset,
            q: once_more(stream, &self.q)?,
            keys: self.keys.once_more(stream)?,
            slopes: floats(&self.slopes)?,
            sinks: floats(&self.sinks)?,
            bias: maybe_once_more(stream, self.bias.as_ref())?,
            key_mask: maybe_once_more(stream, self.key_mask.as_ref())?,
            lists: self.lists.once_more(stream)?,
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
        let q = self.q.slice(self.offset..)?;
        let out = self.out.slice_mut(self.offset..)?;
        let mut bindings = self.keys.bind(q, out, self.offset)?;
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
        self.out.copy_from(&self.poison.0)?;
        Ok(self.lse.copy_from(&self.poison.1)?)
    }

    /// Waits for the launches and reads the result.
    ///
    /// # Errors
    /// What went wrong in the launches.
    pub fn result(&self) -> warptile::Result<ResultBuffers<T>> {
        self.begin_result()?.wait()
    }

    /// Queues copies of the result behind the launches.
    ///
    /// # Errors
    /// What the driver reports.
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
    /// What went wrong in the launches.
    pub fn wait(self) -> warptile::Result<ResultBuffers<T>> {
        Ok(ResultBuffers {
            out: self.out.wait()?,
            offset: self.offset,
            lse: self.lse.wait()?,
        })
    }
}
