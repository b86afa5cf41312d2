//! Kernels with a typed parameter block.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use warptile_cuda_sys::{
    CUfunction, CUfunctionAttribute, CUlaunchAttribute, CUlaunchAttributeId,
    CUlaunchAttributeValue, CUlaunchConfig, CUresult, CUstream, CUstreamCaptureStatus, SYMBOLS,
    Version,
};

use crate::context::lock;
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::launch::{KernelLimits, LaunchConfig, check};
use crate::module::Module;
use crate::stream::{Launching, Stream};

/// Shared memory that every kernel may use without asking, static and dynamic.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;
/// Blocks of a cluster that every device with clusters can hold; and with the opt-in.
const PORTABLE_CLUSTER: u32 = 8;
const LARGE_CLUSTER: u32 = 16;
/// The description of a launch in errors that name no kernel.
const LAUNCHING: &str = "launching a kernel";
/// The first driver whose graphs have edges that say when a node may begin before the one before it has ended.
const PROGRAMMATIC_EDGES: Version = Version(12_030);

/// How a kernel is loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct KernelOptions {
    /// The name that errors give the kernel, if not by its entry's name.
    pub name: Option<String>,
    /// Size in bytes that the image records for its parameter block, to be checked against `P`.
    pub param_bytes: Option<usize>,
    /// The most dynamic shared memory that a launch will ask for, in bytes.
    /// 0 for the 48 KiB that every kernel may use, its static shared memory included.
    pub dynamic_shared_bytes: u32,
    /// True if clusters may have 16 blocks instead of 8.
    pub large_clusters: bool,
}

impl KernelOptions {
    /// Nothing out of the ordinary.
    pub fn new() -> KernelOptions {
        KernelOptions::default()
    }

    /// With this name in errors.
    pub fn name(mut self, name: impl Into<String>) -> KernelOptions {
        self.name = Some(name.into());
        self
    }

    /// With a check that the image's parameter block has this many bytes.
    pub fn param_bytes(mut self, bytes: usize) -> KernelOptions {
        self.param_bytes = Some(bytes);
        self
    }

    /// With launches that use up to this much dynamic shared memory.
    pub fn dynamic_shared_bytes(mut self, bytes: u32) -> KernelOptions {
        self.dynamic_shared_bytes = bytes;
        self
    }

    /// With clusters of up to 16 blocks.
    pub fn large_clusters(mut self) -> KernelOptions {
        self.large_clusters = true;
        self
    }
}

/// A parameter block, as launches take it: a type whose bits may be any, or the bytes of a block whose size is known at run time.
pub trait Parameters {
    /// The block's bytes.
    fn bytes(&self) -> &[u8];
}

impl<P: Pod> Parameters for P {
    fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(self)
    }
}

