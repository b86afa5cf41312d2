//! The functions and their types.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use warptile_cuda_sys::CUstream;

use crate::load::{LoadError, Version};

/// The answer of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct NcclResult(pub c_uint);

impl NcclResult {
    /// Done.
    pub const SUCCESS: Self = Self(0);
    /// A call of CUDA failed.
    pub const UNHANDLED_CUDA_ERROR: Self = Self(1);
    /// A call of the system failed.
    pub const SYSTEM_ERROR: Self = Self(2);
    /// A fault in NCCL, or memory was overwritten.
    pub const INTERNAL_ERROR: Self = Self(3);
    /// An argument is wrong.
    pub const INVALID_ARGUMENT: Self = Self(4);
    /// The call is wrong here.
    pub const INVALID_USAGE: Self = Self(5);
    /// The network failed, or another rank did.
    pub const REMOTE_ERROR: Self = Self(6);
    /// A non-blocking communicator is not done yet.
    pub const IN_PROGRESS: Self = Self(7);
}

/// A communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct NcclComm(pub *mut c_void);

impl NcclComm {
    /// None.
    pub const NULL: Self = Self(std::ptr::null_mut());
}

// SAFETY: a handle, which NCCL takes on every thread.
unsafe impl Send for NcclComm {}

/// The bytes by which the ranks of a communicator find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// Settings of a communicator: those of [`REQUIRED_VERSION`](crate::REQUIRED_VERSION), which later versions take, too.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    /// 0 if calls return before they are done.
    pub blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    /// The structure's end, where a later version has a field that it does not read by this version.
    unused: c_int,
}

impl Default for Config {
    fn default() -> Self {
        /// NCCL's value for a field that is not set.
        const UNSET: c_int = c_int::MIN;
        Config {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: crate::REQUIRED_VERSION.0,
            blocking: UNSET,
            cga_cluster_size: UNSET,
            min_ctas: UNSET,
            max_ctas: UNSET,
            net_name: std::ptr::null(),
            split_share: UNSET,
            unused: UNSET,
        }
    }
}

/// The type of elements that are bytes.
pub const NCCL_UINT8: c_int = 1;

/// Every function, once: field, exported name, arguments. Calls the given macro with them.
#[macro_export]
macro_rules! nccl_api {
    ($with:ident) => {
        $with! {
            get_unique_id = ncclGetUniqueId(id: *mut UniqueId);
            comm_init_rank_config = ncclCommInitRankConfig(
                comm: *mut NcclComm,
                ranks: c_int,
                id: UniqueId,
                rank: c_int,
                config: *mut Config
            );
            comm_get_async_error = ncclCommGetAsyncError(comm: NcclComm, result: *mut NcclResult);
            comm_finalize = ncclCommFinalize(comm: NcclComm);
            comm_destroy = ncclCommDestroy(comm: NcclComm);
            comm_abort = ncclCommAbort(comm: NcclComm);
            group_start = ncclGroupStart();
            group_end = ncclGroupEnd();
            send = ncclSend(
                from: *const c_void,
                count: usize,
                element: c_int,
                peer: c_int,
                comm: NcclComm,
                stream: CUstream
            );
            recv = ncclRecv(
                to: *mut c_void,
                count: usize,
                element: c_int,
                peer: c_int,
                comm: NcclComm,
                stream: CUstream
            );
        }
    };
}

type GetErrorString = unsafe extern "C" fn(NcclResult) -> *const c_char;
type GetLastError = unsafe extern "C" fn(NcclComm) -> *const c_char;

/// Looks up a function.
///
/// # Safety
/// The library's export has the type `F`.
pub(crate) unsafe fn look_up<F: Copy>(
    library: &libloading::Library,
    path: &Path,
    symbol: &'static str,
) -> Result<F, LoadError> {
    // SAFETY: the caller vouches for the type.
    match unsafe { library.get::<F>(symbol) } {
        Ok(function) => Ok(*function),
        Err(source) => Err(LoadError::MissingSymbol {
            symbol,
            library: path.to_owned(),
            source: Arc::new(source),
        }),
    }
}

macro_rules! declare {
    ($($name:ident = $symbol:ident($($argument:ident: $type:ty),*);)*) => {
        /// NCCL's functions, taken from one library. See NVIDIA's documentation for what each does and demands; all of them are `unsafe`
        /// to call.
        #[derive(Debug, Clone)]
        #[non_exhaustive]
        pub struct NcclApi {
            library: PathBuf,
            version: Version,
            get_error_string: GetErrorString,
            get_last_error: GetLastError,
            $(
                #[doc = concat!("`", stringify!($symbol), "`.")]
                pub $name: unsafe extern "C" fn($($argument: $type),*) -> NcclResult,
            )*
        }

        impl NcclApi {
            /// Fills the table.
            ///
            /// # Safety
            /// The library's exports have the declared signatures, and it is never unloaded.
            pub(crate) unsafe fn resolve(
                library: &libloading::Library,
                path: &Path,
                version: Version,
            ) -> Result<NcclApi, LoadError> {
                // SAFETY: the caller vouches for the signatures.
                unsafe {
                    Ok(NcclApi {
                        library: path.to_owned(),
                        version,
                        get_error_string: look_up(library, path, "ncclGetErrorString")?,
                        get_last_error: look_up(library, path, "ncclGetLastError")?,
                        $($name: look_up(library, path, stringify!($symbol))?,)*
                    })
                }
            }
        }
    };
}

nccl_api!(declare);

impl NcclApi {
    /// The library that the functions came from, as it was named to the loader.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// NCCL's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// NCCL's words for an answer, and those on the last error of this process, if it has some.
    pub fn explain(&self, code: NcclResult) -> String {
        // SAFETY: both functions take all values, and return null or a string that stays until the next error.
        let texts = unsafe {
            [
                (self.get_error_string)(code),
                (self.get_last_error)(NcclComm::NULL),
            ]
            .map(|text| match text.is_null() {
                true => String::new(),
                false => CStr::from_ptr(text).to_string_lossy().trim().to_owned(),
            })
        };
        let [text, last] = texts;
        match last.is_empty() {
            true => text,
            false => format!("{text}; last error: {last}"),
        }
    }
}
