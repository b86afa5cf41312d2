//! Where things are computed: the CPU, or a GPU that was opened.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};

use attention::driver::sys::{
    CUcontext, CUpointerAttribute, CUresult, CUstream, CUstreamCaptureStatus,
};
use attention::driver::{Context, Driver};
use attention::gpu::{Gpu, Operation, Prepared};

use crate::error::{Failure, Result, guarded};
use crate::host::Memory;
use crate::structs::{WARPTILE_CPU, address, check_pointer};

/// The version of this library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn warptile_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Counts the GPUs that this process can see. They are numbered from 0, in the driver's order.
///
/// Returns WARPTILE_NO_DEVICE if there is no usable driver; the text says why.
///
/// # Safety
/// `count` is null, which is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_device_count(count: *mut i32) -> i32 {
    guarded(|| {
        check_pointer("count", count, align_of::<i32>())?;
        let found = Driver::load()?.device_count()?;
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { count.write(i32::try_from(found).unwrap_or(i32::MAX)) };
        Ok(())
    })
}

/// Where a description is prepared for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Machine {
    Cpu,
    Gpu(&'static Gpu),
}

impl Machine {
    /// The CPU or GPU of this number, opened the first time.
    pub(crate) fn of(device: i32) -> Result<Self> {
        if device == WARPTILE_CPU {
            return Ok(Machine::Cpu);
        }
        match u32::try_from(device) {
            Ok(ordinal) => Ok(Machine::Gpu(open(ordinal)?)),
            Err(_) => Err(Failure::of(
                "device",
                format!("is {device}, but must be WARPTILE_CPU or the number of a GPU, from 0"),
            )),
        }
    }
}

/// The GPU of this number. It stays open until the process ends, with the kernels that were loaded on it: graphs that somebody captured
/// may refer to them at any time.
fn open(ordinal: u32) -> Result<&'static Gpu> {
    static OPENED: Mutex<BTreeMap<u32, &'static Gpu>> = Mutex::new(BTreeMap::new());
    let driver = Driver::load()?;
    // A map that a panic left behind is whole.
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = opened.get(&ordinal) {
        return Ok(known);
    }
    let gpu: &'static Gpu = Box::leak(Box::new(Gpu::new(&driver, ordinal)?));
    opened.insert(ordinal, gpu);
    Ok(gpu)
}

/// Checks that the caller passed no stream, as on the CPU.
pub(crate) fn no_stream(stream: *mut c_void) -> Result<()> {
    match stream.is_null() {
        true => Ok(()),
        false => Err(Failure::of(
            "stream",
            "is given, but the description was prepared for the CPU",
        )),
    }
}

/// The kernels loaded on a GPU for a description.
#[derive(Debug)]
pub(crate) struct OnGpu<P> {
    gpu: &'static Gpu,
    pub(crate) prepared: P,
    unchecked: bool,
}

impl<P> OnGpu<P> {
    /// Loads the kernels by `prepare`; `None` on the CPU.
    pub(crate) fn load(
        device: i32,
        unchecked: bool,
        prepare: impl FnOnce(&Gpu) -> attention::Result<P>,
    ) -> Result<Option<Self>> {
        match Machine::of(device)? {
            Machine::Cpu => Ok(None),
            Machine::Gpu(gpu) => Ok(Some(OnGpu {
                gpu,
                prepared: prepare(gpu)?,
                unchecked,
            })),
        }
    }

