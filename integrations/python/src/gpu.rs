//! Calls on a GPU: on the streams and in the memory of other libraries.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use warptile::driver::sys::{
    CUgraph, CUpointerAttribute, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use warptile::driver::{Context, Driver};
use warptile::gpu::{Addresses, Gpu, Operation, Prepared};
use warptile::plan::{BackwardProblem, Choice, Plan};
use warptile::spec::{
    Backward, Call, DropoutState, Numbers, Operand, Problem, Scoring, Slots, Types,
};
use warptile::{ElementType, Error, Layout};

use crate::array::Device;
use crate::errors::{Failure, Result};

/// A GPU with what its launches need. They are kept until the process ends, as graphs may refer to their kernels.
pub(crate) struct Opened {
    gpu: Gpu,
    workspaces: Mutex<HashMap<Queue, Workspace>>,
    /// Workspaces of graphs that are gone.
    free: Free,
    /// Addresses of numbers that were given on the host, by their bits. They are never freed or written again, as captured graphs may
    /// read them.
    constants: Mutex<HashMap<Vec<u32>, u64>>,
}

/// The most lists of [`Opened::constants`]: one that changes with every call would take memory without end.
const MOST_CONSTANTS: usize = 4096;

/// Launches that run one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Queue {
    /// Number of the stream, which no later stream gets, as one may get its handle; in a capture its handle.
    stream: u64,
    /// Number of the capture under way, which no later one gets: its graph may run at the same time as the stream's other work.
    capture: Option<u64>,
}

/// Device memory that the launches of a queue take turns with. All of them leave it as they found it. It is never given back to the
/// driver, but that of a graph is taken by others once the graph is gone.
#[derive(Debug, Clone, Copy)]
struct Workspace {
    address: u64,
    bytes: usize,
}

/// Workspaces to be taken. Nobody calls the driver with the lock, as a thread of the driver's adds to the list.
type Free = Arc<Mutex<Vec<(Queue, Workspace)>>>;

/// A workspace that a graph keeps: it is free when this is dropped.
struct Lease {
    queue: Queue,
    workspace: Workspace,
    free: Free,
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.free).push((self.queue, self.workspace));
    }
}

static OPENED: Mutex<BTreeMap<u32, Arc<Opened>>> = Mutex::new(BTreeMap::new());

