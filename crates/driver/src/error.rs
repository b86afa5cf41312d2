//! Errors, with texts that say what to do.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use warptile_cuda_sys::{CUresult, LoadError};

use crate::launch::LaunchError;

/// The result of this crate's functions.
pub type Result<T, E = DriverError> = std::result::Result<T, E>;

/// Anything this crate reports.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver could not be loaded: not found, a stub, too old, or lacking a function.
    #[error(transparent)]
    Load(#[from] LoadError),

    /// The driver was loaded but cannot be initialised: its kernel module has another version, or the system is not ready.
    #[error(transparent)]
    Initialise(Box<CudaError>),

    /// The driver works but found no GPU.
    #[error(
        "the CUDA driver found no device: check that `nvidia-smi` lists one, that \
         CUDA_VISIBLE_DEVICES does not hide it, and that a container was started with GPU access"
    )]
    NoDevice,

    /// A device ordinal past the last device.
    #[error("there is no CUDA device {ordinal}: this machine has {count}, counted from 0")]
    NoSuchDevice {
        /// The ordinal that was asked for.
        ordinal: u32,
        /// How many devices there are.
        count: u32,
    },

    /// A call to the driver failed.
    #[error(transparent)]
    Cuda(Box<CudaError>),

    /// A module image was refused; the driver's compiler log is part of the message.
    #[error("{source}{}", Log(log))]
    Module {
        /// The failed call.
        source: Box<CudaError>,
        /// The output of the driver's linker or PTX compiler.
        log: String,
    },

    /// The bytes are not a module image.
    #[error("the image is not loadable: {reason}")]
    BadImage {
        /// The defect of the bytes.
        reason: &'static str,
    },

    /// A name that is to be looked up in a module contains a NUL byte.
    #[error("the name {name:?} contains a NUL byte, which no entry of a module does")]
    BadName {
        /// The name.
        name: String,
    },

    /// The kernel takes other parameters than the type the caller launches it with.
    #[error(
        "kernel {kernel} takes {expected} but the parameter block given has {given} bytes: image \
         and host code come from different versions"
    )]
    ParameterBlock {
        /// Name of the kernel.
        kernel: String,
        /// A description of the parameters that the kernel takes.
        expected: String,
        /// Size of the host's parameter block.
        given: usize,
    },

    /// A launch was refused before it reached the driver.
    #[error("kernel {kernel} was not launched: {reason}")]
    Launch {
        /// Name of the kernel.
        kernel: String,
        /// Which limit it breaks.
        reason: LaunchError,
    },

    /// A tensor map was refused before it reached the driver.
    #[error("the tensor map breaks a rule of the hardware: {rule}")]
    TensorMap {
        /// The broken rule, with the value that breaks it.
        rule: String,
    },

    /// Two things of different contexts were used together.
    #[error(
        "{operation}: the two objects belong to different contexts; create both from the same \
         Context, or copy between devices with DeviceBuffer::copy_from"
    )]
    OtherContext {
        /// The operation asked for.
        operation: &'static str,
    },

    /// A borrowed stream does not belong to the context it was borrowed for.
    #[error(
        "the borrowed stream belongs to another CUDA context than {device}'s primary context; \
         warptile works in primary contexts only"
    )]
    ForeignContext {
        /// The device the caller named.
        device: String,
    },

    /// Two lengths that must agree don't.
    #[error("{operation}: the source has {source_len} elements, the destination {destination_len}")]
    Length {
        /// The operation asked for.
        operation: &'static str,
        /// Elements of the source.
        source_len: usize,
        /// Elements of the destination.
        destination_len: usize,
    },

    /// Work of another library in a stream was ended early, so that memory lacks the values that the work was to write.
    #[error("work in a stream was ended before it was done: {why}")]
    Ended {
        /// The reason.
        why: String,
    },

    /// A range that does not lie in the buffer.
    #[error("elements {}..{} are not within a buffer of {len} elements", range.start, range.end)]
    OutOfRange {
        /// The range that was asked for.
        range: Range<usize>,
        /// Elements of the buffer.
        len: usize,
    },

    /// Rows to copy that overlap.
    #[error("rows of {row} elements cannot lie {pitch} elements apart")]
    Pitch {
        /// Elements from one row to the next.
        pitch: usize,
        /// Elements of a row.
        row: usize,
    },

    /// More bytes than an address can count.
    #[error("{len} elements of {size} bytes are more than the address space holds")]
    TooLarge {
        /// Elements asked for.
        len: usize,
        /// Bytes of one element.
        size: usize,
    },

    /// The stream is `CU_STREAM_PER_THREAD`, which is a different stream on each thread.
    #[error(
        "the borrowed stream is CU_STREAM_PER_THREAD (handle 0x2), which is another stream on each \
         thread, but a Stream can be sent to other threads: create a stream, or launch on the handle \
         itself with Kernel::launch_raw in a session that stays on one thread"
    )]
    PerThreadStream,

    /// A stream cannot be taken into a capture where this thread relies on none being.
    #[error("{operation} would wait for this thread itself, which holds the context's streams")]
    Held {
        /// The operation asked for.
        operation: &'static str,
    },

    /// The driver's memory is not aligned as the type needs it.
    #[error("memory at {address:#x} is not aligned to the {alignment} bytes that {element} needs")]
    Alignment {
        /// Where the memory is.
        address: usize,
        /// The alignment that the type needs, in bytes.
        alignment: usize,
        /// The type.
        element: &'static str,
    },

    /// Something that allocates or waits was asked of a stream that is being captured.
    #[error(
        "{operation} is not possible while the stream is being captured into a graph: allocate \
         before the capture, and copy to and from the host outside it"
    )]
    Capturing {
        /// The operation asked for.
        operation: &'static str,
    },
}

