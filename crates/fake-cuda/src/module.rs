//! Modules, kernels and launches.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use warptile_cuda_sys::*;

use crate::argument::{In, Out};
use crate::control::FakeLaunch;
use crate::device::device_of;
use crate::image::{self, Image};
use crate::queue::Op;
use crate::state::State;
use crate::stream::{self, Key};

pub(crate) struct Module {
    image: Image,
    /// The device that its kernels run on.
    pub(crate) device: CUdevice,
}

pub(crate) struct Function {
    module: usize,
    name: String,
    params: Option<Vec<usize>>,
    shared_limit: c_int,
    /// True if its clusters may have more than 8 blocks.
    large_clusters: bool,
}

/// Dynamic shared memory that a kernel may use without asking.
const DEFAULT_SHARED: c_int = 48 << 10;

pub(crate) fn module_load_data_ex(
    state: &mut State,
    module: Out<CUmodule>,
    bytes: In<c_void>,
    num_options: c_uint,
    options: Out<CUjitOption>,
    values: Out<*mut c_void>,
) -> CUresult {
    let context = match state.current() {
        Ok(context) => context,
        Err(code) => return code,
    };
    let Some(image) = image::read(&bytes.cast()) else {
        let count = num_options as usize;
        let options = options.read(count);
        let values = values.read(count);
        write_log(
            &options,
            &values,
            "fake ptxas: line 1: no .target directive",
        );
        return CUresult::ERROR_INVALID_PTX;
    };
    let (major, minor) = state.config.compute_capability;
    let device = major * 10 + minor;
    let runs = if image.is_ptx {
        image.target <= device
    } else {
        image.target / 10 == major && image.target <= device
    };
    if !runs {
        return CUresult::ERROR_NO_BINARY_FOR_GPU;
    }
    let id = state.new_id();
    let device = device_of(context);
    state.modules.insert(id, Module { image, device });
    module.set(CUmodule(std::ptr::without_provenance_mut(id)));
    CUresult::SUCCESS
}

/// Writes to the error log that the options name, if they do.
fn write_log(options: &[CUjitOption], values: &[*mut c_void], text: &str) {
    let value_of = |wanted| {
        let at = options.iter().position(|option| *option == wanted)?;
        values.get(at).copied()
    };
    if let (Some(buffer), Some(size)) = (
        value_of(CUjitOption::ERROR_LOG_BUFFER),
        value_of(CUjitOption::ERROR_LOG_BUFFER_SIZE_BYTES),
    ) {
        // SAFETY: the driver API has the caller pass a buffer of the size in the other option.
        let log = unsafe { Out::<c_char>::new(buffer.cast()) };
        log.set_text(text, size.addr());
    }
}

pub(crate) fn module_unload(state: &mut State, module: CUmodule) -> CUresult {
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    let id = module.0.addr();
    state.functions.retain(|_, function| function.module != id);
    match state.modules.remove(&id) {
        Some(_) => CUresult::SUCCESS,
        None => state.bad_handle("a module"),
    }
}

pub(crate) fn module_get_function(
    state: &mut State,
    function: Out<CUfunction>,
    module: CUmodule,
    name: In<c_char>,
) -> CUresult {
    let (id, name) = (module.0.addr(), name.text());
    let Some(module) = state.modules.get(&id) else {
        return state.bad_handle("a module");
    };
    let Some(entry) = module.image.entries.iter().find(|entry| entry.name == name) else {
        return CUresult::ERROR_NOT_FOUND;
    };
    let known = { state.functions.iter() }.find(|(_, of)| of.module == id && of.name == name);
    if let Some((&known, _)) = known {
        function.set(CUfunction(std::ptr::without_provenance_mut(known)));
        return CUresult::SUCCESS;
    }
    let found = Function {
        module: id,
        name,
        params: entry.params.clone(),
        shared_limit: DEFAULT_SHARED,
        large_clusters: false,
    };
    let id = state.new_id();
    state.functions.insert(id, found);
    function.set(CUfunction(std::ptr::without_provenance_mut(id)));
    CUresult::SUCCESS
}

/// The stand-in's images have no variables.
pub(crate) fn module_get_global(
    _state: &mut State,
    _pointer: Out<CUdeviceptr>,
    _bytes: Out<usize>,
    _module: CUmodule,
    _name: In<c_char>,
) -> CUresult {
    CUresult::ERROR_NOT_FOUND
}

