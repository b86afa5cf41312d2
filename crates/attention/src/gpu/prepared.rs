//! A plan with its kernels loaded, and its launches.

use std::sync::Arc;

use warptile_driver::sys::CUstream;
use warptile_driver::{Context, DevicePointer, Staged, Staging, Stream};
use warptile_kernels::{Operand, Slots};

use crate::gpu::bindings::Bindings;
use crate::gpu::kernel::{Block, LoadedKernel, config};
use crate::gpu::memory::{check_stream, submit_in_order};
use crate::gpu::outline::Outline;
use crate::gpu::sync;
use crate::plan::{Plan, Step};
use crate::spec::memory::check;
use crate::spec::slots::expected;
use crate::spec::{Call, Error, Result};

/// A planned problem with its kernels loaded. It belongs to no stream: any number of threads may launch it, on any number of
/// streams of its context, and in captures. A cheap handle.
#[derive(Debug, Clone)]
pub struct Prepared {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    plan: Plan,
    context: Context,
    kernels: Vec<Arc<LoadedKernel>>,
    staging: Arc<Staging>,
}

impl Prepared {
    pub(super) fn new(
        plan: Plan,
        context: &Context,
        kernels: Vec<Arc<LoadedKernel>>,
        staging: Arc<Staging>,
    ) -> Self {
        Prepared {
            inner: Arc::new(Inner {
                plan,
                context: context.clone(),
                kernels,
                staging,
            }),
        }
    }

    /// What was prepared.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }

    /// The context that the kernels are loaded in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The steps with their kernels.
    fn steps(&self) -> impl Iterator<Item = (&Step, &LoadedKernel)> {
        let kernels = self.inner.kernels.iter().map(Arc::as_ref);
        self.plan().steps().iter().zip(kernels)
    }

    /// Computes ahead of time what the first launch of a call would: the order of the tiles of a dense causal call of a few hundred tiles,
    /// which takes a millisecond or two at most. It makes no driver call, and launches do not need it. The process remembers the orders
    /// of the last 64 combinations of lengths and heads.
    ///
    /// # Errors
    /// [`Error::OtherProblem`]; [`Error::Grid`] if the call has more tiles than a launch can have.
    pub fn make_ready(&self, call: &Call) -> Result<()> {
        self.check_problem(call)?;
        for (step, kernel) in self.steps() {
            kernel.make_ready(step, &step.shape(call)?, call);
        }
        Ok(())
    }

    /// Submits a call to `stream`; doesn't wait. The call must be one of the problem that was prepared: its lengths and strides
    /// may be any within the bounds.
    ///
    /// Views whose memory belongs to other streams are ordered before and after the launch by events. Lengths that the call
    /// has on the host travel along without a wait. In a capture of [`Graph`](warptile_driver::Graph) the graph keeps what it
    /// needs alive and nothing is ordered here: the graph orders the streams at each of its launches.
    ///
    /// # Errors
    /// Before anything is submitted: [`Error::OtherProblem`]; a view that is missing, superfluous, too short, unaligned, of
    /// another type, device or context; an output that shares memory with anything. After that, what the driver reports;
    /// whatever failed, the streams are ordered. What goes wrong while the kernel runs is reported, with the kernel's name,
    /// by the next wait for the stream.
    pub fn launch(&self, stream: &Stream, call: &Call, bindings: &Bindings<'_>) -> Result<()> {
        self.check_problem(call)?;
        let outline = Outline::of(self.plan(), call)?;
        self.launch_outlined(stream, call, &outline, bindings, |addresses, workspace| {
            check(outline.expected.as_slice(), addresses.as_slice())?;
            self.blocks(call, &outline, addresses, workspace)
        })
    }

