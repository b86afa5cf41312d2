//! Everything the stand-in driver knows, behind one lock, and the way into it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use warptile_cuda_sys::{CUcontext, CUdevice, CUresult};

use crate::capture::Capture;
use crate::control::{FakeLaunch, Stalled};
use crate::event::Event;
use crate::graph::Exec;
use crate::memory::{Allocation, Identity, Pool};
use crate::module::{Function, Module};
use crate::queue::Op;
use crate::stream::{Key, Stream};
use crate::user_object::UserObject;

/// The configuration of the simulated machine.
pub(crate) struct Config {
    pub(crate) version: i32,
    pub(crate) stub: bool,
    pub(crate) devices: i32,
    pub(crate) compute_capability: (i32, i32),
    pub(crate) memory: usize,
    pub(crate) memory_pools: bool,
    /// Clusters that a device can hold at once.
    pub(crate) clusters: i32,
    /// The work that no query advances.
    pub(crate) stalled: Stalled,
}

/// A failure that is to happen.
pub(crate) struct Fault {
    /// Which function; none for whichever comes.
    pub(crate) symbol: Option<String>,
    /// How many calls of it to let pass, this one included.
    pub(crate) calls: u64,
    pub(crate) code: CUresult,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) config: Config,
    /// How often each function was called, not counting those about errors.
    pub(crate) calls: HashMap<&'static str, u64>,
    pub(crate) fault: Option<Fault>,
    /// Functions that fail at every call, and how.
    pub(crate) broken: Option<(Vec<String>, CUresult)>,
    /// Name of the function that the last fault hit.
    pub(crate) hit: Option<&'static str>,
    /// True if the call under way will report an error in any case.
    pub(crate) failing: bool,
    /// The error that the next kernel to run will cause in the context.
    pub(crate) kernel_fault: Option<CUresult>,
    /// The context is lost: what every call returns from now on.
    pub(crate) lost: Option<CUresult>,
    pub(crate) violations: Vec<String>,
    pub(crate) next_id: usize,
    /// Microseconds that the operations have taken which have run: a millisecond each, except kernels whose time was given.
    pub(crate) clock: f64,
    /// Microseconds of kernels whose names begin so; the first that fits counts.
    pub(crate) kernel_times: Vec<(String, f64)>,
    /// Advances with every operation that is queued.
    pub(crate) queued: u64,
    pub(crate) retained: HashMap<CUdevice, usize>,
    pub(crate) streams: HashMap<Key, Stream>,
    /// Default streams, by context and thread; thread 0 stands for all.
    pub(crate) default_streams: HashMap<(CUcontext, usize), Key>,
    /// Which device's kernels can use which other device's memory.
    pub(crate) peers: HashSet<(CUdevice, CUdevice)>,
    pub(crate) events: HashMap<usize, Event>,
    pub(crate) pools: HashMap<usize, Pool>,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    /// Where device memory was that is no more: its end and what it was.
    pub(crate) freed: BTreeMap<u64, (u64, Identity)>,
    /// Device allocations that were left to the end of their context.
    pub(crate) reclaimed: usize,
    pub(crate) pinned: BTreeMap<u64, Allocation>,
    pub(crate) modules: HashMap<usize, Module>,
    pub(crate) functions: HashMap<usize, Function>,
    pub(crate) captures: HashMap<usize, Capture>,
    pub(crate) graphs: HashMap<usize, Vec<Op>>,
    pub(crate) execs: HashMap<usize, Exec>,
    pub(crate) user_objects: HashMap<usize, UserObject>,
    /// The objects that each graph keeps, captured ones and those under way, ready to launch or not.
    pub(crate) kept: HashMap<usize, Vec<usize>>,
    pub(crate) launches: Vec<Arc<FakeLaunch>>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            version: 12_080,
            stub: false,
            devices: std::env::var(crate::DEVICES).map_or(1, |count| {
                count
                    .parse()
                    .unwrap_or_else(|_| panic!("{count}: not a number of devices"))
            }),
            compute_capability: (9, 0),
            memory: 1 << 30,
            memory_pools: true,
            clusters: 16,
            stalled: Stalled::Nothing,
        }
    }
}

impl State {
    pub(crate) fn new_id(&mut self) -> usize {
        // Far from small integers, which would be default streams and null.
        self.next_id += 1;
        0x1_0000 + self.next_id * 16
    }

    /// Notes misuse that a real driver would punish by luck only.
    pub(crate) fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    /// A handle that is not one, or no longer.
    pub(crate) fn bad_handle(&mut self, what: &str) -> CUresult {
        self.violation(format!(
            "{what} was used after it was destroyed, or never existed"
        ));
        CUresult::ERROR_INVALID_HANDLE
    }

    /// The context current on this thread; its absence is the caller's fault.
    pub(crate) fn current(&mut self) -> Result<CUcontext, CUresult> {
        let current = crate::device::current_context();
        if current.is_null() {
            self.violation("a call that needs a context was made without a current one".into());
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        Ok(current)
    }
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    Mutex::new(State {
        kernel_times: std::env::var(crate::KERNEL_TIMES)
            .map(|times| kernel_times(&times))
            .unwrap_or_default(),
        ..State::default()
    })
});

/// `NAME=MICROSECONDS,...`; a test that writes it otherwise is to fail.
fn kernel_times(text: &str) -> Vec<(String, f64)> {
    let time = |one: &str| {
        let (name, microseconds) = one.split_once('=')?;
        Some((name.to_owned(), microseconds.parse().ok()?))
    };
    text.split(',')
        .map(|one| time(one).unwrap_or_else(|| panic!("{one}: not NAME=MICROSECONDS")))
        .collect()
}

pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Functions that tell of errors and of the driver; they work in every state.
const INFORMATION: &[&str] = &["cuGetErrorName", "cuGetErrorString", "cuDriverGetVersion"];

/// Returns true if the function gives something back. Such a function does so even when it reports an
/// error, which is then that of earlier work.
fn gives_back(symbol: &str) -> bool {
    [
        "Destroy",
        "Free",
        "Unload",
        "Release",
        "EndCapture",
        "PopCurrent",
    ]
    .iter()
    .any(|word| symbol.contains(word))
}

/// Runs the implementation of an export, unless it is to fail.
pub(crate) fn entered(symbol: &'static str, work: impl FnOnce(&mut State) -> CUresult) -> CUresult {
    let mut state = state();
    let state = &mut *state;
    if state.config.stub {
        return CUresult::ERROR_STUB_LIBRARY;
    }
    if INFORMATION.contains(&symbol) {
        return work(state);
    }
    *state.calls.entry(symbol).or_default() += 1;
    let broken = state.broken.as_ref().filter(|(symbols, _)| {
        let is_it = |broken: &String| broken == symbol;
        symbols.iter().any(is_it)
    });
    let broken = broken.map(|(_, code)| *code);
    let fault = fault_for(state, symbol).or(broken).or(state.lost);
    match fault {
        Some(code) if gives_back(symbol) => {
            state.failing = true;
            let _ = work(state);
            state.failing = false;
            code
        }
        Some(code) => code,
        None => work(state),
    }
}

fn fault_for(state: &mut State, symbol: &'static str) -> Option<CUresult> {
    let fault = state.fault.as_mut()?;
    if fault
        .symbol
        .as_deref()
        .is_some_and(|wanted| wanted != symbol)
    {
        return None;
    }
    fault.calls = fault.calls.saturating_sub(1);
    if fault.calls > 0 {
        return None;
    }
    let code = fault.code;
    state.fault = None;
    state.hit = Some(symbol);
    Some(code)
}
