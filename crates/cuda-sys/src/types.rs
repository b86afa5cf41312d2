//! The types of the driver API: transparent integers, opaque handles and a few structures.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;

/// An address in device memory.
pub type CUdeviceptr = u64;

/// A device as the driver counts them.
pub type CUdevice = c_int;

/// Declares opaque handles.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// The null handle.
            pub const NULL: $name = $name(std::ptr::null_mut());

            /// Returns true if this is the null handle.
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        // SAFETY: a handle is a token that only the driver looks behind. Moving or copying one to
        // another thread touches nothing; every use goes through an unsafe function of the driver,
        // and those may be called from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above; a shared handle can only be copied.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// A context; here always a device's primary context.
    CUcontext;
    /// A stream. Null is the legacy default stream.
    CUstream;
    /// An event.
    CUevent;
    /// A loaded module.
    CUmodule;
    /// A kernel of a module; valid as long as the module is loaded.
    CUfunction;
    /// A captured graph.
    CUgraph;
    /// A node of a graph.
    CUgraphNode;
    /// A graph ready to launch.
    CUgraphExec;
    /// Something of a user's that graphs keep.
    CUuserObject;
    /// A CUDA array; only ever null here.
    CUarray;
    /// A pool that memory is allocated from in stream order.
    CUmemoryPool;
}

/// A function of the host's that the driver calls with the pointer it was given. It may call no function of the driver.
pub type CUhostFn = unsafe extern "system" fn(*mut c_void);

impl CUstream {
    /// `CU_STREAM_LEGACY`: the default stream that all threads share, which the null handle names too.
    pub const LEGACY: CUstream = CUstream(std::ptr::without_provenance_mut(0x1));
    /// `CU_STREAM_PER_THREAD`: the calling thread's default stream, so another stream on each thread.
    pub const PER_THREAD: CUstream = CUstream(std::ptr::without_provenance_mut(0x2));
}

/// Declares transparent integers with named constants, so that a name is written once.
macro_rules! integers {
    ($($(#[$doc:meta])* $name:ident($repr:ty), $prefix:literal { $($constant:ident = $value:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            $(
                #[doc = concat!("`", $prefix, stringify!($constant), "`")]
                pub const $constant: $name = $name($value);
            )*

            /// Every constant that has a name here.
            pub const NAMED: &[$name] = &[$($name($value),)*];

            /// The constant's name without the header's prefix.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($constant)),)*
                    _ => None,
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{}{name}", $prefix),
                    None => write!(f, "{}({})", stringify!($name), self.0),
                }
            }
        }
    )*};
}