    /// Does a launch with the context current, after the stream and the addresses were looked at: those of another device, and of memory
    /// that the driver does not know, are errors instead of faults of the kernel. If it is to be unchecked, does the launch alone.
    pub(crate) fn launch(
        &self,
        stream: *mut c_void,
        addresses: impl IntoIterator<Item = (&'static str, u64)>,
        launch: impl FnOnce(CUstream) -> attention::Result<()>,
    ) -> Result<()> {
        let stream = CUstream(stream);
        if self.unchecked {
            return Ok(launch(stream)?);
        }
        let context = self.gpu.context();
        context.within(|| {
            check_stream(context, stream)?;
            for (argument, address) in addresses {
                check_address(self.gpu, argument, address)?;
            }
            Ok(launch(stream)?)
        })
    }
}

impl<O: Operation> OnGpu<Prepared<O>> {
    /// Launches the operation that `of` describes, as [`launch`](Self::launch) does.
    ///
    /// # Safety
    /// As warptile_attention_run. The workspace is as large as the plan says.
    pub(crate) unsafe fn run(
        &self,
        stream: *mut c_void,
        of: &O,
        memory: &impl Memory,
        workspace: u64,
    ) -> Result<()> {
        let addresses = memory.addresses();
        let all = { addresses.iter() }.map(|(operand, &address)| (operand.name(), address));
        self.launch(stream, all.chain([("workspace", workspace)]), |stream| {
            // SAFETY: the context is current and the stream is of it: `launch` has seen to it, or the caller has. The rest is the caller's
            // promise. Kernels and GPU stay for ever.
            unsafe { { &self.prepared }.launch_raw(stream, of, &addresses, workspace) }
        })
    }
}

/// Device memory that a caller gives a launch besides its tensors.
pub(crate) struct Workspace {
    start: *mut c_void,
    bytes: usize,
}

impl Workspace {
    pub(crate) const fn new(start: *mut c_void, bytes: usize) -> Self {
        Workspace { start, bytes }
    }

    /// Refuses one on the CPU.
    pub(crate) fn expect_none(&self) -> Result<()> {
        match self.start.is_null() && self.bytes == 0 {
            true => Ok(()),
            false => Err(Failure::of("workspace", "is given, but the CPU needs none")),
        }
    }

    /// Its address, if it has as many bytes as `asked`, a function, says.
    pub(crate) fn of_at_least(&self, needed: usize, asked: &str) -> Result<u64> {
        match self.bytes >= needed {
            true => Ok(address(self.start)),
            false => Err(Failure::of(
                "workspace_bytes",
                format!("is {}, but {needed} are needed: ask {asked}", self.bytes),
            )),
        }
    }
}

fn check_stream(context: &Context, stream: CUstream) -> Result<()> {
    // The default streams are those of the current context.
    if [CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD].contains(&stream) {
        return Ok(());
    }
    let api = context.driver().api();
    let mut status = CUstreamCaptureStatus::NONE;
    let mut of = CUcontext::NULL;
    // SAFETY: both outlive the calls, the context is current, and the stream is live by the contract of the exported functions.
    let code = unsafe {
        match (api.stream_is_capturing)(stream, &mut status) {
            // The documentation does not say which queries a capturing stream allows. The launch rejects a stream of another context.
            CUresult::SUCCESS if status != CUstreamCaptureStatus::NONE => return Ok(()),
            CUresult::SUCCESS => (api.stream_get_ctx)(stream, &mut of),
            code => code,
        }
    };
    if code != CUresult::SUCCESS {
        return Err(Failure::of(
            "stream",
            format!("cannot be used: the driver answers {code:?}"),
        ));
    }
    match of == context.raw() {
        true => Ok(()),
        false => Err(Failure::of(
            "stream",
            format!(
                "belongs to another CUDA context than the primary one of {:?}, in which warptile works",
                context.device()
            ),
        )),
    }
}

fn check_address(gpu: &Gpu, argument: &str, address: u64) -> Result<()> {
    let Some(rule) = not_of(gpu, address) else {
        return Ok(());
    };
    Err(Failure::of(
        argument,
        format!(
            "is {address:#x}, which {rule}, but the description was prepared for device {}; set unchecked if the device can use it \
             all the same",
            gpu.ordinal()
        ),
    ))
}

/// Says what an address is of, unless it is 0 or of this GPU's memory. The context is current.
pub(crate) fn not_of(gpu: &Gpu, address: u64) -> Option<String> {
    if address == 0 {
        return None;
    }
    let mut ordinal = 0_i32;
    let value = (&raw mut ordinal).cast();
    let get = gpu.context().driver().api().pointer_get_attribute;
    // SAFETY: the attribute's value is an `int`; any address may be asked for.
    let code = unsafe { get(value, CUpointerAttribute::DEVICE_ORDINAL, address) };
    match (code, u32::try_from(ordinal)) {
        (CUresult::SUCCESS, Ok(found)) if found == gpu.ordinal() => None,
        (CUresult::SUCCESS, _) => Some(format!("is on device {ordinal}")),
        _ => Some("is no memory that the CUDA driver knows".to_owned()),
    }
}