pub(crate) fn func_get_attribute(
    state: &mut State,
    value: Out<c_int>,
    attribute: CUfunctionAttribute,
    function: CUfunction,
) -> CUresult {
    let Some(function) = state.functions.get(&function.0.addr()) else {
        return state.bad_handle("a kernel");
    };
    value.set(match attribute {
        CUfunctionAttribute::MAX_THREADS_PER_BLOCK => 1024,
        CUfunctionAttribute::NUM_REGS => 64,
        CUfunctionAttribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => function.shared_limit,
        attribute if attribute.name().is_some() => 0,
        _ => return CUresult::ERROR_INVALID_VALUE,
    });
    CUresult::SUCCESS
}

pub(crate) fn func_set_attribute(
    state: &mut State,
    function: CUfunction,
    attribute: CUfunctionAttribute,
    value: c_int,
) -> CUresult {
    /// The most dynamic shared memory of any device so far.
    const MOST: c_int = 227 << 10;
    let Some(function) = state.functions.get_mut(&function.0.addr()) else {
        return state.bad_handle("a kernel");
    };
    if attribute == CUfunctionAttribute::MAX_DYNAMIC_SHARED_SIZE_BYTES {
        if !(0..=MOST).contains(&value) {
            return CUresult::ERROR_INVALID_VALUE;
        }
        function.shared_limit = value;
    }
    if attribute == CUfunctionAttribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED {
        function.large_clusters = value != 0;
    }
    CUresult::SUCCESS
}