impl Parameters for [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A kernel that takes one `P`: a `#[repr(C)]` parameter block, passed by value. For a kernel
/// without parameters `P` is `()`; for one whose block is known at run time it is `[u8]`. A cheap
/// handle that keeps the module loaded.
pub struct Kernel<P: ?Sized> {
    module: Module,
    function: CUfunction,
    name: Arc<str>,
    limits: KernelLimits,
    /// Size of the parameter block.
    param_bytes: usize,
    parameters: PhantomData<fn(&P)>,
}

impl<P: Pod> Kernel<P> {
    /// Finds the kernel `entry` in the module and checks that it takes one `P`: against
    /// [`KernelOptions::param_bytes`], and against the kernel itself where the driver can tell
    /// (`cuFuncGetParamInfo`, since CUDA 12.4).
    ///
    /// # Errors
    /// [`DriverError::ParameterBlock`]; not found if no such kernel exists; or what the driver
    /// reports, such as more dynamic shared memory than the device has.
    pub fn load(module: &Module, entry: &str, options: &KernelOptions) -> Result<Kernel<P>> {
        if let Some(bytes) = options.param_bytes
            && bytes != size_of::<P>()
        {
            return Err(parameter_block(
                options.name.as_deref().unwrap_or(entry),
                format!("{bytes} bytes"),
                size_of::<P>(),
            ));
        }
        Self::of_size(module, entry, options, size_of::<P>())
    }
}

impl Kernel<[u8]> {
    /// Finds the kernel `entry` in the module, whose parameter block has `bytes` bytes, and checks
    /// that against the kernel itself where the driver can tell. Launches take the block's bytes.
    ///
    /// # Errors
    /// As [`Kernel::load`].
    pub fn load_untyped(
        module: &Module,
        entry: &str,
        bytes: usize,
        options: &KernelOptions,
    ) -> Result<Kernel<[u8]>> {
        let options = options.clone().param_bytes(bytes);
        Self::of_size(module, entry, &options, bytes)
    }
}

impl<P: Parameters + ?Sized> Kernel<P> {
    /// The kernel `entry`, whose parameter block has `param_bytes` bytes.
    fn of_size(
        module: &Module,
        entry: &str,
        options: &KernelOptions,
        param_bytes: usize,
    ) -> Result<Self> {
        let name: Arc<str> = options.name.as_deref().unwrap_or(entry).into();
        let function = module.function(entry)?;
        let mut kernel = Kernel {
            module: module.clone(),
            function,
            name,
            limits: KernelLimits {
                threads_per_block: 0,
                dynamic_shared_bytes: match options.dynamic_shared_bytes {
                    0 => DEFAULT_SHARED_BYTES,
                    bytes => bytes,
                },
                cluster_blocks: PORTABLE_CLUSTER,
            },
            param_bytes,
            parameters: PhantomData,
        };
        kernel.check_parameters(options.param_bytes.is_some())?;
        let threads = kernel.attribute(CUfunctionAttribute::MAX_THREADS_PER_BLOCK)?;
        kernel.limits.threads_per_block = u32::try_from(threads).unwrap_or(0);
        if options.dynamic_shared_bytes > 0 {
            kernel.allow_shared_bytes(options.dynamic_shared_bytes)?;
        }
        if options.large_clusters {
            kernel.set_attribute(CUfunctionAttribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
            kernel.limits.cluster_blocks = LARGE_CLUSTER;
        }
        Ok(kernel)
    }

    /// The name that errors give the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The module the kernel is in.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The driver's handle, valid while the module is loaded.
    pub fn raw(&self) -> CUfunction {
        self.function
    }

    /// One attribute, by its name: `kernel.attribute(FunctionAttribute::NUM_REGS)`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn attribute(&self, attribute: CUfunctionAttribute) -> Result<i32> {
        let context = self.module.context();
        let _current = context.enter()?;
        let mut value = 0;
        // SAFETY: `value` outlives the call; the function is live and its context current.
        unsafe {
            call!(
                context,
                format!("reading {attribute:?} of kernel {}", self.name),
                func_get_attribute(&mut value, attribute, self.function)
            )
        }?;
        Ok(value)
    }

    fn set_attribute(&self, attribute: CUfunctionAttribute, value: c_int) -> Result<()> {
        let context = self.module.context();
        let _current = context.enter()?;
        // SAFETY: the function is live and its context current; bad values are error codes.
        unsafe {
            call!(
                context,
                format!("setting {attribute:?} of kernel {} to {value}", self.name),
                func_set_attribute(self.function, attribute, value)
            )
        }
    }

    /// Has the driver take launches with this much dynamic shared memory, if it does not already. All kernels of an entry share its
    /// function, and some may have been loaded with more.
    fn allow_shared_bytes(&self, bytes: u32) -> Result<()> {
        let of_static = self.attribute(CUfunctionAttribute::SHARED_SIZE_BYTES)?;
        let total = bytes.saturating_add(u32::try_from(of_static).unwrap_or(0));
        if total <= DEFAULT_SHARED_BYTES {
            return Ok(());
        }
        let mut allowed = lock(&self.module.loaded().shared_bytes);
        let allowed = allowed.entry(self.function.0.addr()).or_default();
        if bytes > *allowed {
            let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
            self.set_attribute(CUfunctionAttribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, value)?;
            *allowed = bytes;
        }
        Ok(())
    }

    /// Compares the kernel's declared parameters with its block, where the driver can list them.
    ///
    /// The list ends where the driver refuses an index, which tools that watch its calls report as an error. A first
    /// parameter of the `recorded` size of the whole block needs no look for a second.
    fn check_parameters(&self, recorded: bool) -> Result<()> {
        let context = self.module.context();
        let Some(param_info) = context.api().func_get_param_info else {
            return Ok(());
        };
        let _current = context.enter()?;
        let size_of_parameter = |index: usize| -> Result<Option<usize>> {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: both outlive the call; the function is live and its context current.
            match unsafe { param_info(self.function, index, &mut offset, &mut size) } {
                CUresult::SUCCESS => Ok(Some(size)),
                // The documented answer for an index past the last parameter.
                CUresult::ERROR_INVALID_VALUE => Ok(None),
                code => Err(context.failed(
                    SYMBOLS.func_get_param_info,
                    code,
                    format!("reading the parameters of kernel {}", self.name).into(),
                )),
            }
        };
        let expected = match (size_of_parameter(0)?, self.param_bytes) {
            (None, 0) => return Ok(()),
            (None, _) => "no parameters".to_owned(),
            (Some(size), given) if size == given && recorded => return Ok(()),
            (Some(size), given) if size == given => match size_of_parameter(1)? {
                None => return Ok(()),
                Some(_) => "more than one parameter".to_owned(),
            },
            (Some(size), _) => format!("{size} bytes"),
        };
        Err(parameter_block(&self.name, expected, self.param_bytes))
    }

    /// Queues the kernel on the stream; doesn't wait.
    ///
    /// # Errors
    /// [`DriverError::Launch`] for a launch that breaks a limit, [`DriverError::OtherContext`], or
    /// what the driver reports; each names the kernel. After an error nothing was queued. What goes
    /// wrong while the kernel runs is reported when the stream is next synchronized, again by name.
    ///
    /// # Safety
    /// - `params` is the kernel's parameter block, field by field, and `config` is what the kernel was
    ///   written for.
    /// - Every address in `params` is valid, for what the kernel does with it, from the launch's
    ///   turn in the stream until the kernel has ended. Buffers of this stream are, even if they
    ///   are dropped right after this call; for buffers of other streams see
    ///   [`DeviceBuffer::available_to`](crate::DeviceBuffer::available_to) and
    ///   [`used_by`](crate::DeviceBuffer::used_by).
    /// - Nothing else uses what the kernel writes in the meantime.
    /// - If the stream is being captured, all of this holds at each launch of the graph; see
    ///   [`Stream::keep_in`]. The kernel itself is kept.
    pub unsafe fn launch(&self, stream: &Stream, config: &LaunchConfig, params: &P) -> Result<()> {
        self.same_context(stream, LAUNCHING)?;
        self.check(config, params)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.queue(&stream.launching()?, config, params) }
    }

    /// [`Kernel::launch`] on a stream that was prepared for it.
    ///
    /// # Errors
    /// As [`Kernel::launch`].
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    pub unsafe fn launch_at(
        &self,
        at: &Launching<'_>,
        config: &LaunchConfig,
        params: &P,
    ) -> Result<()> {
        self.same_context(at.stream(), LAUNCHING)?;
        self.check(config, params)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.queue(at, config, params) }
    }

    fn same_context(&self, stream: &Stream, operation: &'static str) -> Result<()> {
        match stream.context().is_same(self.module.context()) {
            true => Ok(()),
            false => Err(DriverError::OtherContext { operation }),
        }
    }

    /// # Safety
    /// As [`Kernel::launch`]; the stream is of the kernel's context, and the configuration was checked.
    unsafe fn queue(&self, at: &Launching<'_>, config: &LaunchConfig, params: &P) -> Result<()> {
        let stream = at.stream();
        let context = stream.context();
        let mut config = *config;
        // Whatever can fail does so before the launch: after it, an error would say that nothing
        // runs.
        if let Some(id) = at.capture() {
            config.programmatic &= self.has_programmatic_edges();
            context.captures().with(id, |kept| {
                kept.keep(self.module.owner());
                kept.name_kernel(&self.name);
            });
        }
        // SAFETY: the context is current, and the caller's promise is the same.
        let alone = unsafe { self.queue_alone(at, &config, params) }?;
        if alone.is_none() {
            // SAFETY: as above.
            let (symbol, code) = unsafe { self.submit(stream.raw(), &config, params) };
            if code != CUresult::SUCCESS {
                return Err(stream.failed(symbol, code, self.launching().into()));
            }
        }
        if at.capture().is_none() {
            stream.note_launch();
            context.launches().note(stream.raw(), &self.name);
        }
        Ok(())
    }

    /// Queues the kernel on an idle stream in the way that takes the least time there; `None` if the stream or the launch does
    /// not qualify.
    ///
    /// # Safety
    /// As [`Kernel::queue`].
    unsafe fn queue_alone(
        &self,
        at: &Launching<'_>,
        config: &LaunchConfig,
        params: &P,
    ) -> Result<Option<()>> {
        if at.capture().is_some() {
            return Ok(None);
        }
        let mut params: *mut c_void = params.bytes().as_ptr().cast_mut().cast();
        let params: *mut *mut c_void = match self.param_bytes {
            0 => std::ptr::null_mut(),
            _ => &mut params,
        };
        let module = self.module.loaded();
        // SAFETY: the stream is in no capture; the rest is the caller's promise.
        unsafe {
            at.stream()
                .launch_alone(module, self.function, config, params)
        }
    }

    /// Queues the kernel on the stream of somebody else: one call of the driver, and nothing besides
    /// it. No lock is taken, nothing is allocated, no owner is counted, and nothing is kept for a
    /// graph or noted for later errors, so that anybody may capture the launch. Before a
    /// [`programmatic`](LaunchConfig::programmatic) launch, drivers older than 12.3 are asked whether
    /// the stream is being captured.
    ///
    /// # Errors
    /// [`DriverError::Launch`] for a launch that breaks a limit, or what the driver reports. An error
    /// in the running kernel shows wherever its stream is next waited for, without its name.
    ///
    /// # Safety
    /// Beside what [`Kernel::launch`] asks for:
    /// - The kernel's context is current on this thread ([`Context::enter`](crate::Context::enter)),
    ///   and `stream` is a live stream of it. A default stream is the one that it is for this thread.
    /// - This kernel lives until the launch has ended, or, where the stream is being captured, as
    ///   long as the graph can be launched.
    /// - The caller orders the streams that the buffers belong to.
    pub unsafe fn launch_raw(
        &self,
        stream: CUstream,
        config: &LaunchConfig,
        params: &P,
    ) -> Result<()> {
        self.check(config, params)?;
        let mut config = *config;
        if config.programmatic && !self.has_programmatic_edges() {
            // SAFETY: the caller's promise.
            config.programmatic = !unsafe { self.may_be_captured(stream) };
        }
        // SAFETY: the caller's promise is the same.
        let (symbol, code) = unsafe { self.submit(stream, &config, params) };
        if code == CUresult::SUCCESS {
            return Ok(());
        }
        let driver = self.module.context().driver();
        Err(driver.failed(symbol, code, self.launching().into()))
    }

    /// Waits for the stream of somebody else, on which this kernel was launched last, unless it is being captured: for finding
    /// the kernel that fails.
    ///
    /// # Errors
    /// An error on the stream since it was last waited for, with this kernel's name.
    ///
    /// # Safety
    /// The kernel's context is current on this thread, and `stream` is a live stream of it.
    pub unsafe fn wait_raw(&self, stream: CUstream) -> Result<()> {
        let driver = self.module.context().driver();
        let api = self.module.context().api();
        // SAFETY: the caller's promise.
        if unsafe { self.may_be_captured(stream) } {
            return Ok(()); // or in a capture that is broken: its owner will hear of it
        }
        let _relaxed = self.module.context().relaxed()?;
        // SAFETY: the caller's promise.
        match unsafe { (api.stream_synchronize)(stream) } {
            CUresult::SUCCESS => Ok(()),
            code => Err(driver.failed(
                SYMBOLS.stream_synchronize,
                code,
                format!("waiting for kernel {}", self.name).into(),
            )),
        }
    }

    /// Returns true if a stream is in a capture, or the driver does not tell.
    ///
    /// # Safety
    /// As [`Kernel::wait_raw`].
    unsafe fn may_be_captured(&self, stream: CUstream) -> bool {
        let is_capturing = self.module.context().api().stream_is_capturing;
        let mut status = CUstreamCaptureStatus::NONE;
        // SAFETY: `status` outlives the call; the rest is the caller's promise.
        let asked = unsafe { is_capturing(stream, &mut status) };
        asked != CUresult::SUCCESS || status != CUstreamCaptureStatus::NONE
    }

    /// Returns true if a launch that may begin early may be captured. Without the edges for it, such a launch is captured in order: the
    /// kernel waits for what has ended then.
    fn has_programmatic_edges(&self) -> bool {
        self.module.context().driver().version() >= PROGRAMMATIC_EDGES
    }

    fn check(&self, config: &LaunchConfig, params: &P) -> Result<()> {
        let given = params.bytes().len();
        if given != self.param_bytes {
            let expected = format!("{} bytes", self.param_bytes);
            return Err(parameter_block(&self.name, expected, given));
        }
        let limits = self.module.context().limits();
        check(config, limits, &self.limits).map_err(|reason| DriverError::Launch {
            kernel: self.name.to_string(),
            reason,
        })
    }

    fn launching(&self) -> String {
        format!("launching kernel {}", self.name)
    }

    /// Makes the driver call of a launch; returns the name of its function and the result.
    ///
    /// # Safety
    /// As [`Kernel::launch_raw`].
    unsafe fn submit(
        &self,
        stream: CUstream,
        config: &LaunchConfig,
        params: &P,
    ) -> (&'static str, CUresult) {
        let api = self.module.context().api();
        let mut params: *mut c_void = params.bytes().as_ptr().cast_mut().cast();
        let params: *mut *mut c_void = match self.param_bytes {
            0 => std::ptr::null_mut(),
            _ => &mut params,
        };
        let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
        let shared = config.dynamic_shared_bytes;
        if config.cluster.is_some() || config.programmatic {
            let symbol = SYMBOLS.launch_kernel_ex;
            let launch = api.launch_kernel_ex;
            let attributes = Attributes::of(config);
            let raw_config = attributes.raw_config(config, stream);
            // SAFETY: the configuration and its attributes outlive the call; the rest is as below.
            let code = unsafe { launch(&raw_config, self.function, params, std::ptr::null_mut()) };
            return (symbol, code);
        }
        macro_rules! launched {
            ($launch:ident $(, $extra:ident)?) => {
                $launch(self.function, gx, gy, gz, bx, by, bz, shared, stream, params $(, $extra)?)
            };
        }
        if config.cooperative {
            let launch = api.launch_cooperative_kernel;
            // SAFETY: the context is current, function and stream are live; `params` points at one
            // pointer to a block, which the driver copies before it returns, and the kernel takes one
            // of its size. The rest is the caller's promise.
            let code = unsafe { launched!(launch) };
            return (SYMBOLS.launch_cooperative_kernel, code);
        }
        let (launch, extra) = (api.launch_kernel, std::ptr::null_mut());
        // SAFETY: as above.
        let code = unsafe { launched!(launch, extra) };
        (SYMBOLS.launch_kernel, code)
    }

    /// How many blocks of this kernel a multiprocessor can hold at once.
    ///
    /// # Errors
    /// The driver's error.
    pub fn blocks_per_multiprocessor(&self, config: &LaunchConfig) -> Result<u32> {
        let context = self.module.context();
        let _current = context.enter()?;
        let mut blocks = 0;
        let threads = c_int::try_from(config.threads_per_block()).unwrap_or(c_int::MAX);
        // SAFETY: `blocks` outlives the call; the function is live and its context current.
        unsafe {
            call!(
                context,
                format!("asking for the occupancy of kernel {}", self.name),
                occupancy_max_active_blocks_per_multiprocessor(
                    &mut blocks,
                    self.function,
                    threads,
                    config.dynamic_shared_bytes as usize
                )
            )
        }?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// How many clusters of this launch the device can hold at once.
    ///
    /// # Errors
    /// [`DriverError::OtherContext`], or what the driver reports.
    pub fn clusters_on_device(&self, stream: &Stream, config: &LaunchConfig) -> Result<u32> {
        self.same_context(stream, "asking for the occupancy of clusters")?;
        let context = stream.context();
        let symbol = SYMBOLS.occupancy_max_active_clusters;
        let max_active_clusters = context.api().occupancy_max_active_clusters;
        let _current = context.enter()?;
        let attributes = Attributes::of(config);
        let raw_config = attributes.raw_config(config, stream.raw());
        let mut clusters = 0;
        // SAFETY: all outlive the call; the function is live and its context current.
        match unsafe { max_active_clusters(&mut clusters, self.function, &raw_config) } {
            CUresult::SUCCESS => Ok(u32::try_from(clusters).unwrap_or(0)),
            code => Err(context.failed(
                symbol,
                code,
                format!("asking for the occupancy of kernel {}", self.name).into(),
            )),
        }
    }
}

