//! Plan to launch: kernels loaded on a device, and launching them on streams and buffers of one's own.
//!
//! The way for someone with a stream and memory of their own:
//! 1. [`Gpu::new`] or [`Gpu::on_context`] once per device,
//! 2. [`Plan::gpu`] and [`Gpu::launcher`] once per problem: loads the kernel and uploads what the problem brings along,
//! 3. [`Launcher::launch`] per call: checks the buffers and submits one kernel. It allocates nothing, synchronizes
//!    nothing, and may be captured in a graph.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use warptile_driver::{
    Context, DeviceBuffer, DeviceSlice, DeviceSliceMut, Driver, Kernel, KernelOptions,
    LaunchConfig, Module, Stream,
};
use warptile_kernels::Image;

use crate::device::DeviceProfile;
use crate::plan::Launch;
use crate::{AttentionParams, Element, Error, Plan, Problem, Result};

/// A GPU with the kernels that were loaded on it so far.
#[derive(Debug)]
pub struct Gpu {
    ordinal: u32,
    profile: DeviceProfile,
    stream: Stream,
    kernels: Mutex<HashMap<&'static str, Arc<Kernel<AttentionParams>>>>,
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

    /// Prepares to run `plan` on `stream`: loads the kernel if this is its first use, and uploads the row offsets of a
    /// packed batch.
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
        if stream.context().device().ordinal() != self.ordinal {
            return Err(Error::DeviceMismatch {
                argument: "stream",
                expected: format!("cuda:{}", self.ordinal),
                found: format!("cuda:{}", stream.context().device().ordinal()),
            });
        }
        let upload = |offsets: Option<&[i32]>| -> Result<Option<DeviceBuffer<i32>>> {
            offsets
                .map(|offsets| Ok(DeviceBuffer::from_slice(stream, offsets)?))
                .transpose()
        };
        let problem = plan.problem().clone();
        Ok(Launcher {
            kernel: self.kernel(launch.image)?,
            launch: launch.clone(),
            params: AttentionParams::new(&problem, launch.image.tiling.block_m as usize),
            workspace: Workspace {
                cu_seqlens_q: upload(problem.cu_seqlens_q())?,
                cu_seqlens_k: upload(problem.cu_seqlens_k())?,
            },
            stream: stream.clone(),
            problem,
        })
    }

    /// The kernel of `image`, loaded once per device.
    fn kernel(&self, image: &'static Image) -> Result<Arc<Kernel<AttentionParams>>> {
        // Nothing can panic while the lock is held, and a half-done insert can't be observed.
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(image.name) {
            return Ok(kernel.clone());
        }
        let module = Module::load(self.stream.context(), &image.bytes()?)?;
        let options = KernelOptions::new()
            .name(image.name)
            .param_bytes(image.param_bytes as usize)
            .dynamic_shared_bytes(image.resources.dynamic_shared_bytes);
        let kernel = Arc::new(Kernel::load(&module, image.entry, &options)?);
        kernels.insert(image.name, kernel.clone());
        Ok(kernel)
    }
}

/// A problem ready to launch on one stream, with the device memory the kernel needs beside the tensors.
///
/// The workspace belongs to this value, so two streams cannot share one. Dropping it while a launch runs is sound: the
/// memory is freed in stream order.
#[derive(Debug)]
pub struct Launcher {
    problem: Problem,
    launch: Launch,
    kernel: Arc<Kernel<AttentionParams>>,
    params: AttentionParams,
    workspace: Workspace,
    stream: Stream,
}

/// Device memory that a launch reads beside the tensors.
#[derive(Debug)]
struct Workspace {
    cu_seqlens_q: Option<DeviceBuffer<i32>>,
    cu_seqlens_k: Option<DeviceBuffer<i32>>,
}

/// The buffers of one launch. Each must reach as far as its layout in the [`Problem`] does.
#[derive(Debug)]
#[non_exhaustive]
pub struct Arguments<'a, T: Element> {
    /// Queries.
    pub q: DeviceSlice<'a, T>,
    /// Keys.
    pub k: DeviceSlice<'a, T>,
    /// Values.
    pub v: DeviceSlice<'a, T>,
    /// Receives the output; gaps between strided rows are left alone.
    pub out: DeviceSliceMut<'a, T>,
    /// Receives the lse, `[batch, heads, length]`; needed if the problem wants it.
    pub lse: Option<DeviceSliceMut<'a, f32>>,
    /// ALiBi slopes; needed if the problem has them.
    pub alibi_slopes: Option<DeviceSlice<'a, f32>>,
}

