//! How tests steer the stand-in: exported `fake_*` functions, and their callers in [`FakeDriver`].

use std::ffi::{CStr, c_char, c_int};

use warptile_cuda_sys::CUresult;

use crate::handle::FakeDriver;
use crate::state::{Fault, State, state};
use crate::stream::StreamKind;

/// Longest parameter block that is recorded; the hardware allows 4 KiB, 32 KiB on newer devices.
const MAX_PARAMS: usize = 4096;
const MAX_NAME: usize = 256;

/// A kernel that has run.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FakeLaunch {
    name: [u8; MAX_NAME],
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of a cluster; zeros where the launch has none.
    pub cluster: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// Not 0 for a cooperative launch.
    pub cooperative: u32,
    /// Not 0 for a launch that may begin before its predecessor in the stream has ended.
    pub programmatic: u32,
    /// The stream's handle.
    pub stream: usize,
    params_len: usize,
    params: [u8; MAX_PARAMS],
}

impl FakeLaunch {
    pub(crate) fn new(grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> FakeLaunch {
        FakeLaunch {
            name: [0; MAX_NAME],
            grid,
            block,
            cluster: [0; 3],
            shared_bytes,
            cooperative: 0,
            programmatic: 0,
            stream: 0,
            params_len: 0,
            params: [0; MAX_PARAMS],
        }
    }

    pub(crate) fn set_name(&mut self, name: &str) {
        let len = name.len().min(MAX_NAME - 1);
        self.name[..len].copy_from_slice(&name.as_bytes()[..len]);
    }

    pub(crate) fn set_params(&mut self, params: &[u8]) {
        self.params_len = params.len().min(MAX_PARAMS);
        self.params[..self.params_len].copy_from_slice(&params[..self.params_len]);
    }

    /// The kernel's entry name.
    pub fn name(&self) -> String {
        let name = self.name.split(|&byte| byte == 0).next();
        String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
    }

    /// The parameter block as it was at the launch.
    pub fn params(&self) -> &[u8] {
        &self.params[..self.params_len]
    }
}

impl std::fmt::Debug for FakeLaunch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeLaunch")
            .field("name", &self.name())
            .field("grid", &self.grid)
            .field("block", &self.block)
            .field("shared_bytes", &self.shared_bytes)
            .field("params", &self.params())
            .finish_non_exhaustive()
    }
}

/// The kinds of objects that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    /// Retains of primary contexts.
    Contexts = 0,
    /// Streams.
    Streams = 1,
    /// Events.
    Events = 2,
    /// Device allocations.
    DeviceMemory = 3,
    /// Pinned host allocations.
    PinnedMemory = 4,
    /// Modules.
    Modules = 5,
    /// Captured graphs.
    Graphs = 6,
    /// Instantiated graphs.
    GraphExecs = 7,
    /// Memory pools.
    MemoryPools = 8,
    /// User objects.
    UserObjects = 9,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 10] = [
        Kind::Contexts,
        Kind::Streams,
        Kind::Events,
        Kind::DeviceMemory,
        Kind::PinnedMemory,
        Kind::Modules,
        Kind::Graphs,
        Kind::GraphExecs,
        Kind::MemoryPools,
        Kind::UserObjects,
    ];
}

/// The work that queries of streams and events find unfinished, and everything that waits for it. A synchronization still does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Stalled {
    /// Every query is progress.
    Nothing = 0,
    /// Kernels: a GPU that is busy.
    Kernels = 1,
    /// Copies between device memory, such as messages of the stand-in for NCCL.
    Copies = 2,
}

impl Stalled {
    fn of(number: c_int) -> Stalled {
        match number {
            1 => Stalled::Kernels,
            2 => Stalled::Copies,
            _ => Stalled::Nothing,
        }
    }
}

fn live(state: &State, kind: c_int) -> usize {
    match kind {
        0 => state.retained.values().sum(),
        1 => state
            .streams
            .values()
            .filter(|stream| stream.kind == StreamKind::Created && !stream.destroyed)
            .count(),
        2 => state
            .events
            .values()
            .filter(|event| !event.destroyed)
            .count(),
        3 => state.allocations.values().filter(|a| !a.given_back).count(),
        4 => state.pinned.len(),
        5 => state.modules.len(),
        6 => state.graphs.len(),
        7 => state.execs.len(),
        8 => state.pools.len(),
        9 => state.user_objects.len(),
        _ => 0,
    }
}

/// Declares the control functions: an export each, and a method of [`FakeDriver`] that calls it in
/// the library it has opened.
macro_rules! controls {
    ($($(#[$doc:meta])* fn $name:ident = $symbol:ident($($argument:ident: $type:ty),*) -> $result:ty {
        |$state:ident| $body:expr
    })*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Pointers are valid or null.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> $result {
                let $state = &mut *state();
                $body
            }
        )*

        impl FakeDriver {
            $(
                pub(crate) fn $name(&self, $($argument: $type),*) -> $result {
                    let control = self.control::<unsafe extern "C" fn($($type),*) -> $result>(
                        stringify!($symbol),
                    );
                    // SAFETY: the symbol has this signature, being declared by the same row; the
                    // methods of `FakeDriver` pass valid pointers only.
                    unsafe { control($($argument),*) }
                }
            )*
        }
    };
}

