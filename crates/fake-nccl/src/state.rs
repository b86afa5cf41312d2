//! Everything that the stand-in knows, behind one lock.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warptile_cuda_sys::{CUcontext, CUevent, CUresult, CUstream, DriverApi};
use warptile_nccl_sys::{Config, NCCL_UINT8, NcclComm, NcclResult, UniqueId, Version};

use crate::handle::Fault;

/// A send or a receive.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    comm: usize,
    address: u64,
    bytes: usize,
    stream: CUstream,
}

/// The ranks of a unique id.
#[derive(Default)]
struct World {
    /// Communicators, by rank.
    members: Vec<Option<usize>>,
    finalized: usize,
    /// By sender and receiver: sends, then receives, that the other side has not called.
    waiting: HashMap<(usize, usize), [VecDeque<Message>; 2]>,
}

struct Comm {
    world: [u8; 128],
    rank: usize,
    context: CUcontext,
    /// Messages that the other side has not called.
    open: usize,
    /// The stream of the last messages.
    stream: Option<CUstream>,
    error: Option<NcclResult>,
    finalized: bool,
    stuck: bool,
}

/// A fault at the `nth` call from now of a function by a rank.
pub(crate) struct Pending {
    pub(crate) rank: usize,
    pub(crate) symbol: String,
    pub(crate) nth: u64,
    pub(crate) fault: Fault,
}

pub(crate) struct State {
    pub(crate) version: Version,
    pub(crate) driver: Option<DriverApi>,
    pub(crate) faults: Vec<Pending>,
    pub(crate) violations: Vec<String>,
    ids: u64,
    comms: HashMap<usize, Comm>,
    worlds: HashMap<[u8; 128], World>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    Mutex::new(State {
        version: Version(22_809),
        driver: driver_of_environment(),
        faults: Vec::new(),
        violations: Vec::new(),
        ids: 0,
        comms: HashMap::new(),
        worlds: HashMap::new(),
    })
});

/// The stand-in driver that a program was started with.
fn driver_of_environment() -> Option<DriverApi> {
    let path = std::env::var_os(warptile_cuda_sys::LIBRARY_OVERRIDE)?;
    // SAFETY: whoever opens the stand-in names its driver.
    unsafe { warptile_cuda_sys::load_from(path) }.ok()
}

pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The group that this thread has begun: sends and receives, with the peer.
    static GROUP: RefCell<Option<Vec<(bool, usize, Message)>>> = const { RefCell::new(None) };
}

impl State {
    fn violation(&mut self, what: impl Into<String>) -> NcclResult {
        self.violations.push(what.into());
        NcclResult::INVALID_USAGE
    }

    /// How many communicators there are.
    pub(crate) fn live(&self) -> usize {
        self.comms.len()
    }

    /// The state of a communicator.
    fn progress(&self, comm: usize) -> NcclResult {
        let Some(of) = self.comms.get(&comm) else {
            return NcclResult::INVALID_ARGUMENT;
        };
        if let Some(error) = of.error {
            return error;
        }
        let world = &self.worlds[&of.world];
        let ranks = world.members.len();
        let waits = world.members.iter().any(Option::is_none) && world.finalized == 0
            || of.finalized && (world.finalized < ranks || self.is_busy(of));
        match of.stuck || of.open > 0 || waits {
            true => NcclResult::IN_PROGRESS,
            false => NcclResult::SUCCESS,
        }
    }

    /// Returns true if messages of a communicator, or what they wait for, are not done.
    fn is_busy(&self, comm: &Comm) -> bool {
        let (Some(driver), Some(stream)) = (&self.driver, comm.stream) else {
            return false;
        };
        // SAFETY: the stream outlives the communicator.
        unsafe { (driver.stream_query)(stream) == CUresult::ERROR_NOT_READY }
    }

