//! Warptile's side of a stream.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUstreamCaptureStatus;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtrMut};
use warptile::driver::Driver;
use warptile::driver::sys::CUstream;
use warptile::gpu::{Addresses, Gpu, Operation, Prepared};
use warptile::kernels::Kind;
use warptile::plan::Choice;
use warptile::spec::{
    Append, Backward, Call, CallBuilder, Merge, Operand, Scoring, Slots, check_view_types,
};
use warptile::{Element, Layout};

use crate::bindings::{Bindings, MergeBindings, lock};
use crate::error::{Error, Result};

/// Launches on one stream of cudarc's. Cheap to make; one that is kept also keeps the device memory that some kernels need in addition
/// to their tensors, instead of allocating it for each launch: up to 53 MB on an H200. Gradients and
/// [`Splits::EveryKeys`](warptile::Splits::EveryKeys) need more for more queries and keys; of such a workspace the session keeps the
/// largest there was, rounded up by less than 64 MiB.
pub struct Session {
    stream: Arc<CudaStream>,
    gpu: &'static Gpu,
    /// Zeroed once, and left at zero by every launch. Launches of the stream take turns with it; those of a capture have their own.
    workspace: Mutex<Option<CudaSlice<u8>>>,
    /// True if the launches of a capture use it, and no others.
    for_graph: bool,
}

