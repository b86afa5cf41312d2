//! Arrays of other libraries: how they are read, and what keeps their elements in memory.

mod described;
mod interfaces;
mod library;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use warptile::kernels::Excerpt;

use crate::dlpack;
use crate::errors::{Failure, Result};
use crate::torch::Torch;
use interfaces::{array_interface, cuda_array_interface, data_of, of_buffer};

pub(crate) use described::{Described, Device, Dtype, MAX_RANK, Order};
pub(crate) use library::{Library, library_of};

/// The owner that keeps the elements of an array in memory, besides the object itself.
#[expect(dead_code, reason = "held only to be dropped after the call")]
enum Keeper<'py> {
    None,
    Capsule(Bound<'py, PyCapsule>),
    Buffer(PyUntypedBuffer),
}

/// An array of another library, held.
pub(crate) struct Array<'py> {
    pub(crate) object: Bound<'py, PyAny>,
    pub(crate) library: Library,
    pub(crate) is: Described,
    _keeper: Keeper<'py>,
}

/// The use of an array, and its stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    /// The library whose current stream it is; another library's arrays must be told of it.
    pub(crate) library: Library,
    pub(crate) stream: u64,
    pub(crate) gradients: Gradients,
}

/// The treatment of a tensor that requires a gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gradients {
    /// It is an error, as none would be computed.
    Refused,
    /// Somebody else sees to it.
    Ignored,
}

impl<'py> Array<'py> {
    /// A new tensor of torch, which has no gradient and is no view. None unless torch's C function describes it.
    pub(crate) fn of_torch(name: &'static str, object: &Bound<'py, PyAny>) -> Option<Self> {
        let library = library_of(object).ok()?;
        if library != Library::Torch {
            return None;
        }
        let is = Torch::get(object.py()).ok()?.quickly(name, object)?;
        Some(Array {
            object: object.clone(),
            library,
            is,
            _keeper: Keeper::None,
        })
    }

    /// Reads how an object's elements lie in memory, through the first of these that it has: the attributes of a torch tensor,
    /// numpy's `__array_interface__`, DLPack, `__cuda_array_interface__`, the buffer protocol.
    pub(crate) fn read(
        name: &'static str,
        object: &Bound<'py, PyAny>,
        for_use: Use,
    ) -> Result<Self> {
        let library = library_of(object)?;
        if library == Library::TorchDispatch {
            return Err(Failure::Traced(name));
        }
        let py = object.py();
        let done = |is, keeper| {
            Ok(Array {
                object: object.clone(),
                library,
                is,
                _keeper: keeper,
            })
        };
        if library == Library::Torch {
            let torch = Torch::get(py)?;
            let described = torch.describe(name, object, for_use.gradients)?;
            // Work of torch's on another stream: its `__dlpack__` makes ours wait for it.
            if described.device == Device::Cpu || for_use.library == Library::Torch {
                return done(described, Keeper::None);
            }
        }
        if library == Library::Numpy || object.hasattr(intern!(py, "__array_interface__"))? {
            return done(array_interface(name, object, library)?, Keeper::None);
        }
        if object.hasattr(intern!(py, "__dlpack__"))?
            && object.hasattr(intern!(py, "__dlpack_device__"))?
        {
            let device = dlpack::device(name, object)?;
            let capsule = dlpack::export(object, device, for_use.stream)?;
            return done(dlpack::read(name, &capsule)?, Keeper::Capsule(capsule));
        }
        if object.hasattr(intern!(py, "__cuda_array_interface__"))? {
            return done(cuda_array_interface(name, object, for_use)?, Keeper::None);
        }
        match PyUntypedBuffer::get(object) {
            Ok(buffer) => done(of_buffer(name, &buffer)?, Keeper::Buffer(buffer)),
            Err(_) => Err(Failure::Type(format!(
                "{name} is of type {}; a tensor must have DLPack, the CUDA array interface or the buffer protocol, as those of torch, cupy, jax and numpy do",
                type_name(object)
            ))),
        }
    }
}

/// Where an object is, without asking for its elements.
pub(crate) fn device_of(
    name: &'static str,
    object: &Bound<'_, PyAny>,
) -> Result<(Library, Device)> {
    let (py, library) = (object.py(), library_of(object)?);
    let device = match library {
        Library::Torch => Torch::get(py)?.device(name, object)?,
        Library::TorchDispatch => return Err(Failure::Traced(name)),
        Library::Numpy => Device::Cpu,
        _ if object.hasattr(intern!(py, "__dlpack_device__"))? => dlpack::device(name, object)?,
        _ if object.hasattr(intern!(py, "__cuda_array_interface__"))? => {
            let interface = object.getattr(intern!(py, "__cuda_array_interface__"))?;
            let (address, _) = data_of(name, interface.cast().map_err(PyErr::from)?)?;
            crate::gpu::device_of_address(name, address)?
        }
        _ => Device::Cpu,
    };
    Ok((library, device))
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().fully_qualified_name();
    match name {
        Ok(name) => Excerpt::new(&name.to_string_lossy()).to_string(),
        Err(_) => "unknown".to_owned(),
    }
}

/// The numbers of a tuple, for shapes and strides.
pub(crate) fn numbers(object: &Bound<'_, PyAny>) -> Result<([i64; MAX_RANK], usize)> {
    let tuple = object.cast::<PyTuple>().map_err(PyErr::from)?;
    let mut list = [0; MAX_RANK];
    let rank = tuple.len();
    for (to, item) in list.iter_mut().zip(tuple.iter_borrowed()) {
        *to = item.extract()?;
    }
    Ok((list, rank))
}