    /// Checks that a call may be made.
    fn usable(&mut self, comm: NcclComm, symbol: &str) -> Result<usize, NcclResult> {
        let key = comm.0.addr();
        match self.comms.get(&key) {
            None => Err(self.violation(format!("{symbol}: no such communicator"))),
            Some(_) if self.progress(key) == NcclResult::IN_PROGRESS => {
                Err(self.violation(format!("{symbol} while a call is in progress")))
            }
            Some(of) => of.error.map_or(Ok(key), Err),
        }
    }

    /// Counts a rank's call, and returns the fault that is due.
    fn fault(&mut self, rank: usize, symbol: &str) -> Option<Fault> {
        let mut due = None;
        self.faults.retain_mut(|pending| {
            if (pending.rank, pending.symbol.as_str()) == (rank, symbol) {
                pending.nth -= 1;
                if pending.nth == 0 {
                    due = Some(pending.fault);
                }
            }
            pending.nth > 0
        });
        due
    }

    /// Does a message: the sender's memory is copied in the receiver's stream, and both streams wait for that.
    fn transfer(&mut self, [send, receive]: [Message; 2]) -> NcclResult {
        let [from, to] = [send, receive].map(|message| self.comms[&message.comm].context);
        if send.bytes != receive.bytes {
            let (sent, received) = (send.bytes, receive.bytes);
            return self.violation(format!("{sent} bytes are sent and {received} received"));
        }
        let Some(driver) = &self.driver else {
            return self.violation("no driver is set");
        };
        let (mut ready, mut done) = (CUevent::NULL, CUevent::NULL);
        let mut old = CUcontext::NULL;
        // SAFETY: all pointers outlive the calls. The driver is the stand-in, which finds wrong handles itself.
        let codes = unsafe {
            [
                (driver.ctx_push_current)(from),
                (driver.event_create)(&mut ready, 2),
                (driver.event_record)(ready, send.stream),
                (driver.ctx_pop_current)(&mut old),
                (driver.ctx_push_current)(to),
                (driver.stream_wait_event)(receive.stream, ready, 0),
                (driver.memcpy_peer_async)(
                    receive.address,
                    to,
                    send.address,
                    from,
                    send.bytes,
                    receive.stream,
                ),
                (driver.event_create)(&mut done, 2),
                (driver.event_record)(done, receive.stream),
                (driver.stream_wait_event)(send.stream, done, 0),
                (driver.event_destroy)(ready),
                (driver.event_destroy)(done),
                (driver.ctx_pop_current)(&mut old),
            ]
        };
        match codes.iter().find(|code| code.0 != 0) {
            Some(_) => NcclResult::UNHANDLED_CUDA_ERROR,
            None => NcclResult::SUCCESS,
        }
    }

    fn exchange(&mut self, group: Vec<(bool, usize, Message)>) {
        for (sends, peer, message) in group {
            if let Some(comm) = self.comms.get_mut(&message.comm) {
                comm.stream = Some(message.stream);
            }
            let Comm { world, rank, .. } = self.comms[&message.comm];
            let between = match sends {
                true => (rank, peer),
                false => (peer, rank),
            };
            let world = self.worlds.entry(world).or_default();
            let [own, other] = match (sends, world.waiting.entry(between).or_default()) {
                (true, [sends, receives]) => [sends, receives],
                (false, [sends, receives]) => [receives, sends],
            };
            let Some(partner) = other.pop_front() else {
                own.push_back(message);
                self.count(message.comm, |open| open + 1);
                continue;
            };
            let code = self.transfer(match sends {
                true => [message, partner],
                false => [partner, message],
            });
            self.count(partner.comm, |open| open - 1);
            if code != NcclResult::SUCCESS {
                self.break_comm(message.comm, code);
                self.break_comm(partner.comm, code);
            }
        }
    }

    fn count(&mut self, comm: usize, change: impl Fn(usize) -> usize) {
        if let Some(comm) = self.comms.get_mut(&comm) {
            comm.open = change(comm.open);
        }
    }

    fn break_comm(&mut self, comm: usize, code: NcclResult) {
        if let Some(comm) = self.comms.get_mut(&comm) {
            comm.error = Some(code);
        }
    }

