//! DLPack's structures, and tensors read out of its capsules.
//!
//! Declared after `dlpack.h` of DLPack 1.1, and of 1.3 for its C functions: <https://dmlc.github.io/dlpack/latest/c_api.html>.

use std::ffi::{CStr, c_int, c_void};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::array::{Described, Device, Dtype};
use crate::errors::{Failure, Result};

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

/// The newest version whose structures are declared here; a newer minor one only adds to them.
const VERSION: (u32, u32) = (1, 1);
const FLAG_READ_ONLY: u64 = 1;
const FLAG_COPIED: u64 = 2;

const VERSIONED: &CStr = c"dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";
const EXCHANGE: &CStr = c"dlpack_exchange_api";

#[repr(C)]
struct DlDevice {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *const i64,
    /// In elements; null if the tensor is contiguous.
    strides: *const i64,
    byte_offset: u64,
}

/// The beginning of `DLManagedTensor`: what follows is the producer's.
#[repr(C)]
struct DlManagedTensor {
    tensor: DlTensor,
}

#[repr(C)]
struct DlVersion {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct DlManagedTensorVersioned {
    version: DlVersion,
    manager_context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensorVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// The head of a table of C functions. Tables of other major versions follow by `previous`.
#[repr(C)]
struct DlExchangeHeader {
    version: DlVersion,
    previous: *const DlExchangeHeader,
}

#[repr(C)]
struct DlExchange {
    header: DlExchangeHeader,
    allocate: *const c_void,
    managed_of_object: *const c_void,
    object_of_managed: *const c_void,
    tensor_of_object: Option<TensorOfObject>,
}

/// Fills in the tensor of a Python object, whose memory stays the object's. Other results than 0 set a Python exception.
type TensorOfObject = unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int;

/// DLPack's C function that describes the objects of a class, which takes a fraction of the time of its attributes.
pub(crate) struct Exchange(TensorOfObject);

impl Exchange {
    /// The function of a class, if it has one.
    pub(crate) fn of(class: &Bound<'_, PyAny>) -> Option<Self> {
        let table = class.getattr("__dlpack_c_exchange_api__").ok()?;
        let table = table.cast_into::<PyCapsule>().ok()?;
        let found = table.pointer_checked(Some(EXCHANGE)).ok()?;
        let mut next: *const DlExchangeHeader = found.as_ptr().cast();
        // SAFETY: by the protocol each table begins with its head, and stays as long as the process.
        while let Some(head) = unsafe { next.as_ref() } {
            if head.version.major == VERSION.0 {
                // SAFETY: the tables of this major version have this layout, and newer minor ones only add to it.
                let tensor_of_object = unsafe { (*next.cast::<DlExchange>()).tensor_of_object };
                return tensor_of_object.map(Exchange);
            }
            next = head.previous;
        }
        None
    }

    /// Describes an object of the class. None if that fails, or if its elements have another type than those of [`Dtype`].
    pub(crate) fn describe(
        &self,
        name: &'static str,
        object: &Bound<'_, PyAny>,
    ) -> Option<Described> {
        let mut tensor = std::mem::MaybeUninit::<DlTensor>::zeroed();
        // SAFETY: the object is one of the class, and the GIL is held.
        if unsafe { (self.0)(object.as_ptr().cast(), tensor.as_mut_ptr()) } != 0 {
            PyErr::take(object.py());
            return None;
        }
        // SAFETY: every field may be zero, and those that the function has filled in point to memory of the object, which is held.
        let tensor = unsafe { tensor.assume_init_ref() };
        { describe(name, tensor, true).ok() }.filter(|is| !matches!(is.dtype, Dtype::Other(_)))
    }
}

/// Where the object's `__dlpack_device__` says it is.
pub(crate) fn device(name: &'static str, object: &Bound<'_, PyAny>) -> Result<Device> {
    let (kind, id): (i64, i64) = object
        .call_method0(intern!(object.py(), "__dlpack_device__"))?
        .extract()?;
    device_of(name, kind, id)
}

fn device_of(name: &'static str, kind: i64, id: i64) -> Result<Device> {
    let (cpu, cuda) = (i64::from(CPU), i64::from(CUDA));
    match (kind, u32::try_from(id)) {
        (kind, _) if kind == cpu || kind == i64::from(CUDA_HOST) => Ok(Device::Cpu),
        (kind, Ok(id)) if kind == cuda || kind == i64::from(CUDA_MANAGED) => Ok(Device::Cuda(id)),
        _ => Err(Failure::Invalid(format!(
            "{name} is on a device that warptile cannot use (DLPack type {kind}, number {id}); tensors must be on the CPU or on an NVIDIA GPU"
        ))),
    }
}

/// The object's capsule, for work that will be queued on `stream` if it is on a GPU. Dropping it lets the producer free the tensor.
pub(crate) fn export<'py>(
    object: &Bound<'py, PyAny>,
    device: Device,
    stream: u64,
) -> Result<Bound<'py, PyCapsule>> {
    let py = object.py();
    let options = PyDict::new(py);
    if let Device::Cuda(_) = device {
        // DLPack has no number 0 for CUDA's default streams: 1 is the one that handle 0 means.
        options.set_item(intern!(py, "stream"), stream.max(1))?;
    }
    let with_version = options.copy()?;
    with_version.set_item(intern!(py, "max_version"), VERSION)?;
    with_version.set_item(intern!(py, "copy"), false)?;
    let capsule = match object.call_method(intern!(py, "__dlpack__"), (), Some(&with_version)) {
        // A producer from before versions does not know the arguments.
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => {
            object.call_method(intern!(py, "__dlpack__"), (), Some(&options))?
        }
        other => other?,
    };
    Ok(capsule.cast_into().map_err(PyErr::from)?)
}

