//! A plan bound to a stream, and its launches.

use std::sync::Arc;

use warptile_driver::{DeviceBuffer, DeviceSlice, DeviceSliceMut, Stream};

use crate::gpu::arguments::Arguments;
use crate::gpu::kernel::LoadedKernel;
use crate::plan::Launch;
use crate::{Element, Problem, Result, params};
use warptile_kernels::Schedule;
use warptile_kernels::abi::{Forward, Scoring, Sequences, Tensor, Work};

/// A problem ready to launch on one stream, with the device memory the kernel needs beside the tensors.
///
/// The workspace belongs to this value, so two streams cannot share one. Dropping it while a launch runs is sound: the
/// memory is freed in stream order.
#[derive(Debug)]
pub struct Launcher {
    problem: Problem,
    launch: Launch,
    kernel: Arc<LoadedKernel>,
    params: Forward,
    workspace: Workspace,
    stream: Stream,
}

/// Device memory that a launch uses beside the tensors.
#[derive(Debug)]
struct Workspace {
    cu_seqlens_q: Option<DeviceBuffer<i32>>,
    cu_seqlens_k: Option<DeviceBuffer<i32>>,
    /// From which the CTAs of a persistent kernel draw their next tile. The kernel leaves it at 0.
    tile_counter: Option<DeviceBuffer<i32>>,
}

impl Workspace {
    fn new(problem: &Problem, launch: &Launch, stream: &Stream) -> Result<Self> {
        let upload = |offsets: Option<&[i32]>| {
            offsets
                .map(|offsets| DeviceBuffer::from_slice(stream, offsets))
                .transpose()
        };
        Ok(Workspace {
            cu_seqlens_q: upload(problem.cu_seqlens_q())?,
            cu_seqlens_k: upload(problem.cu_seqlens_k())?,
            tile_counter: match launch.draws_tiles {
                true => Some(DeviceBuffer::zeroed(stream, 1)?),
                false => None,
            },
        })
    }

    fn buffers(&self) -> impl Iterator<Item = &DeviceBuffer<i32>> {
        [&self.cu_seqlens_q, &self.cu_seqlens_k, &self.tile_counter]
            .into_iter()
            .flatten()
    }
}

impl Launcher {
    pub(super) fn new(
        kernel: Arc<LoadedKernel>,
        problem: &Problem,
        launch: &Launch,
        stream: &Stream,
    ) -> Result<Self> {
        Ok(Launcher {
            kernel,
            params: params::forward(
                problem,
                launch.image.tiling.block_m as usize,
                launch.image.schedule == Schedule::Persistent,
            ),
            workspace: Workspace::new(problem, launch, stream)?,
            launch: launch.clone(),
            problem: problem.clone(),
            stream: stream.clone(),
        })
    }

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
        self.submit(arguments)
    }

    /// [`Launcher::launch`], also from several threads: launches share the workspace in the order of the stream, which is
    /// one after the other.
    pub(super) fn submit<T: Element>(&self, arguments: Arguments<'_, T>) -> Result<()> {
        arguments.check(&self.problem, self.launch.needs_alignment)?;
        if self.launch.grid == 0 {
            return Ok(()); // no query rows, nothing to write
        }
        let address =
            |buffer: &Option<DeviceBuffer<i32>>| buffer.as_ref().map_or(0, DeviceBuffer::pointer);
        let ours = &self.params;
        let at = |tensor: Tensor, address: u64| Tensor { address, ..tensor };
        let params = Forward {
            q: at(ours.q, arguments.q.pointer()),
            k: at(ours.k, arguments.k.pointer()),
            v: at(ours.v, arguments.v.pointer()),
            out: at(ours.out, arguments.out.pointer()),
            lse: arguments.lse.as_ref().map_or(0, DeviceSliceMut::pointer),
            sequences: Sequences {
                query_offsets: address(&self.workspace.cu_seqlens_q),
                key_offsets: address(&self.workspace.cu_seqlens_k),
                ..ours.sequences
            },
            scoring: Scoring {
                slopes: arguments
                    .alibi_slopes
                    .as_ref()
                    .map_or(0, DeviceSlice::pointer),
                ..ours.scoring
            },
            work: Work {
                counter: address(&self.workspace.tile_counter),
                ..ours.work
            },
            ..*ours
        };

        for buffer in self.workspace.buffers() {
            self.stream.keep_for_graph(buffer.owner());
        }
        arguments.keep_for_graph(&self.stream);
        let streams = arguments.streams_beside(&self.stream);
        for other in &streams {
            self.stream.wait_for(other)?;
        }
        // SAFETY: the image was compiled from the parameter block `params` is a copy of (tests compare them offset by
        // offset), the grid and shared memory are those the image's record asks for, every address is that of a buffer
        // that `check` found to reach as far as its layout, and the row offsets were validated with the problem. The
        // buffers outlive the kernel: each is freed in the order of its stream, which waits for this launch below.
        unsafe {
            self.kernel
                .launch(&self.stream, &self.problem, &self.launch, &params)
        }?;
        for other in &streams {
            other.wait_for(&self.stream)?;
        }
        Ok(())
    }
}
