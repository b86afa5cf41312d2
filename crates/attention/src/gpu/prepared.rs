//! A plan with its kernels loaded, and its launches.

use std::fmt;
use std::sync::{Arc, Mutex};

use warptile_driver::sys::CUstream;
use warptile_driver::{Context, DevicePointer, Staged, Staging, Stream};
use warptile_kernels::{Slots, abi};

use crate::error::{Error, Result};
use crate::gpu::bindings::{Addresses, Bindings, Places, check_stream};
use crate::gpu::kernel::{Block, Loaded, config};
use crate::gpu::operation::{Operation, Planned, StepLaunch};
use crate::gpu::sync;
use crate::gpu::workspace::workspace_of;
use crate::plan::{LaunchShape, Plan, Scratch, Step, tile_order};
use crate::recent::{Recent, lock};
use crate::spec::{Call, Invalid};

/// A planned problem of an operation, with its kernels loaded. It belongs to no stream: any number of threads may launch it, on any number
/// of streams of its context, and in captures. A cheap handle.
#[derive(Debug)]
pub struct Prepared<O: Operation = Call> {
    inner: Arc<Inner<O::Problem>>,
}

/// The plan, the kernels of its steps, and their context.
#[derive(Debug)]
pub(super) struct Inner<P: fmt::Display> {
    plan: Plan<P>,
    context: Context,
    kernels: Vec<Arc<Loaded>>,
    staging: Arc<Staging>,
}

impl<O: Operation> Clone for Prepared<O> {
    fn clone(&self) -> Self {
        Prepared::of(self.inner.clone())
    }
}

impl Prepared {
    /// Computes ahead of time what the first launch of a call would: the order of the tiles of a dense causal call of a few hundred tiles,
    /// which takes a millisecond or two at most. It makes no driver call, and launches do not need it. The process remembers the orders
    /// of the last 64 combinations of lengths and heads.
    ///
    /// # Errors
    /// [`Error::OtherProblem`]; [`Error::Grid`] if the call has more tiles than a launch can have.
    pub fn make_ready(&self, call: &Call) -> Result<()> {
        self.plan().problem().check(call.problem())?;
        for (step, kernel) in self.steps() {
            let takes_an_order = kernel.takes::<abi::ForwardTma>()
                || kernel.takes::<abi::ForwardTmaDropout>()
                || kernel.takes::<abi::ForwardTmaBoxes>();
            if takes_an_order {
                tile_order(step, call, &step.shape(call)?);
            }
        }
        Ok(())
    }
}

impl<O: Operation> Prepared<O> {
    pub(super) fn new(
        plan: Plan<O::Problem>,
        context: &Context,
        kernels: Vec<Arc<Loaded>>,
        staging: Arc<Staging>,
    ) -> Self {
        Prepared::of(Arc::new(Inner {
            plan,
            context: context.clone(),
            kernels,
            staging,
        }))
    }

    pub(super) const fn of(inner: Arc<Inner<O::Problem>>) -> Self {
        Prepared { inner }
    }

    pub(super) const fn inner(&self) -> &Arc<Inner<O::Problem>> {
        &self.inner
    }

    /// The prepared plan.
    pub fn plan(&self) -> &Plan<O::Problem> {
        &self.inner.plan
    }

    /// Device memory that a launch of any call of the problem needs besides the tensors.
    pub fn scratch(&self) -> Scratch {
        O::Problem::scratch(self.plan())
    }

    /// The context that the kernels are loaded in.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The steps with their kernels.
    fn steps(&self) -> impl Iterator<Item = (&Step, &Loaded)> {
        let kernels = self.inner.kernels.iter().map(Arc::as_ref);
        self.plan().steps().iter().zip(kernels)
    }

    /// Submits a call to `stream`; doesn't wait. The call must be one of the problem that was prepared: its lengths and strides
    /// may be any within the bounds. Of merges and cache writes the problem is no more than the element types.
    ///
    /// Views whose memory belongs to other streams are ordered before and after the launch by events. Numbers that the call
    /// has on the host travel along without a wait. In a capture of [`Graph`](warptile_driver::Graph) the graph keeps what it
    /// needs alive and nothing is ordered here: the graph orders the streams at each of its launches.
    ///
    /// # Errors
    /// Before anything is submitted: [`Error::OtherProblem`] or [`Invalid::ElementMismatch`]; another number of
    /// parts; a view that is missing, superfluous, too short, unaligned, of another type, device or context; an
    /// output that shares memory with anything. After that, what the driver reports; whatever failed, the streams are
    /// ordered. What goes wrong while the kernel runs is reported, with the kernel's name, by the next wait for the
    /// stream.
    pub fn launch(&self, stream: &Stream, call: &O, bindings: &Bindings<'_>) -> Result<()> {
        self.plan().problem().check(call.problem())?;
        let outline = Outline::of(self.plan(), call)?;
        self.submit(stream, call, &outline, bindings, None)
    }

