//! The table: every function of the driver API that this project calls, once.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::LoadError;
use crate::load::Version;
use crate::results::CUresult;
use crate::types::*;

/// Hands the table to another macro, `$callback!`, one row per function:
///
/// ```text
/// required fn FIELD = SYMBOL(ARGUMENT: TYPE, ...);
/// since VERSION fn FIELD = SYMBOL(ARGUMENT: TYPE, ...);
/// ```
///
/// `VERSION` is the CUDA version (1000 * major + 10 * minor) whose driver introduced the function.
/// Every function returns [`CUresult`](crate::CUresult) and has the `system` calling convention.
/// The types are this crate's and those of [`std::ffi`], which must be in scope where the macro is
/// called. A stand-in driver can be written against it and cannot miss a function.
#[macro_export]
macro_rules! driver_api {
    ($callback:ident) => {
        $callback! {
            required fn init = cuInit(flags: c_uint);
            required fn driver_get_version = cuDriverGetVersion(version: *mut c_int);
            required fn get_error_name = cuGetErrorName(error: CUresult, name: *mut *const c_char);
            required fn get_error_string = cuGetErrorString(error: CUresult, text: *mut *const c_char);

            // Devices
            required fn device_get = cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
            required fn device_get_count = cuDeviceGetCount(count: *mut c_int);
            required fn device_get_name = cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
            required fn device_get_attribute = cuDeviceGetAttribute(value: *mut c_int, attribute: CUdeviceAttribute, device: CUdevice);
            required fn device_total_mem = cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
            required fn device_get_uuid = cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
            required fn device_get_pci_bus_id = cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: CUdevice);
            required fn device_can_access_peer = cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);

            // Contexts
            required fn device_primary_ctx_retain = cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
            required fn device_primary_ctx_release = cuDevicePrimaryCtxRelease_v2(device: CUdevice);
            required fn ctx_set_current = cuCtxSetCurrent(context: CUcontext);
            required fn ctx_get_current = cuCtxGetCurrent(context: *mut CUcontext);
            required fn ctx_push_current = cuCtxPushCurrent_v2(context: CUcontext);
            required fn ctx_pop_current = cuCtxPopCurrent_v2(context: *mut CUcontext);
            required fn ctx_synchronize = cuCtxSynchronize();
            required fn ctx_get_stream_priority_range = cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
            required fn ctx_enable_peer_access = cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);

            // Streams
            required fn stream_create_with_priority = cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
            required fn stream_destroy = cuStreamDestroy_v2(stream: CUstream);
            required fn stream_query = cuStreamQuery(stream: CUstream);
            required fn stream_synchronize = cuStreamSynchronize(stream: CUstream);
            required fn stream_wait_event = cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
            required fn stream_get_ctx = cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
            required fn stream_begin_capture = cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
            required fn stream_end_capture = cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
            required fn stream_is_capturing = cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
            // Later versions of the function tell more of the dependencies, which these crates do not need.
            required fn stream_get_capture_info = cuStreamGetCaptureInfo_v2(
                stream: CUstream,
                status: *mut CUstreamCaptureStatus,
                id: *mut u64,
                graph: *mut CUgraph,
                dependencies: *mut *const CUgraphNode,
                num_dependencies: *mut usize,
            );
            required fn thread_exchange_stream_capture_mode = cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
            required fn stream_get_id = cuStreamGetId(stream: CUstream, id: *mut u64);

            // Events
            required fn event_create = cuEventCreate(event: *mut CUevent, flags: c_uint);
            required fn event_destroy = cuEventDestroy_v2(event: CUevent);
            required fn event_record = cuEventRecord(event: CUevent, stream: CUstream);
            required fn event_query = cuEventQuery(event: CUevent);
            required fn event_synchronize = cuEventSynchronize(event: CUevent);
            required fn event_elapsed_time = cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);

            // Memory
            required fn mem_pool_create = cuMemPoolCreate(pool: *mut CUmemoryPool, props: *const CUmemPoolProps);
            required fn mem_pool_destroy = cuMemPoolDestroy(pool: CUmemoryPool);
            required fn mem_pool_set_attribute = cuMemPoolSetAttribute(
                pool: CUmemoryPool,
                attribute: CUmemPoolAttribute,
                value: *mut c_void,
            );
            required fn mem_pool_set_access = cuMemPoolSetAccess(
                pool: CUmemoryPool,
                access: *const CUmemAccessDesc,
                count: usize,
            );
            required fn mem_pool_trim_to = cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
            required fn mem_alloc_from_pool_async = cuMemAllocFromPoolAsync(
                pointer: *mut CUdeviceptr,
                bytes: usize,
                pool: CUmemoryPool,
                stream: CUstream,
            );
            required fn mem_free_async = cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream);
            required fn mem_alloc = cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytes: usize);
            required fn mem_free = cuMemFree_v2(pointer: CUdeviceptr);
            required fn mem_host_alloc = cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
            required fn mem_free_host = cuMemFreeHost(pointer: *mut c_void);
            required fn mem_get_info = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
            required fn pointer_get_attribute = cuPointerGetAttribute(
                value: *mut c_void,
                attribute: CUpointerAttribute,
                pointer: CUdeviceptr,
            );

            // Copies and fills
            required fn memcpy_htod = cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize);
            required fn memcpy_dtoh = cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize);
            required fn memcpy_htod_async = cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
            required fn memcpy_dtoh_async = cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
            required fn memcpy_dtod_async = cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
            required fn memcpy_peer_async = cuMemcpyPeerAsync(
                to: CUdeviceptr,
                to_context: CUcontext,
                from: CUdeviceptr,
                from_context: CUcontext,
                bytes: usize,
                stream: CUstream,
            );
            required fn memcpy_2d_async = cuMemcpy2DAsync_v2(copy: *const CUmemcpy2D, stream: CUstream);
            since 12080 fn memcpy_batch_async = cuMemcpyBatchAsync(
                to: *mut CUdeviceptr,
                from: *mut CUdeviceptr,
                bytes: *mut usize,
                count: usize,
                attributes: *mut CUmemcpyAttributes,
                attributes_from: *mut usize,
                attributes_count: usize,
                failed: *mut usize,
                stream: CUstream,
            );
            required fn memset_d8 = cuMemsetD8_v2(to: CUdeviceptr, value: u8, count: usize);
            required fn memset_d8_async = cuMemsetD8Async(to: CUdeviceptr, value: u8, count: usize, stream: CUstream);

            // Modules and kernels
            required fn module_load_data_ex = cuModuleLoadDataEx(
                module: *mut CUmodule,
                image: *const c_void,
                num_options: c_uint,
                options: *mut CUjitOption,
                values: *mut *mut c_void,
            );
            required fn module_unload = cuModuleUnload(module: CUmodule);
            required fn module_get_function = cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
            required fn module_get_global = cuModuleGetGlobal_v2(
                pointer: *mut CUdeviceptr,
                bytes: *mut usize,
                module: CUmodule,
                name: *const c_char,
            );
            required fn func_get_attribute = cuFuncGetAttribute(value: *mut c_int, attribute: CUfunctionAttribute, function: CUfunction);
            required fn func_set_attribute = cuFuncSetAttribute(function: CUfunction, attribute: CUfunctionAttribute, value: c_int);
            since 12040 fn func_get_param_info = cuFuncGetParamInfo(
                function: CUfunction,
                index: usize,
                offset: *mut usize,
                size: *mut usize,
            );
            required fn launch_kernel = cuLaunchKernel(
                function: CUfunction,
                grid_x: c_uint,
                grid_y: c_uint,
                grid_z: c_uint,
                block_x: c_uint,
                block_y: c_uint,
                block_z: c_uint,
                shared_bytes: c_uint,
                stream: CUstream,
                params: *mut *mut c_void,
                extra: *mut *mut c_void,
            );
            required fn launch_cooperative_kernel = cuLaunchCooperativeKernel(
                function: CUfunction,
                grid_x: c_uint,
                grid_y: c_uint,
                grid_z: c_uint,
                block_x: c_uint,
                block_y: c_uint,
                block_z: c_uint,
                shared_bytes: c_uint,
                stream: CUstream,
                params: *mut *mut c_void,
            );
            required fn launch_kernel_ex = cuLaunchKernelEx(
                config: *const CUlaunchConfig,
                function: CUfunction,
                params: *mut *mut c_void,
                extra: *mut *mut c_void,
            );
            required fn occupancy_max_active_blocks_per_multiprocessor = cuOccupancyMaxActiveBlocksPerMultiprocessor(
                blocks: *mut c_int,
                function: CUfunction,
                block_threads: c_int,
                shared_bytes: usize,
            );
            required fn occupancy_max_active_clusters = cuOccupancyMaxActiveClusters(
                clusters: *mut c_int,
                function: CUfunction,
                config: *const CUlaunchConfig,
            );
            required fn tensor_map_encode_tiled = cuTensorMapEncodeTiled(
                map: *mut CUtensorMap,
                data_type: CUtensorMapDataType,
                rank: u32,
                address: *mut c_void,
                dims: *const u64,
                strides: *const u64,
                box_dims: *const u32,
                element_strides: *const u32,
                interleave: CUtensorMapInterleave,
                swizzle: CUtensorMapSwizzle,
                l2_promotion: CUtensorMapL2promotion,
                oob_fill: CUtensorMapFloatOobFill,
            );

            // Graphs
            required fn graph_instantiate_with_flags = cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64);
            required fn graph_create = cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
            required fn graph_add_kernel_node = cuGraphAddKernelNode_v2(
                node: *mut CUgraphNode,
                graph: CUgraph,
                after: *const CUgraphNode,
                after_count: usize,
                params: *const CUkernelNodeParams,
            );
            required fn graph_exec_kernel_node_set_params = cuGraphExecKernelNodeSetParams_v2(
                exec: CUgraphExec,
                node: CUgraphNode,
                params: *const CUkernelNodeParams,
            );
            required fn graph_launch = cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
            required fn graph_exec_destroy = cuGraphExecDestroy(exec: CUgraphExec);
            required fn graph_destroy = cuGraphDestroy(graph: CUgraph);
            required fn user_object_create = cuUserObjectCreate(
                object: *mut CUuserObject,
                pointer: *mut c_void,
                destroy: CUhostFn,
                references: c_uint,
                flags: c_uint,
            );
            required fn user_object_release = cuUserObjectRelease(object: CUuserObject, references: c_uint);
            required fn graph_retain_user_object = cuGraphRetainUserObject(
                graph: CUgraph,
                object: CUuserObject,
                references: c_uint,
                flags: c_uint,
            );
        }
    };
}