    fn remove(&mut self, comm: usize) {
        let Some(Comm { world, rank, .. }) = self.comms.remove(&comm) else {
            return;
        };
        if let Some(of) = self.worlds.get_mut(&world) {
            for queue in of.waiting.values_mut().flatten() {
                queue.retain(|message| message.comm != comm);
            }
            of.members[rank] = None;
            // Whoever is left finds no partner any more.
            of.finalized = of.finalized.max(1);
        }
    }
}

/// Does what a fault demands, at a call that then goes on unless a code is returned.
fn suffer(fault: Option<Fault>, comm: usize) -> Option<NcclResult> {
    match fault? {
        Fault::Code(code) => return Some(NcclResult(code)),
        Fault::Async(code) => state().break_comm(comm, NcclResult(code)),
        Fault::Stuck => {
            if let Some(comm) = state().comms.get_mut(&comm) {
                comm.stuck = true;
            }
        }
        Fault::Takes(milliseconds) => std::thread::sleep(Duration::from_millis(milliseconds)),
    }
    None
}

pub(crate) fn get_unique_id(id: *mut UniqueId) -> NcclResult {
    let mut state = state();
    state.ids += 1;
    let mut bytes = [0x5a; 128];
    bytes[..8].copy_from_slice(&state.ids.to_le_bytes());
    // SAFETY: the caller's pointer is valid.
    unsafe { id.write(UniqueId(bytes)) };
    NcclResult::SUCCESS
}

pub(crate) fn comm_init_rank_config(
    comm: *mut NcclComm,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *mut Config,
) -> NcclResult {
    let (Ok(ranks), Ok(rank)) = (usize::try_from(ranks), usize::try_from(rank)) else {
        return NcclResult::INVALID_ARGUMENT;
    };
    let mut state = state();
    // SAFETY: the caller's pointer is valid.
    if unsafe { (*config).blocking } != 0 {
        return state.violation("a blocking communicator");
    }
    let mut context = CUcontext::NULL;
    let Some(driver) = &state.driver else {
        return state.violation("no driver is set");
    };
    // SAFETY: `context` outlives the call.
    unsafe { (driver.ctx_get_current)(&mut context) };
    if context == CUcontext::NULL {
        return state.violation("no context is current");
    }
    let fault = state.fault(rank, "ncclCommInitRankConfig");
    let world = state.worlds.entry(id.0).or_default();
    world.members.resize(ranks.max(world.members.len()), None);
    if rank >= ranks || world.members[rank].is_some() || world.members.len() != ranks {
        return state.violation("a rank that another communicator has");
    }
    state.ids += 1;
    let key = 0x1000 + state.ids as usize * 16;
    state.worlds.entry(id.0).or_default().members[rank] = Some(key);
    let new = Comm {
        world: id.0,
        rank,
        context,
        open: 0,
        stream: None,
        error: None,
        finalized: false,
        stuck: false,
    };
    state.comms.insert(key, new);
    drop(state);
    if let Some(code) = suffer(fault, key) {
        self::state().remove(key);
        return code;
    }
    // SAFETY: the caller's pointer is valid.
    unsafe { comm.write(NcclComm(std::ptr::without_provenance_mut(key))) };
    NcclResult::IN_PROGRESS
}

pub(crate) fn comm_get_async_error(comm: NcclComm, result: *mut NcclResult) -> NcclResult {
    let mut state = state();
    let key = comm.0.addr();
    if !state.comms.contains_key(&key) {
        return state.violation("ncclCommGetAsyncError: no such communicator");
    }
    // SAFETY: the caller's pointer is valid.
    unsafe { result.write(state.progress(key)) };
    NcclResult::SUCCESS
}

pub(crate) fn comm_finalize(comm: NcclComm) -> NcclResult {
    let mut state = state();
    let key = match state.usable(comm, "ncclCommFinalize") {
        Ok(key) => key,
        Err(code) => return code,
    };
    let Comm { world, rank, .. } = state.comms[&key];
    let fault = state.fault(rank, "ncclCommFinalize");
    if let Some(comm) = state.comms.get_mut(&key) {
        comm.finalized = true;
    }
    state.worlds.entry(world).or_default().finalized += 1;
    drop(state);
    suffer(fault, key).unwrap_or(NcclResult::IN_PROGRESS)
}