impl Session {
    /// For a stream of a device's primary context, which [`CudaContext::new`] gives. Opens the device the first time.
    ///
    /// # Errors
    /// [`Error::NotPrimary`]; when Warptile cannot use the driver.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        Ok(Session {
            stream: stream.clone(),
            gpu: gpu(stream.context())?,
            workspace: Mutex::default(),
            for_graph: false,
        })
    }

    /// For the launches of one capture, with a workspace of so many bytes: the most that a plan of them needs
    /// ([`Plan::scratch`](warptile::plan::Plan::scratch)). A captured launch of any other session allocates its
    /// workspace, fills it with zeros and frees it at each replay, which takes microseconds where the workspace is of
    /// megabytes.
    ///
    /// Waits until the workspace is ready.
    ///
    /// # Errors
    /// As [`Session::new`]; when the device is out of memory.
    ///
    /// # Safety
    /// - Everything that this session launches is captured into one graph, which is instantiated once. Its replays run one after the other.
    /// - The session is dropped after the last replay has ended.
    pub unsafe fn for_graph(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self> {
        let mut session = Session::new(stream)?;
        session.for_graph = true;
        if bytes != 0 {
            let workspace = stream.alloc_zeros::<u8>(bytes)?;
            stream.synchronize()?;
            session.workspace = Mutex::new(Some(workspace));
        }
        Ok(session)
    }

    /// The stream.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The device with its kernels, to plan and to prepare by hand.
    pub fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Attention over dense tensors: q, k, v and the output with their layouts, and where the log-sum-exp goes if it is wanted,
    /// `[batch, heads, length]`. For more than that, [`Session::launch`].
    ///
    /// # Errors
    /// As [`Session::launch`], and those of [`CallBuilder::build`](warptile::spec::CallBuilder::build).
    pub fn forward<T: Element>(
        &self,
        scoring: Scoring,
        [(q, q_layout), (k, k_layout), (v, v_layout)]: [(CudaView<'_, T>, Layout); 3],
        (out, out_layout): (CudaViewMut<'_, T>, Layout),
        lse: Option<CudaViewMut<'_, f32>>,
    ) -> Result<()> {
        let builder = Call::builder(&q_layout, &k_layout, &v_layout, T::TYPE)
            .scoring(scoring)
            .out(out_layout)
            .want_lse(lse.is_some());
        let mut bindings = Bindings::new(q, k, v, out);
        if let Some(lse) = lse {
            bindings = bindings.output(Operand::Lse, lse);
        }
        self.launch_with(bindings, &Choice::Best, |aligned| {
            Ok(aligned.described(builder).build()?)
        })
    }

    /// Submits a call by the fastest kernel; doesn't wait.
    ///
    /// # Errors
    /// Before anything is submitted: a view that is missing, superfluous, too short, unaligned, or of another type or context; an output
    /// that shares memory with anything; lists that the call has on the host; when no kernel can do it. Then what the driver reports.
    pub fn launch(&self, call: &Call, bindings: Bindings<'_>) -> Result<()> {
        self.launch_with(bindings, &Choice::Best, |_| Ok(call.clone()))
    }

    /// As [`Session::launch`], of a call that is described when it is known which tensors start at multiples of 16 bytes, and by a chosen
    /// kernel.
    ///
    /// # Errors
    /// As [`Session::launch`], and those of `describe`.
    pub fn launch_with(
        &self,
        bindings: Bindings<'_>,
        choice: &Choice,
        describe: impl FnOnce(Aligned) -> warptile::Result<Call>,
    ) -> Result<()> {
        self.submit(bindings, choice, describe, |prepared, call| {
            let mut bytes = 0;
            for step in prepared.plan().steps() {
                bytes = bytes.max(step.shape(call)?.workspace_bytes);
            }
            Ok(bytes)
        })
    }

    /// Submits the backward pass of a call; doesn't wait. It is described as a call is for [`Session::launch_with`].
    ///
    /// # Errors
    /// As [`Session::launch`], and those of `describe`.
    pub fn backward_with(
        &self,
        bindings: Bindings<'_>,
        describe: impl FnOnce(Aligned) -> warptile::Result<Backward>,
    ) -> Result<()> {
        self.submit(bindings, &Choice::Best, describe, |prepared, _| {
            Ok(prepared.scratch().bytes)
        })
    }

    /// Submits a write of new keys and values into a cache; doesn't wait.
    ///
    /// # Errors
    /// As [`Session::launch`].
    pub fn append(&self, append: &Append, bindings: Bindings<'_>) -> Result<()> {
        let describe = |_| Ok(append.clone());
        self.submit(bindings, &Choice::Best, describe, |_, _| Ok(0))
    }

    /// Describes an operation, checks the views against what it expects, and submits it with a workspace of as many bytes as `room` says.
    fn submit<O: Operation>(
        &self,
        mut bindings: Bindings<'_>,
        choice: &Choice,
        describe: impl FnOnce(Aligned) -> warptile::Result<O>,
        room: impl FnOnce(&Prepared<O>, &O) -> Result<usize>,
    ) -> Result<()> {
        let types = bindings.types();
        let locked = bindings.lock(&self.stream)?;
        let addresses = Slots::from_fn(|operand| locked.addresses[operand as usize]);
        let call = describe(Aligned::of(&addresses))?;
        check_view_types(&types, call.expected())?;
        let needed = call.expected().iter();
        locked.check(needed.map(|(at, slot)| (at as usize, slot.name, slot.needed())))?;
        let prepared = self.gpu.prepare_for(&call, choice)?;
        self.with_workspace(room(&prepared, &call)?, |workspace| {
            let stream = self.enter()?;
            // SAFETY: the stream is live, and of the context that the kernels are loaded in, as `gpu` has checked; it is current now. Every
            // address is that of a view, which is of that context and as long as the call needs, as was checked. cudarc keeps the memory
            // while the launch is queued: it frees it in the order of the stream that it belongs to, which waits for the launch by the
            // guards' events or, without event tracking, by the promise of who has turned that off; the same orders others' reads and
            // writes. Lists are clamped by the kernels. The workspace is zeroed, large enough, and no other launch has it at the same
            // time, nor between the steps of this one. The GPU with its kernels is never dropped.
            unsafe { prepared.launch_raw(stream, &call, &addresses, workspace) }?;
            Ok(())
        })
    }

    /// Submits a merge of results; doesn't wait.
    ///
    /// # Errors
    /// As [`Session::launch`].
    pub fn merge<T: Element>(
        &self,
        merge: &Merge,
        mut bindings: MergeBindings<'_, T>,
    ) -> Result<()> {
        if T::TYPE != merge.element() {
            return Err(warptile::spec::Invalid::ElementMismatch {
                argument: "out",
                expected: merge.element(),
                found: T::TYPE,
            }
            .into());
        }
        let (found, needed) = (bindings.parts(), merge.part_count());
        if found != needed {
            return Err(warptile::spec::Invalid::Count {
                argument: "parts",
                found,
                needed,
            }
            .into());
        }
        let names: Vec<&str> = merge.memory().map(|(name, _)| name).collect();
        let locked = lock(&mut bindings.views, &self.stream, |at| names[at])?;
        let needed = merge.memory().enumerate();
        locked.check(needed.map(|(at, (name, bytes))| (at, name, bytes)))?;
        let prepared = self.gpu.prepare_merge(merge.element())?;
        let parts: Vec<[u64; 2]> = locked.addresses[2..]
            .chunks_exact(2)
            .map(|part| [part[0], part[1]])
            .collect();
        let addresses = Addresses::merge(locked.addresses[0], locked.addresses[1], &parts);
        let stream = self.enter()?;
        // SAFETY: as in `submit`, but that there is no workspace.
        unsafe { prepared.launch_raw(stream, merge, addresses, 0) }?;
        Ok(())
    }

    /// Makes the context current on this thread, as all of cudarc's functions do. Fails if an event could not be awaited.
    fn enter(&self) -> Result<CUstream> {
        self.stream.context().bind_to_thread()?;
        Ok(CUstream(self.stream.cu_stream().cast()))
    }

    /// Has `launch` use a workspace of this many bytes, if it needs any.
    fn with_workspace(&self, bytes: usize, launch: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        if bytes == 0 {
            return launch(0);
        }
        if self.for_graph {
            let mut kept = locked(&self.workspace);
            return match &mut *kept {
                Some(kept) if kept.len() >= bytes => launch(kept.device_ptr_mut(&self.stream).0),
                kept => Err(warptile::Error::SessionTooSmall {
                    needed: bytes,
                    available: kept.as_ref().map_or(0, CudaSlice::len),
                }
                .into()),
            };
        }
        // The stream by this handle is another one on each thread, and a graph may run beside the stream that it was captured on.
        let per_thread = CUstream(self.stream.cu_stream().cast()) == CUstream::PER_THREAD;
        let free = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        if per_thread || self.stream.capture_status()? != free {
            let mut own = self.stream.alloc_zeros::<u8>(bytes)?;
            let (pointer, _guard) = own.device_ptr_mut(&self.stream);
            return launch(pointer);
        }
        let mut kept = locked(&self.workspace);
        if kept.as_ref().is_none_or(|kept| kept.len() < bytes) {
            // The smaller one is freed in the order of the stream. As a power of two, a large one could be twice as large as needed.
            const STEP: usize = 64 << 20;
            let grown = match bytes <= STEP {
                true => bytes.next_power_of_two(),
                false => bytes.checked_next_multiple_of(STEP).unwrap_or(bytes),
            };
            *kept = Some(self.stream.alloc_zeros::<u8>(grown)?);
        }
        match &mut *kept {
            Some(kept) => launch(kept.device_ptr_mut(&self.stream).0),
            None => launch(0),
        }
    }
}

/// Which tensors of a launch start at multiples of 16 bytes, as more kernels take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Aligned {
    /// True if q, k, v, the output and their gradients do, as far as they are given.
    pub rows: bool,
    /// True if the bias, its gradient and the key mask do. Few kernels need it.
    pub scores: bool,
}

impl Aligned {
    fn of(addresses: &Slots<u64>) -> Self {
        let all = |chosen: fn(Operand) -> bool| {
            { addresses.iter() }.all(|(operand, at)| !chosen(operand) || at.is_multiple_of(16))
        };
        Aligned {
            rows: all(Operand::moves_rows),
            scores: all(|operand| operand.kind() == Kind::Scores),
        }
    }

    /// Sets both in the builder of a call.
    pub fn described(self, builder: CallBuilder<'_>) -> CallBuilder<'_> {
        { builder.aligned_addresses(self.rows) }.aligned_scores(self.scores)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("stream", &self.stream)
            .field("device", &self.gpu.profile().name)
            .finish_non_exhaustive()
    }
}

/// The values behind these locks are consistent even after a panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device with its kernels: opened once, and never dropped, as captured graphs may refer to the kernels.
pub(crate) fn gpu(context: &CudaContext) -> Result<&'static Gpu> {
    static GPUS: Mutex<Vec<(usize, &'static Gpu)>> = Mutex::new(Vec::new());
    let ordinal = context.ordinal();
    let mut gpus = locked(&GPUS);
    let gpu = match gpus.iter().find(|(known, _)| *known == ordinal) {
        Some(&(_, gpu)) => gpu,
        None => {
            let driver = Driver::load().map_err(warptile::Error::from)?;
            let opened = Gpu::new(&driver, u32::try_from(ordinal).unwrap_or(u32::MAX))?;
            let gpu: &'static Gpu = Box::leak(Box::new(opened));
            gpus.push((ordinal, gpu));
            gpu
        }
    };
    match gpu.context().raw().0.addr() == context.cu_ctx().addr() {
        true => Ok(gpu),
        false => Err(Error::NotPrimary { ordinal }),
    }
}