    /// Submits a call of the problem with its outline. `blocks` checks the addresses and gives the block of each step for them and
    /// for the workspace; the context is current.
    pub(super) fn launch_outlined<B: AsRef<[Block]>>(
        &self,
        stream: &Stream,
        call: &Call,
        outline: &Outline,
        bindings: &Bindings<'_>,
        blocks: impl FnOnce(&Slots<u64>, DevicePointer) -> Result<B>,
    ) -> Result<()> {
        check_stream(stream, self.context())?;
        let mut addresses = bindings.check(self.context(), &outline.expected)?;
        if outline.is_empty() {
            return Ok(());
        }

        // The way into the context and whether the stream is in a capture: once for all that follows.
        let at = stream.launching()?;
        let capture = at.capture();
        let staged = match outline.has_host_numbers {
            true => Some(self.stage(stream, call, &mut addresses)?),
            false => None,
        };
        let workspace = outline.workspace(stream, capture)?;
        let blocks = blocks(&addresses, workspace)?;
        let submitted = submit_in_order(stream, capture, bindings.views(), || {
            // Until the last launch is queued.
            let _staged = staged;
            for (((step, kernel), shape), block) in
                self.steps().zip(&outline.shapes).zip(blocks.as_ref())
            {
                // SAFETY: the block was made for this kernel and shape; every address is that of a view that was found to reach
                // as far as its layout, of staged lengths, or of the stream's own workspace. Lengths that nobody has checked are
                // clamped by the kernels. The memory outlives the kernel: it is freed in the order of its own stream, which is
                // made to come after this launch, or kept by the graph.
                unsafe { kernel.launch(&at, step.image, &config(step, shape), block) }?;
            }
            Ok(())
        });
        drop(at);
        submitted.and_then(|()| sync::after_launch(stream, capture))
    }

    /// Submits a call to anybody's stream: the raw layer, for streams, memory and captures of other libraries.
    ///
    /// It makes one driver call, beside the encoding of tensor maps for kernels that read through them. It allocates no
    /// device memory, copies, waits for and loads nothing, so it may be part of anybody's capture. A dense causal call of a few
    /// hundred tiles may ask for their order, which the process remembers behind a lock: of lengths and heads that are new to it
    /// that takes a millisecond or two at most, unless [`make_ready`](Self::make_ready) was called before.
    /// Lengths that differ from call to call lie on the device ([`CallBuilder::device_key_lengths`] and its like): a captured
    /// launch reads them anew at each replay.
    ///
    /// [`CallBuilder::device_key_lengths`]: crate::CallBuilder::device_key_lengths
    ///
    /// # Errors
    /// Before anything is submitted: [`Error::OtherProblem`]; an address that is missing, superfluous or unaligned, an output
    /// that overlaps anything; lengths on the host; no workspace where the plan needs one. Then what the driver reports.
    ///
    /// # Safety
    /// - `stream` is a live stream of [`Prepared::context`], which is current on the calling thread.
    /// - Each address that is not 0 is that of device memory which the context can use and which reaches as far as the call's
    ///   layouts say, or as its count of numbers; it stays valid until the launch, and every replay of a graph that captured
    ///   it, has ended.
    /// - Nothing else writes what the launch reads, or touches what it writes, at the same time. Offsets, lengths and
    ///   tables on the device are an exception: any bits at any time are safe, and give wrong numbers at worst.
    /// - `workspace` is memory of [`Plan::scratch`] bytes or more, or of the [`workspace_bytes`] that each step has for the call.
    ///   Its address is a multiple of 256; it is zeroed once before its first launch, and given to no two launches that may run at
    ///   the same time. A stream's launches run one after the other; each graph that is instantiated from a capture needs a
    ///   workspace of its own.
    /// - A clone of this value, or the [`Gpu`](crate::gpu::Gpu) that prepared it, lives until the launch has ended, and as long as
    ///   any graph that captured it: nobody knows of a raw launch, so the end of the context does not wait for it.
    ///
    /// [`workspace_bytes`]: crate::LaunchShape::workspace_bytes
    pub unsafe fn launch_raw(
        &self,
        stream: CUstream,
        call: &Call,
        addresses: &Slots<u64>,
        workspace: DevicePointer,
    ) -> Result<()> {
        self.check_addresses(call, addresses)?;
        for (step, kernel) in self.steps() {
            let shape = step.shape(call)?;
            if shape.grid == 0 {
                continue;
            }
            if shape.needs_workspace() && (workspace == 0 || !workspace.is_multiple_of(256)) {
                return Err(Error::Workspace {
                    address: workspace,
                    bytes: self.plan().scratch().bytes,
                });
            }
            let block = kernel.block(step, &shape, call, addresses, workspace)?;
            // SAFETY: the caller's promises.
            unsafe { kernel.launch_raw(stream, step.image, &config(step, &shape), &block) }?;
        }
        Ok(())
    }