/// The process that has loaded the driver; 0 if none has.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// A stream by the number that other libraries give of it.
fn handle(stream: u64) -> CUstream {
    CUstream(stream as *mut c_void)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds one of these locks can leave its value half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver, which does not work in a child that was forked after its parent had initialized it. That is found out before any lock is
/// taken, as another thread may have held it at the fork.
fn driver() -> Result<Driver> {
    let is_loaded = check_process()?;
    let driver = Driver::load()?;
    if !is_loaded {
        PROCESS.store(std::process::id(), Ordering::Release);
    }
    Ok(driver)
}

/// True if this process has loaded the driver.
fn check_process() -> Result<bool> {
    let process = std::process::id();
    match PROCESS.load(Ordering::Acquire) {
        0 => Ok(false),
        first if first == process => Ok(true),
        first => Err(Failure::Device(format!(
            "process {first} had initialized CUDA before it forked this process ({process}), where CUDA therefore does not work; start workers with multiprocessing.get_context(\"spawn\")"
        ))),
    }
}

/// The GPU of this number, opened the first time.
pub(crate) fn open(ordinal: u32) -> Result<Arc<Opened>> {
    check_process()?;
    let mut opened = lock(&OPENED);
    if let Some(known) = opened.get(&ordinal) {
        return Ok(known.clone());
    }
    let gpu = Gpu::new(&driver()?, ordinal)?;
    let made = Arc::new(Opened {
        gpu,
        workspaces: Mutex::default(),
        free: Free::default(),
        constants: Mutex::default(),
    });
    opened.insert(ordinal, made.clone());
    Ok(made)
}

/// The plan for a problem on a GPU that is there.
pub(crate) fn plan(ordinal: u32, problem: Problem, choice: &Choice) -> Result<Plan> {
    Ok(open(ordinal)?.gpu.plan(problem, choice)?)
}

/// True if a GPU has kernels for outputs and for all of their gradients, with dropout or without, up to the largest head size that has any.
pub(crate) fn has_kernels(ordinal: u32, element: ElementType, dropout: bool) -> Result<bool> {
    let rows = Layout::bshd([1, 1, 1, Backward::MAX_HEAD_DIM]);
    let mut call = Call::builder(&rows, &rows, &rows, Types::of(element)).want_lse(true);
    if dropout {
        call = { call.scoring(Scoring::new().dropout(0.5)) }
            .numbers(Operand::DropoutState, Numbers::Device(DropoutState::WORDS));
    }
    let call = call.build()?;
    let (problem, backward) = (call.problem(), Backward::builder(call).build()?);
    let (gpu, best) = (&open(ordinal)?.gpu, &Choice::Best);
    let planned = { gpu.plan(problem, best) }
        .and_then(|_| gpu.plan_of::<Backward>(BackwardProblem::of(&backward), best));
    match planned {
        Ok(_) => Ok(true),
        Err(Error::NoKernel { .. } | Error::NoImages { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The address of a copy of these numbers, the same one each time.
pub(crate) fn constant(ordinal: u32, name: &str, values: &[f32]) -> Result<u64> {
    let opened = open(ordinal)?;
    let key: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
    let mut constants = lock(&opened.constants);
    if let Some(&address) = constants.get(&key) {
        return Ok(address);
    }
    if constants.len() >= MOST_CONSTANTS {
        return Err(Failure::Invalid(format!(
            "{name} is on the CPU, and {MOST_CONSTANTS} other lists were there before; pass values that change as a tensor on the GPU"
        )));
    }
    let bytes: Vec<u8> = { values.iter() }
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    let address = opened.gpu.context().permanent_copy(&bytes)?;
    constants.insert(key, address);
    Ok(address)
}

/// The kernels of a call, loaded.
pub(crate) struct Ready {
    opened: Arc<Opened>,
    prepared: Prepared,
}

/// Loads the kernels of a call. None if it has no rows.
pub(crate) fn ready(ordinal: u32, call: &Call, choice: &Choice) -> Result<Option<Ready>> {
    if call.lse_len() == 0 {
        return Ok(None);
    }
    let opened = open(ordinal)?;
    let prepared = opened.gpu.prepare(call.problem(), choice)?;
    Ok(Some(Ready { opened, prepared }))
}

impl Ready {
    /// Checks what [`forward`] would before it submits anything.
    pub(crate) fn check(&self, call: &Call, addresses: &Slots<u64>) -> Result<()> {
        Ok(self.prepared.check_raw(call, addresses)?)
    }
}

/// Submits a call to a stream.
///
/// # Safety
/// `stream` is a live stream of the device's primary context. The addresses are those of device memory that reaches as far as the call's
/// layouts say, stays until the launch and every replay of a graph that captured it have ended, and is written by nobody meanwhile;
/// nobody reads the outputs meanwhile.
pub(crate) unsafe fn forward(
    Ready { opened, prepared }: &Ready,
    stream: u64,
    call: &Call,
    addresses: &Slots<u64>,
) -> Result<()> {
    let stream = handle(stream);
    let context = opened.gpu.context();
    context.within(|| {
        let (queue, graph) = queue_of(context, stream)?;
        let plan = prepared.plan();
        let workspace = match graph {
            None => opened.workspace_of_stream(queue, plan.scratch().bytes)?,
            Some(graph) => {
                let mut needed = 0;
                for step in plan.steps() {
                    needed = needed.max(step.shape(call)?.workspace_bytes);
                }
                // SAFETY: the stream is being captured into it, which the caller does on this thread or lets this one join.
                unsafe { opened.workspace_of_graph(queue, graph, needed) }?
            }
        };
        // SAFETY: the context is current, the caller's promise, and for the workspace: it is large enough, was zeroed, and is that
        // of the stream or of the capture alone. The GPU that prepared the kernels lives as long as the process.
        unsafe { prepared.launch_raw(stream, call, addresses, workspace) }?;
        Ok(())
    })
}

/// Bytes of the workspace that a [`launch`] needs. Loads the kernels.
pub(crate) fn workspace_bytes<O: Operation>(
    ordinal: u32,
    call: &O,
    choice: &Choice,
) -> Result<usize> {
    let prepared = open(ordinal)?.gpu.prepare_for(call, choice)?;
    Ok(prepared.scratch().bytes)
}

/// Submits an operation to a stream.
///
/// # Safety
/// As [`forward`]. `workspace` is memory of [`workspace_bytes`] that no other launch has until this one has ended, and of which as many
/// are zero as `Scratch::BACKWARD_ZEROS` says; 0 if that is none.
pub(crate) unsafe fn launch<'a, O: Operation>(
    ordinal: u32,
    stream: u64,
    call: &O,
    choice: &Choice,
    addresses: impl Into<Addresses<'a>>,
    workspace: u64,
) -> Result<()> {
    let opened = open(ordinal)?;
    let prepared = opened.gpu.prepare_for(call, choice)?;
    opened.gpu.context().within(|| {
        // SAFETY: the context is current, and the caller's promise. The GPU that prepared the kernels lives as long as the process.
        unsafe { prepared.launch_raw(handle(stream), call, addresses, workspace) }?;
        Ok(())
    })
}

impl Opened {
    /// Memory for eager launches: as much as the largest call of the problem needs, so that lengths may grow.
    fn workspace_of_stream(&self, queue: Queue, needed: usize) -> Result<u64> {
        let mut workspaces = lock(&self.workspaces);
        match workspaces.get(&queue) {
            _ if needed == 0 => Ok(0),
            Some(known) if known.bytes >= needed => Ok(known.address),
            // An outgrown one stays, for its launches may not have ended.
            _ => {
                let made = self.zeroed(needed)?;
                workspaces.insert(queue, made);
                Ok(made.address)
            }
        }
    }

    /// Memory for launches that are being captured: as much as this one needs, in a power of two, so that all that a graph has outgrown
    /// is no more than what it has, and what one leaves suits the next.
    ///
    /// # Safety
    /// As [`Context::keep_with_graph`]: `graph` is the one that the queue's stream is being captured into.
    unsafe fn workspace_of_graph(
        &self,
        queue: Queue,
        graph: CUgraph,
        needed: usize,
    ) -> Result<u64> {
        if needed == 0 {
            return Ok(0);
        }
        let mut workspaces = lock(&self.workspaces);
        if let Some(known) = workspaces.get(&queue)
            && known.bytes >= needed
        {
            return Ok(known.address);
        }
        let workspace = match self.take_free(&mut workspaces, needed) {
            Some(workspace) => workspace,
            None => self.zeroed(needed.next_power_of_two())?,
        };
        let lease = Lease {
            queue,
            workspace,
            free: self.free.clone(),
        };
        // SAFETY: the caller's promise. A lease that is dropped calls nobody, and waits for a lock with which nobody calls the driver.
        unsafe { self.gpu.context().keep_with_graph(graph, Box::new(lease)) }?;
        workspaces.insert(queue, workspace);
        Ok(workspace.address)
    }

    /// The smallest free workspace of at least `needed` bytes. Forgets the queues of graphs that are gone.
    fn take_free(
        &self,
        workspaces: &mut HashMap<Queue, Workspace>,
        needed: usize,
    ) -> Option<Workspace> {
        let mut free = lock(&self.free);
        for (queue, _) in &*free {
            workspaces.remove(queue);
        }
        let fits = |(_, (_, workspace)): &(usize, &(Queue, Workspace))| workspace.bytes >= needed;
        let fitting = free.iter().enumerate().filter(fits);
        let (at, _) = fitting.min_by_key(|(_, (_, workspace))| workspace.bytes)?;
        Some(free.swap_remove(at).1)
    }

    fn zeroed(&self, bytes: usize) -> Result<Workspace> {
        let address = self.gpu.context().permanent_zeroed(bytes)?;
        Ok(Workspace { address, bytes })
    }
}

/// Whose turn a launch on this stream takes, and the graph that it is being captured into. The context is current.
fn queue_of(context: &Context, stream: CUstream) -> Result<(Queue, Option<CUgraph>)> {
    let api = context.driver().api();
    let mut status = CUstreamCaptureStatus::NONE;
    let mut capture = 0;
    let (mut graph, mut dependencies, mut count) = (CUgraph::NULL, std::ptr::null(), 0);
    // SAFETY: all outlive the call, and the stream is live by the contract of `forward`.
    let code = unsafe {
        (api.stream_get_capture_info)(
            stream,
            &mut status,
            &mut capture,
            &mut graph,
            &mut dependencies,
            &mut count,
        )
    };
    expect(code, "asking whether the stream is being captured")?;
    if status != CUstreamCaptureStatus::NONE {
        if status != CUstreamCaptureStatus::ACTIVE {
            return Err(Failure::Device(
                "the stream is in a capture that an earlier call has broken".to_owned(),
            ));
        }
        // A stream that is being captured may not be asked for its number, and cannot be destroyed before the capture ends.
        let queue = Queue {
            stream: stream.0 as u64,
            capture: Some(capture),
        };
        return Ok((queue, Some(graph)));
    }
    let mut number = 0;
    // SAFETY: as above.
    let code = unsafe { (api.stream_get_id)(stream, &mut number) };
    expect(code, "asking for the number of the stream")?;
    let queue = Queue {
        stream: number,
        capture: None,
    };
    Ok((queue, None))
}

fn expect(code: CUresult, what: &str) -> Result<()> {
    match code {
        CUresult::SUCCESS => Ok(()),
        code => Err(Failure::Device(format!("{what} failed with {code:?}"))),
    }
}

/// The GPU whose memory an address is in, or the CPU.
pub(crate) fn device_of_address(name: &'static str, address: u64) -> Result<Device> {
    if address == 0 {
        return Err(Failure::Invalid(format!(
            "{name} has no elements and comes through the CUDA array interface, which does not say on which GPU it is; use DLPack"
        )));
    }
    let driver = driver()?;
    let mut ordinal = 0_i32;
    let value = (&raw mut ordinal).cast();
    // SAFETY: the attribute's value is an `int`; any address may be asked for.
    let code = unsafe {
        (driver.api().pointer_get_attribute)(value, CUpointerAttribute::DEVICE_ORDINAL, address)
    };
    match (code, u32::try_from(ordinal)) {
        (CUresult::SUCCESS, Ok(ordinal)) => Ok(Device::Cuda(ordinal)),
        _ => Err(Failure::Invalid(format!(
            "{name} has the CUDA array interface, but {address:#x} is not an address of a GPU"
        ))),
    }
}

/// Waits for a stream that produces an array, unless our own work comes after it anyway.
pub(crate) fn order_after(py: Python<'_>, ordinal: u32, producer: u64, ours: u64) -> Result<()> {
    // The interface has no number 0 for the default streams: 1 is the one that handle 0 means.
    if producer == ours.max(1) {
        return Ok(());
    }
    py.detach(|| {
        let opened = open(ordinal)?;
        let context = opened.gpu.context();
        context.within(|| {
            let api = context.driver().api();
            // As it is, a wait for any stream breaks the captures that the thread minds, ours perhaps.
            let mut mode = CUstreamCaptureMode::RELAXED;
            // SAFETY: `mode` outlives both calls, and the second undoes the first; the context is current, and the producer says that
            // this is a stream.
            let [set, waited, set_back] = unsafe {
                [
                    (api.thread_exchange_stream_capture_mode)(&mut mode),
                    (api.stream_synchronize)(handle(producer)),
                    (api.thread_exchange_stream_capture_mode)(&mut mode),
                ]
            };
            expect(waited, "waiting for the stream of an array")?;
            expect(set, "setting the capture mode of the thread")?;
            expect(set_back, "setting the capture mode of the thread")
        })
    })
}