    /// Submits a call of the problem with its outline. Blocks are filled, or found among those that are kept.
    fn submit(
        &self,
        stream: &Stream,
        call: &O,
        outline: &Outline,
        bindings: &Bindings<'_>,
        kept: Option<&Mutex<Blocks>>,
    ) -> Result<()> {
        check_stream(stream, self.context())?;
        let expected = self.expected(call);
        let mut addresses = bindings.check(self.context(), expected)?;
        if outline.shapes.iter().all(|shape| shape.grid == 0) {
            return Ok(());
        }

        // The way into the context and whether the stream is in a capture: once for all that follows.
        let at = stream.launching()?;
        let capture = at.capture();
        let staged = match outline.has_host_numbers {
            true => Some(self.stage(stream, call, &mut addresses.operands)?),
            false => None,
        };
        let workspace = workspace_of(stream, capture, &outline.shapes)?;
        let launches = || {
            let steps = self.steps().zip(&outline.shapes);
            steps.map(|((step, kernel), shape)| StepLaunch {
                step,
                kernel,
                shape,
                steps: self.plan().steps(),
                shapes: &outline.shapes,
                at: &addresses,
                workspace,
            })
        };
        let known = kept.and_then(|kept| {
            lock(kept).find(|(operands, parts, at)| {
                // Part by part: `memcmp` takes 0.1 us to compare no bytes at the address of an empty list.
                *at == workspace
                    && *operands == addresses.operands
                    && parts.iter().eq(addresses.parts)
            })
        });
        let blocks = match (known, kept) {
            (None, Some(kept)) => {
                expected.check(&addresses)?;
                let mut blocks = Vec::with_capacity(outline.shapes.len());
                for launch in launches() {
                    call.with_block(&launch, |block| {
                        blocks.push(Block::of(block));
                        Ok(())
                    })?;
                }
                let blocks: Arc<[Block]> = blocks.into();
                let key = (addresses.operands, addresses.parts.to_vec(), workspace);
                lock(kept).keep(key, blocks.clone());
                Some(blocks)
            }
            (None, None) => {
                expected.check(&addresses)?;
                None
            }
            (known, _) => known,
        };
        // A step finds the previous step's results in the workspace, because no other launch that leaves something there comes between.
        let steps = match outline.leaves_results() {
            true => Some(stream.attached(|| Ok::<_, Error>(Mutex::<Steps>::default()))?),
            false => None,
        };
        let steps = steps.as_deref().map(lock);
        let submitted = bindings.submit_in_order(stream, capture, || {
            // Until the last launch is queued.
            let _staged = staged;
            for (index, launch) in launches().enumerate() {
                if launch.shape.grid == 0 {
                    continue;
                }
                let config = config(launch.step, launch.shape);
                // SAFETY: the block was made for this kernel and shape; every address is that of a view that was found to reach
                // as far as its layout, of staged numbers, or of the stream's own workspace. Numbers that are unchecked are
                // clamped or ignored by the kernels. The memory outlives the kernel: it is freed in the order of its own stream,
                // which is made to come after this launch, or kept by the graph.
                let run = |block: &[u8]| unsafe { launch.kernel.launch(&at, &config, block) };
                match &blocks {
                    Some(blocks) => run(blocks[index].bytes())?,
                    None => call.with_block(&launch, run)?,
                }
            }
            Ok(())
        });
        drop(steps);
        drop(at);
        submitted.and_then(|()| sync::after_launch(stream, capture))
    }