/// Describes the tensor in a capsule, which must stay alive while its memory is used.
pub(crate) fn read(name: &'static str, capsule: &Bound<'_, PyCapsule>) -> Result<Described> {
    if capsule.is_valid_checked(Some(VERSIONED)) {
        let managed: *const DlManagedTensorVersioned =
            capsule.pointer_checked(Some(VERSIONED))?.as_ptr().cast();
        // SAFETY: a capsule of this name holds a structure that begins with its version, by the DLPack protocol, and it is
        // alive while the capsule is.
        let version = unsafe { &(*managed).version };
        if version.major != VERSION.0 {
            return Err(Failure::Type(format!(
                "{name} comes as DLPack {}.{}, but warptile reads version {}",
                version.major, version.minor, VERSION.0
            )));
        }
        // SAFETY: structures of this major version have this layout.
        let (flags, tensor) = unsafe { ((*managed).flags, &(*managed).tensor) };
        let writable = flags & (FLAG_READ_ONLY | FLAG_COPIED) == 0;
        return describe(name, tensor, writable);
    }
    let managed: *const DlManagedTensor =
        capsule.pointer_checked(Some(UNVERSIONED))?.as_ptr().cast();
    // SAFETY: a capsule of this name holds this structure, by the DLPack protocol, and it is alive while the capsule is.
    describe(name, unsafe { &(*managed).tensor }, true)
}

fn describe(name: &'static str, tensor: &DlTensor, writable: bool) -> Result<Described> {
    let device = device_of(
        name,
        i64::from(tensor.device.kind),
        i64::from(tensor.device.id),
    )?;
    let rank = usize::try_from(tensor.ndim).unwrap_or(0);
    let list = |start: *const i64| match start.is_null() || rank == 0 {
        true => None,
        // SAFETY: `shape`, and `strides` if not null, have `ndim` numbers.
        false => Some(unsafe { std::slice::from_raw_parts(start, rank) }),
    };
    let DlDataType { code, bits, lanes } = tensor.dtype;
    let dtype = match (code, bits, lanes) {
        (0, 32, 1) => Dtype::I32,
        (0, 64, 1) => Dtype::I64,
        (1, 8, 1) => Dtype::U8,
        (1, 32, 1) => Dtype::U32,
        (2, 16, 1) => Dtype::F16,
        (2, 32, 1) => Dtype::F32,
        (4, 16, 1) => Dtype::Bf16,
        (6, 8, 1) => Dtype::Bool,
        _ => { Dtype::of_dlpack(code).filter(|_| (bits, lanes) == (8, 1)) }
            .unwrap_or_else(|| Dtype::Other(format!("DLPack ({code}, {bits}, {lanes})"))),
    };
    Described::new(
        name,
        device,
        (tensor.data as u64).wrapping_add(tensor.byte_offset),
        dtype,
        list(tensor.shape).unwrap_or_default(),
        list(tensor.strides),
        writable,
    )
}