    /// Finds what [`launch_raw`](Self::launch_raw) would find before it submits anything, but for the workspace: for callers who first write
    /// what the launch reads. It makes no driver call.
    ///
    /// # Errors
    /// As [`launch_raw`](Self::launch_raw).
    pub fn check_raw(&self, call: &Call, addresses: &Slots<u64>) -> Result<()> {
        self.check_addresses(call, addresses)?;
        for step in self.plan().steps() {
            step.shape(call)?;
        }
        Ok(())
    }

    fn check_addresses(&self, call: &Call, addresses: &Slots<u64>) -> Result<()> {
        self.check_problem(call)?;
        if let Some((operand, _)) = host_numbers(call).next() {
            return Err(Error::Presence {
                argument: operand.name(),
                rule: "is on the host, but a raw launch takes lengths and tables from the device",
            });
        }
        let expected = expected(call, self.plan().needs_alignment());
        check(expected.as_slice(), addresses.as_slice())
    }

    /// The block of each step. The context must be current.
    pub(super) fn blocks(
        &self,
        call: &Call,
        outline: &Outline,
        addresses: &Slots<u64>,
        workspace: DevicePointer,
    ) -> Result<Vec<Block>> {
        // A block is a kilobyte or more: room for as many as there are, and no more.
        let mut blocks = Vec::with_capacity(outline.shapes.len());
        for ((step, kernel), shape) in self.steps().zip(&outline.shapes) {
            blocks.push(kernel.block(step, shape, call, addresses, workspace)?);
        }
        Ok(blocks)
    }

    fn check_problem(&self, call: &Call) -> Result<()> {
        let found = call.problem();
        let prepared = self.plan().problem();
        if found != *prepared {
            return Err(Error::OtherProblem {
                found: found.to_string(),
                prepared: prepared.to_string(),
            });
        }
        Ok(())
    }

    /// Sends the lengths and pages that the host knows ahead of the kernel, and fills in where they are.
    fn stage(&self, stream: &Stream, call: &Call, addresses: &mut Slots<u64>) -> Result<Staged> {
        let mut numbers: Vec<i32> = Vec::new();
        let mut places: Vec<(Operand, usize)> = Vec::new();
        for (operand, list) in host_numbers(call) {
            places.push((operand, numbers.len()));
            numbers.extend_from_slice(list);
        }
        let staged = self.inner.staging.upload(stream, &numbers)?;
        for (operand, place) in places {
            addresses[operand] = staged.pointer() + 4 * place as u64;
        }
        Ok(staged)
    }
}

/// The lists of lengths and pages that are in host memory.
pub(super) fn host_numbers(call: &Call) -> impl Iterator<Item = (Operand, &[i32])> {
    Operand::ALL
        .into_iter()
        .filter_map(|operand| Some((operand, call.numbers(operand)?.on_host()?)))
}

#[cfg(test)]
mod tests {
    use warptile_driver::Driver;
    use warptile_fake_cuda::FakeDriver;

    use crate::gpu::Gpu;
    use crate::plan::{Choice, SEARCHES};
    use crate::spec::{Call, ElementType, Layout, Mask, Scoring};

    #[test]
    fn the_order_of_a_calls_tiles_is_looked_for_when_it_is_made_ready() {
        let fake = FakeDriver::open();
        // SAFETY: the library is the stand-in, with the driver's signatures.
        let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
        let gpu = Gpu::new(&driver, 0).unwrap();
        let searches_for = |query_len: usize, mask: Mask| {
            let q = Layout::bshd([1, query_len, 32, 128]);
            let k = Layout::bshd([1, query_len, 8, 128]);
            let call = Call::builder(&q, &k, &k, ElementType::F16)
                .scoring(Scoring::new().mask(mask))
                .build()
                .unwrap();
            let kernel = Choice::Kernel("wgmma_d128_192x64_w16_s4".to_owned());
            let prepared = gpu.prepare(call.problem(), &kernel).unwrap();
            let before = SEARCHES.get();
            prepared.make_ready(&call).unwrap();
            SEARCHES.get() - before
        };
        // No other test has so many blocks of keys.
        assert_eq!(searches_for(1800, Mask::causal()), 1);
        assert_eq!(searches_for(1800, Mask::none()), 0);
    }
}