integers! {
    /// The attributes that `cuDeviceGetAttribute` knows. What belongs to functions that are not in the table has no
    /// name here: textures, managed and virtual memory, other processes. Its number works as well.
    CUdeviceAttribute(u32), "CU_DEVICE_ATTRIBUTE_" {
        MAX_THREADS_PER_BLOCK = 1,
        MAX_BLOCK_DIM_X = 2,
        MAX_BLOCK_DIM_Y = 3,
        MAX_BLOCK_DIM_Z = 4,
        MAX_GRID_DIM_X = 5,
        MAX_GRID_DIM_Y = 6,
        MAX_GRID_DIM_Z = 7,
        MAX_SHARED_MEMORY_PER_BLOCK = 8,
        TOTAL_CONSTANT_MEMORY = 9,
        WARP_SIZE = 10,
        MAX_REGISTERS_PER_BLOCK = 12,
        CLOCK_RATE = 13,
        MULTIPROCESSOR_COUNT = 16,
        KERNEL_EXEC_TIMEOUT = 17,
        INTEGRATED = 18,
        COMPUTE_MODE = 20,
        CONCURRENT_KERNELS = 31,
        ECC_ENABLED = 32,
        PCI_BUS_ID = 33,
        PCI_DEVICE_ID = 34,
        TCC_DRIVER = 35,
        MEMORY_CLOCK_RATE = 36,
        GLOBAL_MEMORY_BUS_WIDTH = 37,
        L2_CACHE_SIZE = 38,
        MAX_THREADS_PER_MULTIPROCESSOR = 39,
        ASYNC_ENGINE_COUNT = 40,
        UNIFIED_ADDRESSING = 41,
        PCI_DOMAIN_ID = 50,
        COMPUTE_CAPABILITY_MAJOR = 75,
        COMPUTE_CAPABILITY_MINOR = 76,
        STREAM_PRIORITIES_SUPPORTED = 78,
        MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
        MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
        MULTI_GPU_BOARD = 84,
        COOPERATIVE_LAUNCH = 95,
        MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
        MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
        MAX_PERSISTING_L2_CACHE_SIZE = 108,
        RESERVED_SHARED_MEMORY_PER_BLOCK = 111,
        MEMORY_POOLS_SUPPORTED = 115,
        CLUSTER_LAUNCH = 120,
        TENSOR_MAP_ACCESS_SUPPORTED = 127,
        NUMA_CONFIG = 130,
        NUMA_ID = 131,
        MULTICAST_SUPPORTED = 132,
        MPS_ENABLED = 133,
        HOST_NUMA_ID = 134,
    }

    /// The attributes that `cuFuncGetAttribute` returns and `cuFuncSetAttribute` sets.
    CUfunctionAttribute(u32), "CU_FUNC_ATTRIBUTE_" {
        MAX_THREADS_PER_BLOCK = 0,
        SHARED_SIZE_BYTES = 1,
        CONST_SIZE_BYTES = 2,
        LOCAL_SIZE_BYTES = 3,
        NUM_REGS = 4,
        PTX_VERSION = 5,
        BINARY_VERSION = 6,
        MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
        NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
    }

    /// An option of `cuModuleLoadDataEx`.
    CUjitOption(u32), "CU_JIT_" {
        INFO_LOG_BUFFER = 3,
        INFO_LOG_BUFFER_SIZE_BYTES = 4,
        ERROR_LOG_BUFFER = 5,
        ERROR_LOG_BUFFER_SIZE_BYTES = 6,
    }

    /// The attributes that `cuPointerGetAttribute` knows.
    CUpointerAttribute(u32), "CU_POINTER_ATTRIBUTE_" {
        MEMORY_TYPE = 2,
        DEVICE_ORDINAL = 9,
    }

    /// Where memory lies.
    CUmemoryType(u32), "CU_MEMORYTYPE_" {
        HOST = 1,
        DEVICE = 2,
        ARRAY = 3,
        UNIFIED = 4,
    }

    /// The attributes of a memory pool.
    CUmemPoolAttribute(u32), "CU_MEMPOOL_ATTR_" {
        RELEASE_THRESHOLD = 4,
    }

    /// The kind of memory that a pool holds.
    CUmemAllocationType(u32), "CU_MEM_ALLOCATION_TYPE_" {
        PINNED = 1,
    }

    /// Where a pool's memory is.
    CUmemLocationType(u32), "CU_MEM_LOCATION_TYPE_" {
        INVALID = 0,
        DEVICE = 1,
    }

    /// The access of a device to memory of another one.
    CUmemAccessFlags(u32), "CU_MEM_ACCESS_FLAGS_PROT_" {
        READWRITE = 3,
    }

    /// When a copy of a batch may read its source.
    CUmemcpySrcAccessOrder(u32), "CU_MEMCPY_SRC_ACCESS_ORDER_" {
        STREAM = 1,
    }

    /// Which calls a stream capture forbids, and to whom.
    CUstreamCaptureMode(u32), "CU_STREAM_CAPTURE_MODE_" {
        GLOBAL = 0,
        THREAD_LOCAL = 1,
        RELAXED = 2,
    }

    /// The capture status of a stream.
    CUstreamCaptureStatus(u32), "CU_STREAM_CAPTURE_STATUS_" {
        NONE = 0,
        ACTIVE = 1,
        INVALIDATED = 2,
    }

    /// Which member of [`CUlaunchAttributeValue`] is meant.
    CUlaunchAttributeId(u32), "CU_LAUNCH_ATTRIBUTE_" {
        IGNORE = 0,
        COOPERATIVE = 2,
        CLUSTER_DIMENSION = 4,
        PROGRAMMATIC_STREAM_SERIALIZATION = 6,
    }

    /// Element type of a tensor map.
    CUtensorMapDataType(u32), "CU_TENSOR_MAP_DATA_TYPE_" {
        UINT8 = 0,
        UINT16 = 1,
        UINT32 = 2,
        INT32 = 3,
        UINT64 = 4,
        INT64 = 5,
        FLOAT16 = 6,
        FLOAT32 = 7,
        FLOAT64 = 8,
        BFLOAT16 = 9,
        FLOAT32_FTZ = 10,
        TFLOAT32 = 11,
        TFLOAT32_FTZ = 12,
    }

    /// How channels interleave in a tensor map.
    CUtensorMapInterleave(u32), "CU_TENSOR_MAP_INTERLEAVE_" {
        NONE = 0,
        B16 = 1,
        B32 = 2,
    }

    /// How a tensor map permutes 16-byte chunks in shared memory.
    CUtensorMapSwizzle(u32), "CU_TENSOR_MAP_SWIZZLE_" {
        NONE = 0,
        B32 = 1,
        B64 = 2,
        B128 = 3,
    }

    /// The size to which L2 widens a tensor map's loads.
    CUtensorMapL2promotion(u32), "CU_TENSOR_MAP_L2_PROMOTION_" {
        NONE = 0,
        B64 = 1,
        B128 = 2,
        B256 = 3,
    }

    /// The value that a tensor map reads outside the tensor.
    CUtensorMapFloatOobFill(u32), "CU_TENSOR_MAP_FLOAT_OOB_FILL_" {
        NONE = 0,
        NAN_REQUEST_ZERO_FMA = 1,
    }
}

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: no call waits for the destructor. The flag is mandatory.
pub const CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: c_uint = 1;