    /// Submits a call to anybody's stream: the raw layer, for streams, memory and captures of other libraries.
    ///
    /// It makes one driver call for each step, besides the encoding of tensor maps for kernels that read through
    /// them. It allocates no device memory, copies, waits for and loads nothing, and touches no reference count, so
    /// it may be part of anybody's capture. It takes no lock, with one exception: a dense causal call of a few
    /// hundred tiles may ask for their order, which the process remembers behind a lock. Of lengths and heads that
    /// are new to it that takes a millisecond or two at most, unless [`make_ready`](Prepared::make_ready) was called
    /// before. Numbers that differ from call to call lie on the device ([`CallBuilder::device_key_lengths`] and its
    /// like): a captured launch reads them again at each replay.
    ///
    /// [`CallBuilder::device_key_lengths`]: crate::spec::CallBuilder::device_key_lengths
    ///
    /// # Errors
    /// Before anything is submitted: [`Error::OtherProblem`] or [`Invalid::ElementMismatch`]; another number of parts; an address that is
    /// missing, superfluous or unaligned, an output that overlaps anything; numbers on the host; no workspace where the plan needs one.
    /// Then what the driver reports.
    ///
    /// # Safety
    /// - `stream` is a live stream of [`Prepared::context`], which is current on the calling thread.
    /// - Each address that is not 0 is that of device memory which the context can use and which reaches as far as the call's
    ///   layouts say, or as its count of numbers; it stays valid until the launch, and every replay of a graph that captured
    ///   it, has ended.
    /// - Nothing else writes what the launch reads, or touches what it writes, at the same time. Offsets, lengths,
    ///   slots, positions and tables on the device are an exception: any bits at any time are safe, and give wrong numbers at worst.
    /// - No two threads launch with the same workspace at the same time.
    /// - `workspace` is memory of [`Prepared::scratch`] bytes or more, or of the [`workspace_bytes`] that each step has for the call; 0 if
    ///   that is none. Its address is a multiple of 256; it is zeroed once before its first launch, and given to no two launches that may
    ///   run at the same time. A stream's launches run one after the other; each graph that is instantiated from a capture needs a
    ///   workspace of its own.
    /// - A clone of this value, or the [`Gpu`](crate::gpu::Gpu) that prepared it, lives until the launch has ended, and as long as
    ///   any graph that captured it: raw launches are not tracked, so the end of the context does not wait for them.
    ///
    /// [`workspace_bytes`]: crate::plan::LaunchShape::workspace_bytes
    pub unsafe fn launch_raw<'a>(
        &self,
        stream: CUstream,
        call: &O,
        addresses: impl Into<Addresses<'a>>,
        workspace: DevicePointer,
    ) -> Result<()> {
        let at = &addresses.into();
        self.check_addresses(call, at)?;
        let shapes = &shapes_of(self.plan(), call)?;
        for ((step, kernel), shape) in self.steps().zip(shapes) {
            if shape.grid == 0 {
                continue;
            }
            if shape.needs_workspace() && (workspace == 0 || !workspace.is_multiple_of(256)) {
                return Err(Error::Workspace {
                    address: workspace,
                    bytes: self.scratch().bytes,
                });
            }
            let launch = StepLaunch {
                step,
                kernel,
                shape,
                steps: self.plan().steps(),
                shapes,
                at,
                workspace,
            };
            let config = config(step, shape);
            // SAFETY: the caller's promises.
            let run = |block: &[u8]| unsafe { kernel.launch_raw(stream, &config, block) };
            call.with_block(&launch, run)?;
        }
        Ok(())
    }

    /// Finds what [`launch_raw`](Self::launch_raw) would find before it submits anything, except for the workspace: for
    /// callers who first write what the launch reads. It makes no driver call.
    ///
    /// # Errors
    /// As [`launch_raw`](Self::launch_raw).
    pub fn check_raw<'a>(&self, call: &O, addresses: impl Into<Addresses<'a>>) -> Result<()> {
        self.check_addresses(call, &addresses.into())?;
        shapes_of(self.plan(), call).map(drop)
    }

    fn expected<'a>(&self, call: &'a O) -> Places<'a> {
        Places {
            operands: call.expected(),
            parts: call.expected_parts(),
            chunks: self.plan().needs_alignment(),
            boxed: { self.plan().steps().iter() }.find_map(|step| step.image.boxed()),
        }
    }

    fn check_addresses(&self, call: &O, addresses: &Addresses<'_>) -> Result<()> {
        self.plan().problem().check(call.problem())?;
        let expected = self.expected(call);
        if let Some(slot) = expected.iter().find(|slot| slot.on_host) {
            return Err(Invalid::presence(
                slot.name,
                "is on the host, but a raw launch takes numbers from the device",
            )
            .into());
        }
        expected.check(addresses)
    }

    /// Sends the numbers that the host knows ahead of the kernel, and fills in where they are.
    fn stage(&self, stream: &Stream, call: &O, addresses: &mut Slots<u64>) -> Result<Staged> {
        /// Alignment of the largest number type, in bytes.
        const ALIGNMENT: usize = 8;
        let lists: Vec<_> = call.host_numbers().collect();
        let room = lists.iter().map(|(_, list)| list.len() + ALIGNMENT).sum();
        let mut bytes: Vec<u8> = Vec::with_capacity(room);
        for (operand, list) in &lists {
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            addresses[*operand] = bytes.len() as u64;
            bytes.extend_from_slice(list);
        }
        let staged = self.inner.staging.upload(stream, &bytes)?;
        for (operand, _) in lists {
            addresses[operand] += staged.pointer();
        }
        Ok(staged)
    }
}