impl Launcher {
    /// The plan's problem.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The stream every launch goes to.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Submits the kernel to the launcher's stream. Buffers that belong to another stream are ordered before and after
    /// it by events. Allocates nothing and waits for nothing; may be captured in a graph, which then keeps the buffers
    /// and this launcher's workspace alive.
    ///
    /// # Errors
    /// Before anything is submitted: when a buffer is too small or of the wrong type, one the problem needs is missing
    /// or one it doesn't know is given, or the output shares memory with an input. When the launch itself fails. What
    /// goes wrong while the kernel runs is reported, with the kernel's name, by the next wait for the stream.
    pub fn launch<T: Element>(&mut self, arguments: Arguments<'_, T>) -> Result<()> {
        arguments.check(&self.problem)?;
        if self.launch.grid == 0 {
            return Ok(()); // no query rows, nothing to write
        }
        let address =
            |offsets: &Option<DeviceBuffer<i32>>| offsets.as_ref().map_or(0, DeviceBuffer::pointer);
        let params = AttentionParams {
            q: arguments.q.pointer(),
            k: arguments.k.pointer(),
            v: arguments.v.pointer(),
            out: arguments.out.pointer(),
            lse: arguments.lse.as_ref().map_or(0, DeviceSliceMut::pointer),
            alibi_slopes: arguments
                .alibi_slopes
                .as_ref()
                .map_or(0, DeviceSlice::pointer),
            cu_seqlens_q: address(&self.workspace.cu_seqlens_q),
            cu_seqlens_k: address(&self.workspace.cu_seqlens_k),
            ..self.params
        };
        let config = LaunchConfig::new([self.launch.grid, 1, 1], [self.launch.threads, 1, 1])
            .dynamic_shared_bytes(self.launch.dynamic_shared_bytes);

        for memory in [&self.workspace.cu_seqlens_q, &self.workspace.cu_seqlens_k]
            .into_iter()
            .flatten()
        {
            self.stream.keep_for_graph(memory.owner());
        }
        let streams = arguments.streams_beside(&self.stream);
        for other in &streams {
            self.stream.wait_for(other)?;
        }
        // SAFETY: the image was compiled from the parameter block `params` is a copy of (tests compare them offset by
        // offset), the grid and shared memory are those the image's record asks for, every address is that of a buffer
        // that `check` found to reach as far as its layout, and the row offsets were validated with the problem. The
        // buffers outlive the kernel: each is freed in the order of its stream, which waits for this launch below.
        unsafe { self.kernel.launch(&self.stream, &config, &params) }?;
        for other in &streams {
            other.wait_for(&self.stream)?;
        }
        Ok(())
    }
}

impl<'a, T: Element> Arguments<'a, T> {
    /// Without lse and slopes, which can be set afterwards.
    #[must_use]
    pub fn new(
        q: DeviceSlice<'a, T>,
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        out: DeviceSliceMut<'a, T>,
    ) -> Self {
        Arguments {
            q,
            k,
            v,
            out,
            lse: None,
            alibi_slopes: None,
        }
    }

    /// With a buffer for the lse.
    #[must_use]
    pub fn with_lse(mut self, lse: DeviceSliceMut<'a, f32>) -> Self {
        self.lse = Some(lse);
        self
    }

    /// With ALiBi slopes.
    #[must_use]
    pub fn with_alibi_slopes(mut self, slopes: DeviceSlice<'a, f32>) -> Self {
        self.alibi_slopes = Some(slopes);
        self
    }
}

impl<T: Element> Arguments<'_, T> {
    /// Holds the buffers against the problem.
    fn check(&self, problem: &Problem) -> Result<()> {
        if T::TYPE != problem.element() {
            return Err(Error::ElementMismatch {
                argument: "q",
                expected: problem.element(),
                found: T::TYPE,
            });
        }
        let reach = |layout: &crate::Layout| layout.required_len().unwrap_or(usize::MAX);
        let inputs = [
            ("q", &self.q, reach(problem.q())),
            ("k", &self.k, reach(problem.k())),
            ("v", &self.v, reach(problem.v())),
        ];
        for (argument, buffer, needed) in inputs {
            expect_len(argument, needed, buffer.len())?;
        }
        let out_len = reach(problem.out());
        expect_len("out", out_len, self.out.len())?;
        expect_presence("lse", problem.wants_lse(), self.lse.is_some())?;
        if let Some(lse) = &self.lse {
            expect_len("lse", problem.lse_len(), lse.len())?;
        }
        expect_presence(
            "alibi_slopes",
            problem.alibi().is_some(),
            self.alibi_slopes.is_some(),
        )?;
        if let Some(slopes) = &self.alibi_slopes {
            expect_len("alibi_slopes", problem.alibi_len(), slopes.len())?;
        }

        // A borrowed foreign pointer can alias in ways Rust doesn't see.
        let bytes = |pointer: u64, len: usize| pointer..pointer + (len * size_of::<T>()) as u64;
        let out = bytes(self.out.pointer(), out_len);
        for (_, buffer, needed) in inputs {
            let input = bytes(buffer.pointer(), needed);
            if out.start < input.end && input.start < out.end {
                return Err(Error::OutputOverlaps {
                    argument: "out",
                    reason: "its memory is also an input's",
                });
            }
        }
        Ok(())
    }

    /// The streams, other than `stream`, that the buffers belong to.
    fn streams_beside(&self, stream: &Stream) -> Vec<Stream> {
        let lse = self.lse.as_ref().map(DeviceSliceMut::stream);
        let slopes = self.alibi_slopes.as_ref().map(DeviceSlice::stream);
        let all = [
            self.q.stream(),
            self.k.stream(),
            self.v.stream(),
            self.out.stream(),
        ];
        let mut others: Vec<Stream> = Vec::new();
        for other in all.into_iter().chain(lse).chain(slopes) {
            if other.raw() != stream.raw() && others.iter().all(|seen| seen.raw() != other.raw()) {
                others.push(other.clone());
            }
        }
        others
    }
}

fn expect_len(argument: &'static str, needed: usize, available: usize) -> Result<()> {
    if available < needed {
        return Err(Error::BufferTooSmall {
            argument,
            needed,
            available,
        });
    }
    Ok(())
}

fn expect_presence(argument: &'static str, wanted: bool, given: bool) -> Result<()> {
    match (wanted, given) {
        (true, false) => Err(Error::Presence {
            argument,
            rule: "is missing, but the problem asks for it",
        }),
        (false, true) => Err(Error::Presence {
            argument,
            rule: "is given, but the problem was built without it",
        }),
        _ => Ok(()),
    }
}
