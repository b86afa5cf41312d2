//! Whose array an object is.

use std::fmt;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};

use crate::errors::Result;
use crate::torch::Torch;

/// The library an array is of, as far as it matters for making more of them and for its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    Torch,
    /// Of a class that inherits from torch's tensors and says itself what operators do, such as fake tensors.
    TorchDispatch,
    Numpy,
    Cupy,
    /// Its arrays never change: none is written into.
    Jax,
    Other,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Torch | Library::TorchDispatch => "torch",
            Library::Numpy => "numpy",
            Library::Cupy => "cupy",
            Library::Jax => "jax",
            Library::Other => "another library",
        })
    }
}

/// The library by the module of the object's class. A class that inherits from `numpy.ndarray` counts as another library's: it may mean its
/// elements in another way, which its DLPack tells.
pub(crate) fn library_of(object: &Bound<'_, PyAny>) -> Result<Library> {
    let py = object.py();
    let class = object.get_type();
    if Torch::is_tensor_class(py, &class) {
        return Ok(Library::Torch);
    }
    static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if NDARRAY.get(py).is_some_and(|known| class.is(known)) {
        return Ok(Library::Numpy);
    }
    let module = class.getattr(intern!(py, "__module__"))?;
    let Ok(module) = module.cast::<PyString>() else {
        return Ok(Library::Other);
    };
    let (module, name) = (module.to_cow()?, class.name()?);
    let name = name.to_cow()?;
    Ok(match (&*module, &*name) {
        ("torch", "Tensor") | ("torch.nn.parameter", "Parameter") => {
            Torch::get(py)?;
            Library::Torch
        }
        ("numpy", "ndarray") => {
            NDARRAY.get_or_init(py, || class.unbind());
            Library::Numpy
        }
        (module, "ndarray") if module == "cupy" || module.starts_with("cupy.") => Library::Cupy,
        (module, _) if matches!(module.split('.').next(), Some("jax" | "jaxlib")) => Library::Jax,
        _ => Torch::of_subclass(&class)?.map_or(Library::Other, |is_plain| match is_plain {
            true => Library::Torch,
            false => Library::TorchDispatch,
        }),
    })
}
