//! Initialisation, errors, devices and contexts.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::ManuallyDrop;

use warptile_cuda_sys::*;

use crate::argument::Out;
use crate::state::State;

thread_local! {
    /// Contexts pushed on this thread; the last one is current. Without a destructor, as those of other thread-locals may call the
    /// driver.
    static CURRENT: ManuallyDrop<RefCell<Vec<CUcontext>>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

pub(crate) fn current_context() -> CUcontext {
    CURRENT.with(|stack| stack.borrow().last().copied().unwrap_or(CUcontext::NULL))
}

/// The primary context's handle, recognisable in a debugger.
fn primary(device: CUdevice) -> CUcontext {
    CUcontext(std::ptr::without_provenance_mut(0xC000 + device as usize))
}

pub(crate) fn device_of(context: CUcontext) -> CUdevice {
    (context.0.addr() as i32) - 0xC000
}

fn known(state: &State, device: CUdevice) -> bool {
    (0..state.config.devices).contains(&device)
}

pub(crate) fn init(state: &mut State, _flags: c_uint) -> CUresult {
    if state.config.devices == 0 {
        return CUresult::ERROR_NO_DEVICE;
    }
    CUresult::SUCCESS
}

pub(crate) fn driver_get_version(state: &mut State, version: Out<c_int>) -> CUresult {
    version.set(state.config.version);
    CUresult::SUCCESS
}

/// A C string for a code's name; the crate's names are not NUL-terminated.
fn c_name(error: CUresult) -> Option<&'static CStr> {
    use std::collections::HashMap;
    use std::ffi::CString;
    use std::sync::{LazyLock, Mutex, PoisonError};
    static NAMES: LazyLock<Mutex<HashMap<u32, &'static CStr>>> = LazyLock::new(Mutex::default);
    let name = CString::new(error.name()?).ok()?;
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    Some(
        names
            .entry(error.0)
            .or_insert_with(|| Box::leak(name.into_boxed_c_str())),
    )
}

pub(crate) fn get_error_name(
    _state: &mut State,
    error: CUresult,
    name: Out<*const c_char>,
) -> CUresult {
    match c_name(error) {
        Some(text) => {
            name.set(text.as_ptr());
            CUresult::SUCCESS
        }
        None => CUresult::ERROR_INVALID_VALUE,
    }
}

pub(crate) fn get_error_string(
    _state: &mut State,
    error: CUresult,
    text: Out<*const c_char>,
) -> CUresult {
    let words = match error {
        CUresult::ERROR_OUT_OF_MEMORY => c"out of memory",
        CUresult::ERROR_ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        CUresult::ERROR_LAUNCH_FAILED => c"unspecified launch failure",
        _ if error.name().is_some() => c"as its name says",
        _ => return CUresult::ERROR_INVALID_VALUE,
    };
    text.set(words.as_ptr());
    CUresult::SUCCESS
}

pub(crate) fn device_get(state: &mut State, device: Out<CUdevice>, ordinal: c_int) -> CUresult {
    if !known(state, ordinal) {
        return CUresult::ERROR_INVALID_DEVICE;
    }
    device.set(ordinal);
    CUresult::SUCCESS
}

pub(crate) fn device_get_count(state: &mut State, count: Out<c_int>) -> CUresult {
    count.set(state.config.devices);
    CUresult::SUCCESS
}

pub(crate) fn device_get_name(
    _state: &mut State,
    name: Out<c_char>,
    len: c_int,
    device: CUdevice,
) -> CUresult {
    name.set_text(&format!("Fake GPU {device}"), len.max(0) as usize);
    CUresult::SUCCESS
}

pub(crate) fn device_get_attribute(
    state: &mut State,
    value: Out<c_int>,
    attribute: CUdeviceAttribute,
    device: CUdevice,
) -> CUresult {
    use CUdeviceAttribute as A;
    if !known(state, device) {
        return CUresult::ERROR_INVALID_DEVICE;
    }
    let (major, minor) = state.config.compute_capability;
    let hopper = i32::from(major >= 9);
    value.set(match attribute {
        A::MAX_THREADS_PER_BLOCK | A::MAX_BLOCK_DIM_X | A::MAX_BLOCK_DIM_Y => 1024,
        A::MAX_BLOCK_DIM_Z => 64,
        A::MAX_GRID_DIM_X => i32::MAX,
        A::MAX_GRID_DIM_Y | A::MAX_GRID_DIM_Z => 65_535,
        A::MAX_SHARED_MEMORY_PER_BLOCK => 49_152,
        A::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => match (major, minor) {
            (8, 0) => 166_912,
            (8 | 12, _) => 101_376,
            _ => 232_448,
        },
        A::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => 233_472,
        A::MAX_REGISTERS_PER_BLOCK | A::MAX_REGISTERS_PER_MULTIPROCESSOR => 65_536,
        A::MAX_THREADS_PER_MULTIPROCESSOR => 2048,
        A::WARP_SIZE => 32,
        A::MULTIPROCESSOR_COUNT => 132,
        A::CLOCK_RATE => 1_980_000,
        A::L2_CACHE_SIZE => 50 << 20,
        A::COMPUTE_CAPABILITY_MAJOR => major,
        A::COMPUTE_CAPABILITY_MINOR => minor,
        A::COOPERATIVE_LAUNCH | A::UNIFIED_ADDRESSING => 1,
        A::CLUSTER_LAUNCH | A::TENSOR_MAP_ACCESS_SUPPORTED => hopper,
        A::MEMORY_POOLS_SUPPORTED => i32::from(state.config.memory_pools),
        A::PCI_DEVICE_ID => device,
        attribute if attribute.name().is_some() => 0,
        _ => return CUresult::ERROR_INVALID_VALUE,
    });
    CUresult::SUCCESS
}