/// The right to queue launches on a stream whose results are in its workspace.
#[derive(Debug, Default)]
struct Steps;

/// Everything about a launch except its addresses.
#[derive(Debug)]
struct Outline {
    /// True if there are numbers in host memory.
    has_host_numbers: bool,
    /// The launch shape of each step of the plan.
    shapes: Vec<LaunchShape>,
}

impl Outline {
    /// `call` is one of the problem that was planned.
    fn of<O: Operation>(plan: &Plan<O::Problem>, call: &O) -> Result<Self> {
        Ok(Outline {
            has_host_numbers: call.host_numbers().any(|(_, list)| !list.is_empty()),
            shapes: shapes_of(plan, call)?,
        })
    }

    /// Returns true if a step finds something in the workspace, or leaves more there than a counter that is 0 again.
    fn leaves_results(&self) -> bool {
        let mut shapes = self.shapes.iter();
        self.shapes.len() > 1
            || shapes.any(|shape| shape.workspace_bytes > Scratch::counter().bytes)
    }
}

/// The launch shape of each step of a plan.
fn shapes_of<O: Operation>(plan: &Plan<O::Problem>, call: &O) -> Result<Vec<LaunchShape>> {
    plan.steps().iter().map(|step| call.shape(step)).collect()
}

/// The blocks of a launch by its addresses and its workspace.
type Blocks = Recent<(Slots<u64>, Vec<[u64; 2]>, DevicePointer), Arc<[Block]>>;

/// A call without numbers on the host, with its problem prepared: to be launched again and again, with other addresses or the same. What
/// launches of it repeat is worked out once, and the blocks that it was launched with last are kept: a call costs the host most of its time
/// before the kernel starts, and tensor maps are made by the driver.
#[derive(Debug)]
pub(crate) struct Ready<O: Operation = Call> {
    call: O,
    prepared: Prepared<O>,
    outline: Outline,
    blocks: Mutex<Blocks>,
}

impl<O: Operation> Ready<O> {
    pub(super) fn new(call: O, prepared: Prepared<O>) -> Result<Self> {
        Ok(Ready {
            outline: Outline::of(prepared.plan(), &call)?,
            call,
            prepared,
            blocks: Mutex::default(),
        })
    }

    pub(crate) fn call(&self) -> &O {
        &self.call
    }

    pub(crate) fn prepared(&self) -> &Prepared<O> {
        &self.prepared
    }

    /// As [`Prepared::launch`] of the call.
    pub(crate) fn launch(&self, stream: &Stream, bindings: &Bindings<'_>) -> Result<()> {
        let kept = Some(&self.blocks);
        (self.prepared).submit(stream, &self.call, &self.outline, bindings, kept)
    }
}

#[cfg(test)]
mod tests {
    use warptile_driver::Driver;
    use warptile_fake_cuda::FakeDriver;

    use crate::gpu::Gpu;
    use crate::plan::{Choice, SEARCHES};
    use crate::spec::{Call, ElementType, Layout, Mask, Operand, Scoring};

    #[test]
    fn the_order_of_a_calls_tiles_is_looked_for_when_it_is_made_ready() {
        let fake = FakeDriver::open();
        // SAFETY: the library is the stand-in, with the driver's signatures.
        let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
        let gpu = Gpu::new(&driver, 0).unwrap();
        let searches_for = |query_len: usize, mask: Mask, has_bias: bool| {
            let q = Layout::bshd([1, query_len, 32, 128]);
            let k = Layout::bshd([1, query_len, 8, 128]);
            let mut builder =
                Call::builder(&q, &k, &k, ElementType::F16).scoring(Scoring::new().mask(mask));
            if has_bias {
                let bias = Layout::bhsd([1, 32, query_len, query_len]);
                builder = builder.layout(Operand::Bias, bias).want_lse(false);
            }
            let call = builder.build().unwrap();
            let kernel = Choice::Kernel("wgmma_d128_192x64_w16_s4".to_owned());
            let prepared = gpu.prepare(call.problem(), &kernel).unwrap();
            let before = SEARCHES.get();
            prepared.make_ready(&call).unwrap();
            SEARCHES.get() - before
        };
        // No other test has this many blocks of keys.
        assert_eq!(searches_for(1800, Mask::causal(), false), 1);
        assert_eq!(searches_for(1800, Mask::none(), false), 0);
        assert_eq!(searches_for(1864, Mask::causal(), true), 1);
    }
}