/// The attributes of a launch beyond grid, block and shared memory.
struct Attributes {
    list: [CUlaunchAttribute; 3],
    count: usize,
}

impl Attributes {
    fn of(config: &LaunchConfig) -> Attributes {
        let ignored = CUlaunchAttribute {
            id: CUlaunchAttributeId::IGNORE,
            pad: [0; 4],
            value: CUlaunchAttributeValue { words: [0; 8] },
        };
        let mut attributes = Attributes {
            list: [ignored; 3],
            count: 0,
        };
        if let Some(cluster_dim) = config.cluster {
            attributes.push(
                CUlaunchAttributeId::CLUSTER_DIMENSION,
                CUlaunchAttributeValue { cluster_dim },
            );
        }
        if config.cooperative {
            attributes.push(
                CUlaunchAttributeId::COOPERATIVE,
                CUlaunchAttributeValue { cooperative: 1 },
            );
        }
        if config.programmatic {
            attributes.push(
                CUlaunchAttributeId::PROGRAMMATIC_STREAM_SERIALIZATION,
                CUlaunchAttributeValue {
                    programmatic_stream_serialization_allowed: 1,
                },
            );
        }
        attributes
    }

    fn push(&mut self, id: CUlaunchAttributeId, value: CUlaunchAttributeValue) {
        self.list[self.count] = CUlaunchAttribute {
            id,
            pad: [0; 4],
            value,
        };
        self.count += 1;
    }

    /// The driver's form of a launch; valid as long as the attributes live.
    fn raw_config(&self, config: &LaunchConfig, stream: CUstream) -> CUlaunchConfig {
        let ([grid_dim_x, grid_dim_y, grid_dim_z], [block_dim_x, block_dim_y, block_dim_z]) =
            (config.grid, config.block);
        CUlaunchConfig {
            grid_dim_x,
            grid_dim_y,
            grid_dim_z,
            block_dim_x,
            block_dim_y,
            block_dim_z,
            shared_mem_bytes: config.dynamic_shared_bytes,
            stream,
            attrs: self.list.as_ptr(),
            num_attrs: self.count as u32,
        }
    }
}

fn parameter_block(kernel: &str, expected: String, given: usize) -> DriverError {
    DriverError::ParameterBlock {
        kernel: kernel.to_owned(),
        expected,
        given,
    }
}

impl<P: ?Sized> Clone for Kernel<P> {
    fn clone(&self) -> Self {
        Kernel {
            module: self.module.clone(),
            function: self.function,
            name: self.name.clone(),
            limits: self.limits,
            param_bytes: self.param_bytes,
            parameters: PhantomData,
        }
    }
}

impl<P: ?Sized> fmt::Debug for Kernel<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.name)
    }
}