/// `CU_GRAPH_USER_OBJECT_MOVE`: the graph takes over references of the caller's.
pub const CU_GRAPH_USER_OBJECT_MOVE: c_uint = 1;

/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the legacy default stream.
pub const CU_STREAM_NON_BLOCKING: c_uint = 0x1;
/// `CU_EVENT_DEFAULT`: the event can be timed.
pub const CU_EVENT_DEFAULT: c_uint = 0x0;
/// `CU_EVENT_DISABLE_TIMING`: the event only orders, which is cheaper.
pub const CU_EVENT_DISABLE_TIMING: c_uint = 0x2;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context, not just the current one.
pub const CU_MEMHOSTALLOC_PORTABLE: c_uint = 0x1;

/// A device's identity, the same in every process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct CUuuid {
    /// The 16 bytes, as `nvidia-smi -L` prints them.
    pub bytes: [u8; 16],
}

/// A rectangle to copy, for `cuMemcpy2D_v2`. Offsets, pitches and widths are in bytes.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUmemcpy2D {
    /// Bytes to skip in each source row.
    pub src_x_in_bytes: usize,
    /// Source rows to skip.
    pub src_y: usize,
    /// Which of the source pointers counts.
    pub src_memory_type: CUmemoryType,
    /// Source in host memory.
    pub src_host: *const c_void,
    /// Source in device memory.
    pub src_device: CUdeviceptr,
    /// Source array.
    pub src_array: CUarray,
    /// Bytes from one source row to the next.
    pub src_pitch: usize,
    /// Bytes to skip in each destination row.
    pub dst_x_in_bytes: usize,
    /// Destination rows to skip.
    pub dst_y: usize,
    /// Which of the destination pointers counts.
    pub dst_memory_type: CUmemoryType,
    /// Destination in host memory.
    pub dst_host: *mut c_void,
    /// Destination in device memory.
    pub dst_device: CUdeviceptr,
    /// Destination array.
    pub dst_array: CUarray,
    /// Bytes from one destination row to the next.
    pub dst_pitch: usize,
    /// Bytes of a row to copy.
    pub width_in_bytes: usize,
    /// Rows to copy.
    pub height: usize,
}

/// Where memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CUmemLocation {
    /// How `id` is to be read.
    pub kind: CUmemLocationType,
    /// For [`CUmemLocationType::DEVICE`], the device.
    pub id: c_int,
}

/// Attributes that copies of a batch have in common, for `cuMemcpyBatchAsync`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUmemcpyAttributes {
    /// When the sources may be read.
    pub src_access_order: CUmemcpySrcAccessOrder,
    /// Where managed or pageable sources are.
    pub src_location_hint: CUmemLocation,
    /// Where managed or pageable destinations are.
    pub dst_location_hint: CUmemLocation,
    /// 0 for nothing special, or [`CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`].
    pub flags: c_uint,
}

/// A flag of [`CUmemcpyAttributes`]: copies run at the same time as kernels if they can.
pub const CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE: c_uint = 1;

/// Who may use a pool's memory, and how, for `cuMemPoolSetAccess`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUmemAccessDesc {
    /// The device that gets access.
    pub location: CUmemLocation,
    /// Its rights.
    pub flags: CUmemAccessFlags,
}