impl DriverError {
    /// The driver's code, if the error comes from a call to it.
    pub fn code(&self) -> Option<CUresult> {
        match self {
            DriverError::Cuda(error)
            | DriverError::Initialise(error)
            | DriverError::Module { source: error, .. } => Some(error.code),
            _ => None,
        }
    }

    /// Returns true if the device ran out of memory; the context stays usable.
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == Some(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Returns true if the context is lost: every later call in this process fails the same way.
    pub fn is_sticky(&self) -> bool {
        self.code().is_some_and(is_sticky)
    }
}

/// Appends a compiler log to a message, if there is one.
struct Log<'a>(&'a str);

impl fmt::Display for Log<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.trim() {
            "" => Ok(()),
            log => write!(f, "\nthe driver's compiler says:\n{log}"),
        }
    }
}

/// A failed call to the driver.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CudaError {
    /// A description of the operation that failed.
    pub operation: Cow<'static, str>,
    /// The function that returned the error.
    pub symbol: &'static str,
    /// The code it returned.
    pub code: CUresult,
    /// The code's name, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// The driver's description.
    pub text: String,
    /// Kernels that may have caused it: for an error that only shows after the launch, those
    /// launched since the stream was last synchronized.
    pub suspects: Vec<Arc<str>>,
}

impl std::error::Error for CudaError {}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CudaError {
            operation,
            symbol,
            name,
            text,
            ..
        } = self;
        write!(f, "{operation}: {symbol} failed with {name}: {text}")?;
        match self.suspects.as_slice() {
            [] => {}
            [kernel] => write!(f, "; kernel {kernel} was running")?,
            kernels => write!(
                f,
                "; one of these kernels was running: {}",
                kernels.join(", ")
            )?,
        }
        match advice(self.code) {
            Some(advice) => write!(f, ". {advice}"),
            None => Ok(()),
        }
    }
}

/// Codes after which the context, and with it this process's use of the device, is lost.
pub(crate) fn is_sticky(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::ERROR_ECC_UNCORRECTABLE
            | CUresult::ERROR_NVLINK_UNCORRECTABLE
            | CUresult::ERROR_CONTAINED
            | CUresult::ERROR_ILLEGAL_ADDRESS
            | CUresult::ERROR_LAUNCH_TIMEOUT
            | CUresult::ERROR_ASSERT
            | CUresult::ERROR_HARDWARE_STACK_ERROR
            | CUresult::ERROR_ILLEGAL_INSTRUCTION
            | CUresult::ERROR_MISALIGNED_ADDRESS
            | CUresult::ERROR_INVALID_ADDRESS_SPACE
            | CUresult::ERROR_INVALID_PC
            | CUresult::ERROR_LAUNCH_FAILED
            | CUresult::ERROR_TENSOR_MEMORY_LEAK
    )
}

/// Advice for the codes that users meet.
fn advice(code: CUresult) -> Option<&'static str> {
    Some(match code {
        CUresult::ERROR_OUT_OF_MEMORY => {
            "The device's memory is used up: free buffers or make the problem smaller; `nvidia-smi` \
             shows who holds it. The context is still usable"
        }
        CUresult::ERROR_NO_DEVICE => {
            "Check that `nvidia-smi` lists a GPU and that CUDA_VISIBLE_DEVICES does not hide it"
        }
        CUresult::ERROR_STUB_LIBRARY => {
            "This library is the CUDA toolkit's stub: take its directory out of LD_LIBRARY_PATH and \
             install NVIDIA's driver"
        }
        CUresult::ERROR_NO_BINARY_FOR_GPU => {
            "The image was not compiled for this GPU: choose one for its compute capability, or a PTX"
        }
        CUresult::ERROR_INVALID_PTX | CUresult::ERROR_UNSUPPORTED_PTX_VERSION => {
            "The driver cannot compile this PTX: it may be newer than the driver; update the driver"
        }
        CUresult::ERROR_JIT_COMPILER_NOT_FOUND => {
            "The driver's PTX compiler (libnvidia-ptxjitcompiler) is not installed; in a container, \
             allow the `compute` driver capability"
        }
        CUresult::ERROR_NOT_FOUND => "The image has no such name: is it the right image?",
        CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES => {
            "The block needs more registers or shared memory than a multiprocessor has: use fewer \
             threads or less shared memory"
        }
        CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => {
            "A cooperative grid must fit on the device at once: ask the kernel's occupancy"
        }
        CUresult::ERROR_SYSTEM_DRIVER_MISMATCH => {
            "The driver's library and its kernel module have different versions: reboot after a \
             driver update"
        }
        CUresult::ERROR_SYSTEM_NOT_READY => {
            "The system is not ready: on NVSwitch machines, is nvidia-fabricmanager running?"
        }
        CUresult::ERROR_DEVICE_UNAVAILABLE => {
            "Another process holds the device exclusively, or it is being reset"
        }
        code if is_sticky(code) => {
            "The context is lost: every later CUDA call of this process on this device will fail. \
             Restart the process; compute-sanitizer finds the faulty access"
        }
        _ => return None,
    })
}