pub(crate) fn comm_destroy(comm: NcclComm) -> NcclResult {
    let mut state = state();
    match state.usable(comm, "ncclCommDestroy") {
        Ok(key) if state.comms[&key].finalized => {
            state.comms.remove(&key);
            NcclResult::SUCCESS
        }
        Ok(_) => state.violation("ncclCommDestroy before ncclCommFinalize"),
        Err(code) => code,
    }
}

pub(crate) fn comm_abort(comm: NcclComm) -> NcclResult {
    let key = comm.0.addr();
    let mut state = state();
    let Some(rank) = state.comms.get(&key).map(|comm| comm.rank) else {
        return state.violation("ncclCommAbort: no such communicator");
    };
    let fault = state.fault(rank, "ncclCommAbort");
    drop(state);
    let code = suffer(fault, key);
    self::state().remove(key);
    code.unwrap_or(NcclResult::SUCCESS)
}

pub(crate) fn group_start() -> NcclResult {
    GROUP.with_borrow_mut(|group| match group {
        Some(_) => state().violation("a group in a group"),
        None => {
            *group = Some(Vec::new());
            NcclResult::SUCCESS
        }
    })
}

pub(crate) fn group_end() -> NcclResult {
    let Some(group) = GROUP.take() else {
        return state().violation("ncclGroupEnd without ncclGroupStart");
    };
    let Some(key) = group.first().map(|(.., message)| message.comm) else {
        return NcclResult::SUCCESS;
    };
    let mut state = state();
    if let Err(code) = state.usable(
        NcclComm(std::ptr::without_provenance_mut(key)),
        "ncclGroupEnd",
    ) {
        return code;
    }
    let rank = state.comms[&key].rank;
    let fault = state.fault(rank, "ncclGroupEnd");
    drop(state);
    if let Some(code) = suffer(fault, key) {
        return code;
    }
    self::state().exchange(group);
    NcclResult::IN_PROGRESS
}

fn message(
    sends: bool,
    address: u64,
    bytes: usize,
    element: c_int,
    peer: c_int,
    comm: NcclComm,
    stream: CUstream,
) -> NcclResult {
    let symbol = if sends { "ncclSend" } else { "ncclRecv" };
    let mut state = state();
    let key = match state.usable(comm, symbol) {
        Ok(key) => key,
        Err(code) => return code,
    };
    let Comm { world, rank, .. } = state.comms[&key];
    let ranks = state.worlds[&world].members.len();
    let Some(peer) = usize::try_from(peer).ok().filter(|peer| *peer < ranks) else {
        return state.violation(format!("{symbol}: no such peer"));
    };
    if element != NCCL_UINT8 || bytes == 0 || peer == rank {
        return state.violation(format!("{symbol}: not bytes for another rank"));
    }
    if let Some(Fault::Code(code)) = state.fault(rank, symbol) {
        return NcclResult(code);
    }
    let message = Message {
        comm: key,
        address,
        bytes,
        stream,
    };
    GROUP.with_borrow_mut(|group| match group {
        Some(group) => {
            group.push((sends, peer, message));
            NcclResult::SUCCESS
        }
        None => state.violation(format!("{symbol} outside of a group")),
    })
}

pub(crate) fn send(
    from: *const c_void,
    count: usize,
    element: c_int,
    peer: c_int,
    comm: NcclComm,
    stream: CUstream,
) -> NcclResult {
    message(true, from.addr() as u64, count, element, peer, comm, stream)
}

pub(crate) fn recv(
    to: *mut c_void,
    count: usize,
    element: c_int,
    peer: c_int,
    comm: NcclComm,
    stream: CUstream,
) -> NcclResult {
    message(false, to.addr() as u64, count, element, peer, comm, stream)
}