controls! {
    /// Sets the CUDA version, 1000 * major + 10 * minor.
    fn raw_set_version = fake_set_version(version: c_int) -> () {
        |state| state.config.version = version
    }
    /// Makes every function answer as the toolkit's stub does.
    fn raw_set_stub = fake_set_stub(stub: c_int) -> () {
        |state| state.config.stub = stub != 0
    }
    /// Sets how many devices there are.
    fn raw_set_device_count = fake_set_device_count(count: c_int) -> () {
        |state| state.config.devices = count
    }
    /// Sets the devices' compute capability.
    fn raw_set_compute_capability = fake_set_compute_capability(major: c_int, minor: c_int) -> () {
        |state| state.config.compute_capability = (major, minor)
    }
    /// Sets the memory of all devices together, in bytes.
    fn raw_set_memory = fake_set_memory(bytes: usize) -> () {
        |state| state.config.memory = bytes
    }
    /// Sets whether devices have memory pools.
    fn raw_set_memory_pools = fake_set_memory_pools(pools: c_int) -> () {
        |state| state.config.memory_pools = pools != 0
    }
    /// Sets how many clusters a device can hold at once.
    fn raw_set_clusters = fake_set_clusters(clusters: c_int) -> () {
        |state| state.config.clusters = clusters
    }
    /// Sets the work that no query advances, a [`Stalled`].
    fn raw_set_stalled = fake_set_stalled(stalled: c_int) -> () {
        |state| state.config.stalled = Stalled::of(stalled)
    }
    /// Makes the n-th call from now of the function, or of any if null, return the code.
    fn raw_fail = fake_fail(symbol: *const c_char, nth: u64, code: u32) -> () {
        |state| {
            state.hit = None;
            state.fault = (nth > 0).then_some(Fault {
                symbol: read_text(symbol),
                calls: nth,
                code: CUresult(code),
            });
        }
    }
    /// Makes every call of the functions, whose names a space separates, return the code.
    fn raw_fail_always = fake_fail_always(symbols: *const c_char, code: u32) -> () {
        |state| {
            let symbols = read_text(symbols).unwrap_or_default();
            let symbols: Vec<String> = symbols.split_whitespace().map(str::to_owned).collect();
            state.broken = (!symbols.is_empty()).then_some((symbols, CUresult(code)));
        }
    }
    /// Returns 1 if the fault set last has happened, else 0.
    fn raw_fault_happened = fake_fault_happened() -> c_int {
        |state| c_int::from(state.hit.is_some())
    }
    /// Writes the name of the function that the fault hit, with its NUL; empty if none.
    fn raw_fault_symbol = fake_fault_symbol(text: *mut c_char, len: usize) -> () {
        |state| write_text(state.hit.unwrap_or_default(), text, len)
    }
    /// Makes the next kernel that runs lose the context with this code.
    fn raw_fail_kernel = fake_fail_kernel(code: u32) -> () {
        |state| state.kernel_fault = Some(CUresult(code))
    }
    /// How many calls there have been of the function, or of any if null, not counting those about errors.
    fn raw_calls = fake_calls(symbol: *const c_char) -> u64 {
        |state| match read_text(symbol) {
            Some(symbol) => state.calls.get(symbol.as_str()).copied().unwrap_or(0),
            None => state.calls.values().sum(),
        }
    }
    /// How many objects of a [`Kind`] there are.
    fn raw_live = fake_live(kind: c_int) -> usize {
        |state| live(state, kind)
    }
    /// How many kernels have run.
    fn raw_launch_count = fake_launch_count() -> usize {
        |state| state.launches.len()
    }
    /// Copies out a kernel that has run; returns 0 if there is none of this number.
    fn raw_launch = fake_launch(index: usize, launch: *mut FakeLaunch) -> c_int {
        |state| match state.launches.get(index) {
            Some(found) => {
                // SAFETY: valid by the contract.
                unsafe { launch.write(**found) };
                1
            }
            None => 0,
        }
    }
    /// Forgets the kernels that have run.
    fn raw_forget_launches = fake_forget_launches() -> () {
        |state| state.launches.clear()
    }
    /// How many violations there have been.
    fn raw_violation_count = fake_violation_count() -> usize {
        |state| state.violations.len()
    }
    /// Writes a violation's text, with its NUL.
    fn raw_violation = fake_violation(index: usize, text: *mut c_char, len: usize) -> () {
        |state| write_text(state.violations.get(index).map_or("", String::as_str), text, len)
    }
    /// How many device allocations were left to the end of their context.
    fn raw_reclaimed = fake_reclaimed() -> usize {
        |state| state.reclaimed
    }
    /// How many operations are queued and have not run.
    fn raw_pending = fake_pending() -> usize {
        |state| state.streams.values().map(|stream| stream.ops.len()).sum()
    }
    /// How many of these are copies that wait for kernels among these.
    fn raw_copies_behind_kernels = fake_copies_behind_kernels() -> usize {
        |state| state.copies_behind_kernels()
    }
}

/// Reads a name, if there is one.
fn read_text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the callers' contract: not null, so a C string.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

fn write_text(text: &str, to: *mut c_char, len: usize) {
    // SAFETY: the callers' contract: `to` is valid for `len` bytes.
    let to = unsafe { crate::argument::Out::new(to) };
    if len > 0 {
        to.set_text(text, len);
    }
}