/// Turns a row into its function's type: `required` as it is, `since` in an [`Option`].
macro_rules! function_type {
    (required, $($function:tt)*) => { $($function)* };
    (since, $($function:tt)*) => { Option<$($function)*> };
}

/// Turns a row into the look-up of its symbol.
macro_rules! look_up {
    (required, $library:ident, $path:ident, $symbol:expr) => {
        // SAFETY: the caller of `resolve` vouches for the signature.
        match unsafe { $library.get($symbol) } {
            Ok(function) => *function,
            Err(source) => {
                return Err(LoadError::MissingSymbol {
                    symbol: $symbol,
                    library: $path.to_owned(),
                    source: Arc::new(source),
                });
            }
        }
    };
    (since, $library:ident, $path:ident, $symbol:expr) => {
        // SAFETY: as above.
        unsafe { $library.get($symbol) }
            .ok()
            .map(|function| *function)
    };
}

/// The sentence on availability in a row's documentation.
macro_rules! availability {
    (required) => {
        "required"
    };
    (since $version:literal) => {
        concat!("since CUDA version ", $version)
    };
}

macro_rules! declare {
    ($($kind:ident $($version:literal)? fn $name:ident = $symbol:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// The driver's functions, taken from one library. See NVIDIA's documentation of the
        /// driver API for what each does and demands; all of them are `unsafe` to call.
        #[derive(Debug, Clone)]
        #[non_exhaustive]
        pub struct DriverApi {
            library: PathBuf,
            version: Version,
            $(
                #[doc = concat!("`", stringify!($symbol), "`, ", availability!($kind $($version)?), ".")]
                pub $name: function_type!(
                    $kind,
                    unsafe extern "system" fn($($argument: $type),*) -> CUresult
                ),
            )*
        }

        /// The exported name of each function, by field of [`DriverApi`].
        #[derive(Debug, Clone, Copy)]
        #[non_exhaustive]
        pub struct Symbols {
            $(
                #[doc = concat!("`", stringify!($symbol), "`")]
                pub $name: &'static str,
            )*
        }

        /// The exported names, for looking up and for error messages.
        pub const SYMBOLS: Symbols = Symbols {
            $($name: stringify!($symbol),)*
        };

        impl DriverApi {
            /// Fills the table.
            ///
            /// # Safety
            /// The library's exports have the declared signatures, and it is never unloaded.
            pub(crate) unsafe fn resolve(
                library: &libloading::Library,
                path: &Path,
                version: Version,
            ) -> Result<DriverApi, LoadError> {
                Ok(DriverApi {
                    library: path.to_owned(),
                    version,
                    $($name: look_up!($kind, library, path, SYMBOLS.$name),)*
                })
            }

            /// The library the functions came from, as it was named to the loader.
            pub fn library(&self) -> &Path {
                &self.library
            }

            /// The CUDA version the driver supports.
            pub fn version(&self) -> Version {
                self.version
            }
        }
    };
}

driver_api!(declare);