pub(crate) fn func_get_param_info(
    state: &mut State,
    function: CUfunction,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> CUresult {
    let Some(function) = state.functions.get(&function.0.addr()) else {
        return state.bad_handle("a kernel");
    };
    let params = function.params.as_deref().unwrap_or_default();
    match params.get(index) {
        Some(&bytes) => {
            offset.set(params[..index].iter().sum());
            size.set(bytes);
            CUresult::SUCCESS
        }
        None => CUresult::ERROR_INVALID_VALUE,
    }
}

/// Queues a launch, whichever function it came by.
fn launch(
    state: &mut State,
    function: CUfunction,
    mut launch: FakeLaunch,
    on: Key,
    params: &Out<*mut c_void>,
) -> CUresult {
    launch.stream = on;
    match launch_op(state, function, launch, params) {
        Ok(op) => state.push(on, op),
        Err(code) => code,
    }
}

/// A launch as an operation, of a stream or of a graph.
pub(crate) fn launch_op(
    state: &mut State,
    function: CUfunction,
    mut launch: FakeLaunch,
    params: &Out<*mut c_void>,
) -> Result<Op, CUresult> {
    let Some(function) = state.functions.get(&function.0.addr()) else {
        return Err(state.bad_handle("a kernel"));
    };
    if launch.shared_bytes > function.shared_limit as u32 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let empty = |size: [u32; 3]| size.contains(&0);
    let threads: u32 = launch.block.iter().product();
    if empty(launch.grid) || empty(launch.block) || threads > 1024 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let sizes = function.params.clone().unwrap_or_default();
    let mut block = Vec::new();
    for (pointer, size) in params.read(sizes.len()).into_iter().zip(sizes) {
        // SAFETY: the caller passes a pointer to each parameter of the kernel.
        let parameter = unsafe { Out::<u8>::new(pointer.cast()) };
        block.extend(parameter.read(size));
    }
    let module = function.module;
    launch.set_name(&function.name);
    launch.set_params(&block);
    let touches = state.addresses_in(&block);
    Ok(Op::Launch {
        launch: Arc::new(launch),
        module,
        touches,
    })
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn launch_kernel(
    state: &mut State,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    on: Key,
    params: Out<*mut c_void>,
    _extra: Out<*mut c_void>,
) -> CUresult {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let plain = FakeLaunch::new(grid, block, shared_bytes);
    launch(state, function, plain, on, &params)
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn launch_cooperative_kernel(
    state: &mut State,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    on: Key,
    params: Out<*mut c_void>,
) -> CUresult {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let mut cooperative = FakeLaunch::new(grid, block, shared_bytes);
    cooperative.cooperative = 1;
    if grid_x.saturating_mul(grid_y).saturating_mul(grid_z) > 132 {
        return CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    launch(state, function, cooperative, on, &params)
}

pub(crate) fn launch_kernel_ex(
    state: &mut State,
    config: In<CUlaunchConfig>,
    function: CUfunction,
    params: Out<*mut c_void>,
    _extra: Out<*mut c_void>,
) -> CUresult {
    let config = config.first();
    let grid = [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z];
    let block = [config.block_dim_x, config.block_dim_y, config.block_dim_z];
    let mut with_attributes = FakeLaunch::new(grid, block, config.shared_mem_bytes);
    // SAFETY: the caller passes as many attributes as the configuration says.
    let attributes = unsafe { In::new(config.attrs) }.read(config.num_attrs as usize);
    for attribute in attributes {
        match attribute.id {
            // SAFETY: the identifier says which member is meant.
            CUlaunchAttributeId::CLUSTER_DIMENSION => unsafe {
                with_attributes.cluster = attribute.value.cluster_dim;
            },
            // SAFETY: as above.
            CUlaunchAttributeId::COOPERATIVE => unsafe {
                with_attributes.cooperative = attribute.value.cooperative as u32;
            },
            // SAFETY: as above.
            CUlaunchAttributeId::PROGRAMMATIC_STREAM_SERIALIZATION => unsafe {
                let allowed = attribute.value.programmatic_stream_serialization_allowed;
                with_attributes.programmatic = allowed as u32;
            },
            _ => {}
        }
    }
    if let Err(code) = check_cluster(state, function, &with_attributes) {
        return code;
    }
    let on = stream::key_of(state, config.stream);
    // The behaviour of such drivers is undocumented, except that their graphs have no edges for it.
    if with_attributes.programmatic != 0
        && state.config.version < 12_030
        && let Some(capture) = state.streams.get(&on).and_then(|stream| stream.capture)
    {
        state
            .violation("a launch that may begin early was captured by a driver before 12.3".into());
        state.invalidate(capture);
        return CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    launch(state, function, with_attributes, on, &params)
}

/// Checks a launch with clusters as a device does.
fn check_cluster(state: &State, function: CUfunction, launch: &FakeLaunch) -> Result<(), CUresult> {
    if launch.cluster == [0; 3] {
        return Ok(());
    }
    let sizes = launch.grid.iter().zip(&launch.cluster);
    if { sizes }.any(|(grid, cluster)| *cluster == 0 || grid % cluster != 0) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let large = state
        .functions
        .get(&function.0.addr())
        .is_some_and(|function| function.large_clusters);
    let most = if large { 16 } else { 8 };
    if launch.cluster.iter().product::<u32>() > most || state.config.clusters == 0 {
        return Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
    }
    Ok(())
}

pub(crate) fn occupancy_max_active_blocks_per_multiprocessor(
    _state: &mut State,
    blocks: Out<c_int>,
    _function: CUfunction,
    block_threads: c_int,
    shared_bytes: usize,
) -> CUresult {
    let by_threads = 2048 / block_threads.max(1);
    let by_shared = 233_472 / shared_bytes.max(1024) as i32;
    blocks.set(by_threads.min(by_shared).min(32));
    CUresult::SUCCESS
}

pub(crate) fn occupancy_max_active_clusters(
    state: &mut State,
    clusters: Out<c_int>,
    _function: CUfunction,
    _config: In<CUlaunchConfig>,
) -> CUresult {
    clusters.set(state.config.clusters);
    CUresult::SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn tensor_map_encode_tiled(
    state: &mut State,
    map: Out<CUtensorMap>,
    _data_type: CUtensorMapDataType,
    rank: u32,
    address: Out<c_void>,
    dims: In<u64>,
    strides: In<u64>,
    box_dims: In<u32>,
    _element_strides: In<u32>,
    _interleave: CUtensorMapInterleave,
    _swizzle: CUtensorMapSwizzle,
    _l2_promotion: CUtensorMapL2promotion,
    _oob_fill: CUtensorMapFloatOobFill,
) -> CUresult {
    // Undocumented, but an H200 with driver 580 answers CUDA_ERROR_INVALID_CONTEXT without one.
    if let Err(code) = state.current() {
        return code;
    }
    // Words of 64 bits: the address, the rank, the extents, the strides and the box, of up to four dimensions (kernels/emulation reads
    // them).
    let mut opaque = [0; 16];
    opaque[0] = address.address();
    opaque[1] = u64::from(rank);
    let rank = rank as usize;
    let mut words = |at: usize, from: &mut dyn Iterator<Item = u64>| {
        for (word, value) in opaque[at..].iter_mut().zip(from) {
            *word = value;
        }
    };
    words(2, &mut dims.read(rank).into_iter());
    words(6, &mut strides.read(rank - 1).into_iter());
    words(9, &mut box_dims.read(rank).into_iter().map(u64::from));
    map.set(CUtensorMap { opaque });
    CUresult::SUCCESS
}