/// The properties of a new memory pool, for `cuMemPoolCreate`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUmemPoolProps {
    /// Always [`CUmemAllocationType::PINNED`].
    pub alloc_type: CUmemAllocationType,
    /// How the memory is shared with other processes; 0 for not at all.
    pub handle_types: c_uint,
    /// Where the memory is.
    pub location: CUmemLocation,
    /// Null unless the memory is shared on Windows.
    pub win32_security_attributes: *mut c_void,
    /// The most bytes the pool may hold; 0 for what the system allows.
    pub max_size: usize,
    /// Intended usage; 0 for nothing special.
    pub usage: u16,
    /// Zeros.
    pub reserved: [u8; 54],
}

/// The value of a launch attribute; [`CUlaunchAttribute::id`] says which member is meant.
#[derive(Clone, Copy)]
#[repr(C)]
pub union CUlaunchAttributeValue {
    /// The union's full size, for the members that have no name here.
    pub words: [u64; 8],
    /// Nonzero: all blocks of the grid are resident at once.
    pub cooperative: c_int,
    /// Blocks of a cluster along x, y and z.
    pub cluster_dim: [c_uint; 3],
    /// Nonzero: the kernel may start before its predecessor in the stream has ended.
    pub programmatic_stream_serialization_allowed: c_int,
    /// Priority of the launch.
    pub priority: c_int,
}

impl fmt::Debug for CUlaunchAttributeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CUlaunchAttributeValue")
    }
}

/// One attribute of a launch.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUlaunchAttribute {
    /// Which attribute.
    pub id: CUlaunchAttributeId,
    /// Fills up to 8 bytes; the header calls it `pad`.
    pub pad: [u8; 4],
    /// Its value.
    pub value: CUlaunchAttributeValue,
}

/// A launch as a node of a graph: `CUDA_KERNEL_NODE_PARAMS_v2`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUkernelNodeParams {
    /// The kernel.
    pub function: CUfunction,
    /// Blocks of the grid along x, y and z.
    pub grid_dim: [c_uint; 3],
    /// Threads of a block along x, y and z.
    pub block_dim: [c_uint; 3],
    /// Dynamic shared memory per block.
    pub shared_mem_bytes: c_uint,
    /// A pointer to each parameter of the kernel.
    pub kernel_params: *mut *mut c_void,
    /// Parameters in another form; null here.
    pub extra: *mut *mut c_void,
    /// The kernel as a handle of no context; null here.
    pub kernel: *mut c_void,
    /// The context; null for the current one.
    pub context: CUcontext,
}

/// A launch with attributes, for `cuLaunchKernelEx`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUlaunchConfig {
    /// Blocks of the grid along x.
    pub grid_dim_x: c_uint,
    /// Blocks of the grid along y.
    pub grid_dim_y: c_uint,
    /// Blocks of the grid along z.
    pub grid_dim_z: c_uint,
    /// Threads of a block along x.
    pub block_dim_x: c_uint,
    /// Threads of a block along y.
    pub block_dim_y: c_uint,
    /// Threads of a block along z.
    pub block_dim_z: c_uint,
    /// Dynamic shared memory per block.
    pub shared_mem_bytes: c_uint,
    /// The stream to launch on.
    pub stream: CUstream,
    /// `num_attrs` attributes.
    pub attrs: *const CUlaunchAttribute,
    /// How many attributes there are.
    pub num_attrs: c_uint,
}

/// A tensor map as the hardware reads it: 128 opaque bytes, aligned to 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CUtensorMap {
    /// The driver's encoding.
    pub opaque: [u64; 16],
}

// The header's sizes; a wrong one would corrupt memory at the first call.
const _: () = {
    assert!(size_of::<CUtensorMap>() == 128 && align_of::<CUtensorMap>() == 64);
    assert!(size_of::<CUlaunchAttributeValue>() == 64);
    assert!(size_of::<CUlaunchAttribute>() == 72);
    assert!(size_of::<CUuuid>() == 16);
};
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<CUlaunchConfig>() == 56);
    assert!(size_of::<CUkernelNodeParams>() == 72);
    assert!(size_of::<CUmemcpy2D>() == 128);
    assert!(size_of::<CUmemcpyAttributes>() == 24);
    assert!(size_of::<CUmemPoolProps>() == 88);
};
