//! Every function of NCCL's table, exported under its own name, and the functions by which tests steer.

use std::ffi::{CStr, c_char, c_int, c_void};

use warptile_cuda_sys::CUstream;
use warptile_nccl_sys::{Config, NcclComm, NcclResult, UniqueId, Version, nccl_api};

use crate::handle::Fault;
use crate::state::{self, Pending, state};

macro_rules! export {
    ($($name:ident = $symbol:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($symbol), "`, as NCCL documents it.")]
        ///
        /// # Safety
        /// As NCCL documents it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($argument: $type),*) -> NcclResult {
            state::$name($($argument),*)
        }
    )*};
}

nccl_api!(export);

/// `ncclGetVersion`, as NCCL documents it.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> NcclResult {
    // SAFETY: the caller's pointer is valid.
    unsafe { version.write(state().version.0 as c_int) };
    NcclResult::SUCCESS
}

/// `ncclGetErrorString`, as NCCL documents it.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: NcclResult) -> *const c_char {
    let text = match code {
        NcclResult::SUCCESS => c"no error",
        NcclResult::REMOTE_ERROR => c"remote process exited or there was a network error",
        NcclResult::IN_PROGRESS => c"NCCL operation in progress",
        _ => c"an error of the stand-in",
    };
    text.as_ptr()
}

/// `ncclGetLastError`, as NCCL documents it.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: NcclComm) -> *const c_char {
    c"".as_ptr()
}

/// Sets the version.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nccl_set_version(version: u32) {
    state().version = Version(version);
}

/// Sets the stand-in driver by its path.
///
/// # Safety
/// The path is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_nccl_set_driver(path: *const c_char) {
    // SAFETY: the caller's path is a string, and the library a stand-in with the driver's signatures.
    let driver = unsafe { warptile_cuda_sys::load_from(&*CStr::from_ptr(path).to_string_lossy()) };
    state().driver = driver.ok();
}

/// Makes the `nth` call from now of a function by a rank fail.
///
/// # Safety
/// The name is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_nccl_fault(
    rank: usize,
    symbol: *const c_char,
    nth: u64,
    kind: u32,
    value: u64,
) {
    // SAFETY: the caller's name is a string.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    let pending = Pending {
        rank,
        symbol: symbol.to_string_lossy().into_owned(),
        nth: nth.max(1),
        fault: Fault::of(kind, value),
    };
    state().faults.push(pending);
}

/// Takes back all faults that have not happened.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nccl_forget_faults() {
    state().faults.clear();
}

/// How many communicators there are.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nccl_live() -> usize {
    state().live()
}

/// Writes the violations, with a NUL at the end.
///
/// # Safety
/// `text` is valid for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_nccl_violations(text: *mut c_char, len: usize) {
    let all = state().violations.join("; ");
    let bytes = &all.as_bytes()[..all.len().min(len - 1)];
    // SAFETY: there are `len` bytes.
    unsafe {
        text.cast::<u8>()
            .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        text.add(bytes.len()).write(0);
    }
}