pub(crate) fn device_total_mem(
    state: &mut State,
    bytes: Out<usize>,
    _device: CUdevice,
) -> CUresult {
    bytes.set(state.config.memory);
    CUresult::SUCCESS
}

pub(crate) fn device_get_uuid(_state: &mut State, uuid: Out<CUuuid>, device: CUdevice) -> CUresult {
    uuid.set(CUuuid {
        bytes: [device as u8; 16],
    });
    CUresult::SUCCESS
}

pub(crate) fn device_get_pci_bus_id(
    _state: &mut State,
    text: Out<c_char>,
    len: c_int,
    device: CUdevice,
) -> CUresult {
    text.set_text(&format!("0000:{device:02x}:00.0"), len.max(0) as usize);
    CUresult::SUCCESS
}

pub(crate) fn device_can_access_peer(
    _state: &mut State,
    can: Out<c_int>,
    device: CUdevice,
    peer: CUdevice,
) -> CUresult {
    can.set(i32::from(device != peer));
    CUresult::SUCCESS
}

pub(crate) fn device_primary_ctx_retain(
    state: &mut State,
    context: Out<CUcontext>,
    device: CUdevice,
) -> CUresult {
    if !known(state, device) {
        return CUresult::ERROR_INVALID_DEVICE;
    }
    *state.retained.entry(device).or_default() += 1;
    context.set(primary(device));
    CUresult::SUCCESS
}

pub(crate) fn device_primary_ctx_release(state: &mut State, device: CUdevice) -> CUresult {
    match state.retained.get_mut(&device) {
        Some(count) if *count > 0 => {
            *count -= 1;
            if *count == 0 {
                state.end_context(primary(device));
            }
            CUresult::SUCCESS
        }
        _ => {
            state.violation(format!(
                "context {device} was released more often than retained"
            ));
            CUresult::ERROR_INVALID_CONTEXT
        }
    }
}

impl State {
    /// Ends a context with its default streams and unfreed memory. Everything else must be destroyed by its owner,
    /// and stays to be counted.
    fn end_context(&mut self, context: CUcontext) {
        self.run_all();
        let device = device_of(context);
        self.peers
            .retain(|(from, to)| *from != device && *to != device);
        let ended = |(of, _): &(CUcontext, usize)| *of == context;
        for (_, key) in self.default_streams.extract_if(|of, _| ended(of)) {
            self.streams.remove(&key);
        }
        self.reclaim(device);
    }
}

pub(crate) fn ctx_set_current(_state: &mut State, context: CUcontext) -> CUresult {
    CURRENT.with(|stack| {
        let mut stack = stack.borrow_mut();
        stack.pop();
        if !context.is_null() {
            stack.push(context);
        }
    });
    CUresult::SUCCESS
}

pub(crate) fn ctx_get_current(_state: &mut State, context: Out<CUcontext>) -> CUresult {
    context.set(current_context());
    CUresult::SUCCESS
}

pub(crate) fn ctx_push_current(state: &mut State, context: CUcontext) -> CUresult {
    if state
        .retained
        .get(&device_of(context))
        .is_none_or(|count| *count == 0)
    {
        return state.bad_handle("a context");
    }
    CURRENT.with(|stack| stack.borrow_mut().push(context));
    CUresult::SUCCESS
}

pub(crate) fn ctx_pop_current(state: &mut State, context: Out<CUcontext>) -> CUresult {
    match CURRENT.with(|stack| stack.borrow_mut().pop()) {
        Some(popped) => {
            context.set(popped);
            CUresult::SUCCESS
        }
        None => {
            state.violation("a context was popped that was not pushed".into());
            CUresult::ERROR_INVALID_CONTEXT
        }
    }
}

pub(crate) fn ctx_synchronize(state: &mut State) -> CUresult {
    let context = match state.current() {
        Ok(context) => context,
        Err(code) => return code,
    };
    if state.break_captures(context) {
        return CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    state.run_all();
    state.trim_pools();
    state.lost.unwrap_or(CUresult::SUCCESS)
}

pub(crate) fn ctx_get_stream_priority_range(
    _state: &mut State,
    least: Out<c_int>,
    greatest: Out<c_int>,
) -> CUresult {
    least.set(0);
    greatest.set(-5);
    CUresult::SUCCESS
}

pub(crate) fn ctx_enable_peer_access(
    state: &mut State,
    peer: CUcontext,
    _flags: c_uint,
) -> CUresult {
    match state.current() {
        Ok(current) if current == peer => CUresult::ERROR_INVALID_CONTEXT,
        Ok(current) => match state.peers.insert((device_of(current), device_of(peer))) {
            true => CUresult::SUCCESS,
            false => CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED,
        },
        Err(code) => code,
    }
}
