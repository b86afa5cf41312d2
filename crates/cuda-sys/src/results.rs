//! `CUresult` and the codes that have a name.

use std::fmt;

/// Declares the result type and its named codes, so that a name is written once.
macro_rules! results {
    ($($name:ident = $value:literal,)*) => {
        /// The result code of every driver function. Codes without a name here are legal: a newer driver may return
        /// them.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct CUresult(pub u32);

        impl CUresult {
            $(
                #[doc = concat!("`CUDA_", stringify!($name), "`")]
                pub const $name: CUresult = CUresult($value);
            )*

            /// The header's name of the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(concat!("CUDA_", stringify!($name))),)*
                    _ => None,
                }
            }
        }
    };
}

impl fmt::Debug for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "CUresult({})", self.0),
        }
    }
}

results! {
    SUCCESS = 0,
    ERROR_INVALID_VALUE = 1,
    ERROR_OUT_OF_MEMORY = 2,
    ERROR_NOT_INITIALIZED = 3,
    ERROR_DEINITIALIZED = 4,
    ERROR_PROFILER_DISABLED = 5,
    ERROR_PROFILER_NOT_INITIALIZED = 6,
    ERROR_PROFILER_ALREADY_STARTED = 7,
    ERROR_PROFILER_ALREADY_STOPPED = 8,
    ERROR_STUB_LIBRARY = 34,
    ERROR_DEVICE_UNAVAILABLE = 46,
    ERROR_NO_DEVICE = 100,
    ERROR_INVALID_DEVICE = 101,
    ERROR_DEVICE_NOT_LICENSED = 102,
    ERROR_INVALID_IMAGE = 200,
    ERROR_INVALID_CONTEXT = 201,
    ERROR_CONTEXT_ALREADY_CURRENT = 202,
    ERROR_MAP_FAILED = 205,
    ERROR_UNMAP_FAILED = 206,
    ERROR_ARRAY_IS_MAPPED = 207,
    ERROR_ALREADY_MAPPED = 208,
    ERROR_NO_BINARY_FOR_GPU = 209,
    ERROR_ALREADY_ACQUIRED = 210,
    ERROR_NOT_MAPPED = 211,
    ERROR_NOT_MAPPED_AS_ARRAY = 212,
    ERROR_NOT_MAPPED_AS_POINTER = 213,
    ERROR_ECC_UNCORRECTABLE = 214,
    ERROR_UNSUPPORTED_LIMIT = 215,
    ERROR_CONTEXT_ALREADY_IN_USE = 216,
    ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    ERROR_INVALID_PTX = 218,
    ERROR_INVALID_GRAPHICS_CONTEXT = 219,
    ERROR_NVLINK_UNCORRECTABLE = 220,
    ERROR_JIT_COMPILER_NOT_FOUND = 221,
    ERROR_UNSUPPORTED_PTX_VERSION = 222,
    ERROR_JIT_COMPILATION_DISABLED = 223,
    ERROR_UNSUPPORTED_EXEC_AFFINITY = 224,
    ERROR_UNSUPPORTED_DEVSIDE_SYNC = 225,
    ERROR_CONTAINED = 226,
    ERROR_INVALID_SOURCE = 300,
    ERROR_FILE_NOT_FOUND = 301,
    ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302,
    ERROR_SHARED_OBJECT_INIT_FAILED = 303,
    ERROR_OPERATING_SYSTEM = 304,
    ERROR_INVALID_HANDLE = 400,
    ERROR_ILLEGAL_STATE = 401,
    ERROR_LOSSY_QUERY = 402,
    ERROR_NOT_FOUND = 500,
    ERROR_NOT_READY = 600,
    ERROR_ILLEGAL_ADDRESS = 700,
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    ERROR_LAUNCH_TIMEOUT = 702,
    ERROR_LAUNCH_INCOMPATIBLE_TEXTURING = 703,
    ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    ERROR_CONTEXT_IS_DESTROYED = 709,
    ERROR_ASSERT = 710,
    ERROR_TOO_MANY_PEERS = 711,
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    ERROR_HARDWARE_STACK_ERROR = 714,
    ERROR_ILLEGAL_INSTRUCTION = 715,
    ERROR_MISALIGNED_ADDRESS = 716,
    ERROR_INVALID_ADDRESS_SPACE = 717,
    ERROR_INVALID_PC = 718,
    ERROR_LAUNCH_FAILED = 719,
    ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    ERROR_TENSOR_MEMORY_LEAK = 721,
    ERROR_NOT_PERMITTED = 800,
    ERROR_NOT_SUPPORTED = 801,
    ERROR_SYSTEM_NOT_READY = 802,
    ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
    ERROR_MPS_CONNECTION_FAILED = 805,
    ERROR_MPS_RPC_FAILURE = 806,
    ERROR_MPS_SERVER_NOT_READY = 807,
    ERROR_MPS_MAX_CLIENTS_REACHED = 808,
    ERROR_MPS_MAX_CONNECTIONS_REACHED = 809,
    ERROR_MPS_CLIENT_TERMINATED = 810,
    ERROR_CDP_NOT_SUPPORTED = 811,
    ERROR_CDP_VERSION_MISMATCH = 812,
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    ERROR_STREAM_CAPTURE_MERGE = 902,
    ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    ERROR_STREAM_CAPTURE_UNJOINED = 904,
    ERROR_STREAM_CAPTURE_ISOLATION = 905,
    ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    ERROR_CAPTURED_EVENT = 907,
    ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    ERROR_TIMEOUT = 909,
    ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
    ERROR_EXTERNAL_DEVICE = 911,
    ERROR_INVALID_CLUSTER_SIZE = 912,
    ERROR_FUNCTION_NOT_LOADED = 913,
    ERROR_INVALID_RESOURCE_TYPE = 914,
    ERROR_INVALID_RESOURCE_CONFIGURATION = 915,
    ERROR_KEY_ROTATION = 916,
    ERROR_UNKNOWN = 999,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_code_is_legal_and_prints_its_number() {
        assert_eq!(CUresult(54_321).name(), None);
        assert_eq!(format!("{:?}", CUresult(54_321)), "CUresult(54321)");
        assert_eq!(
            format!("{:?}", CUresult::ERROR_OUT_OF_MEMORY),
            "CUDA_ERROR_OUT_OF_MEMORY (2)"
        );
    }
}
