//! New arrays for results, made by the library of the queries.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PySlice;
use warptile::Layout;

use crate::array::{Array, Device, Dtype, Library, Order};
use crate::errors::{Failure, Result};
use crate::torch::Torch;

/// The contents of a new array before anything is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Whatever was in memory.
    Nothing,
    /// Zeros, as some rows of the result may belong to no sequence.
    Zeros,
}

/// An array on q's device, of q's element type or of `float32`, whose strides are those of a dense one with its dimensions in some order.
fn dense<'py>(
    q: &Array<'py>,
    shape: &[usize],
    strides: &[usize],
    dtype: Option<Dtype>,
    fill: Fill,
) -> Result<Bound<'py, PyAny>> {
    match q.library {
        Library::Torch => {
            let made = Torch::get(q.object.py())?.empty(q, shape, strides, dtype)?;
            if fill == Fill::Zeros {
                made.call_method0(intern!(made.py(), "zero_"))?;
            }
            Ok(made)
        }
        _ => by_numpy(q, shape, strides, dtype, fill),
    }
}

/// Calls `make` with this stream as the current one of the library. Its allocator may give a piece of memory while earlier work on the
/// current stream still uses it, and fills it in that stream's order.
pub(crate) fn on_stream<T>(
    py: Python<'_>,
    library: Library,
    ordinal: u32,
    stream: u64,
    make: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match library {
        Library::Torch => {
            let cuda = py.import("torch.cuda")?;
            let stream = match stream {
                // Both are the legacy default stream; `ExternalStream(0)` would be any of torch's own.
                0 | 1 => cuda.call_method1("default_stream", (ordinal,))?,
                stream => cuda.call_method1("ExternalStream", (stream, ordinal))?,
            };
            within(&cuda.call_method1("stream", (stream,))?, make)
        }
        Library::Cupy => {
            let cuda = py.import("cupy")?.getattr("cuda")?;
            let device = cuda.call_method1("Device", (ordinal,))?;
            // Each device has a current stream.
            within(&device, || {
                within(&cuda.call_method1("ExternalStream", (stream,))?, make)
            })
        }
        _ => make(),
    }
}

/// Calls `make` in a `with` statement of Python.
fn within<T>(manager: &Bound<'_, PyAny>, make: impl FnOnce() -> Result<T>) -> Result<T> {
    let py = manager.py();
    manager.call_method0(intern!(py, "__enter__"))?;
    let made = make();
    manager.call_method1(intern!(py, "__exit__"), (py.None(), py.None(), py.None()))?;
    made
}

/// An output of this layout, by the library of q. `packed`: without the batch.
pub(crate) fn output<'py>(
    q: &Array<'py>,
    order: Order,
    layout: &Layout,
    packed: bool,
    fill: Fill,
) -> Result<Bound<'py, PyAny>> {
    let (shape, strides) = order.of(layout);
    let from = usize::from(packed);
    dense(q, &shape[from..], &strides[from..], None, fill)
}

/// The lse of an output, `[batch, heads, rows]`.
pub(crate) fn lse<'py>(
    q: &Array<'py>,
    out: &Layout,
    packed: bool,
    fill: Fill,
) -> Result<Bound<'py, PyAny>> {
    let [batch, rows, heads, _] = out.shape;
    let (shape, strides) = ([batch, heads, rows], [heads * rows, rows, 1]);
    let from = usize::from(packed);
    dense(q, &shape[from..], &strides[from..], Some(Dtype::F32), fill)
}

/// Bytes on the GPU of q. The first `zeros` of them are zeroed in the order of the current stream of its library.
pub(crate) fn workspace<'py>(
    q: &Array<'py>,
    bytes: usize,
    zeros: usize,
) -> Result<Bound<'py, PyAny>> {
    let make = || dense(q, &[bytes], &[1], Some(Dtype::U8), Fill::Nothing);
    let py = q.object.py();
    match q.library {
        Library::Torch => {
            let made = make()?;
            let narrow = made.call_method1(intern!(py, "narrow"), (0, 0, zeros.min(bytes)))?;
            narrow.call_method0(intern!(py, "zero_"))?;
            Ok(made)
        }
        Library::Cupy => {
            let made = make()?;
            made.set_item(PySlice::new(py, 0, zeros as isize, 1), 0)?;
            Ok(made)
        }
        other => Err(Failure::Invalid(format!(
            "q is an array of {other}; on a GPU, gradients are computed for tensors of torch and cupy"
        ))),
    }
}

/// A gradient of this layout and type, by the library of q. `from`: the first dimension that it has.
pub(crate) fn gradient<'py>(
    q: &Array<'py>,
    order: Order,
    layout: &Layout,
    from: usize,
    dtype: Dtype,
    fill: Fill,
) -> Result<Bound<'py, PyAny>> {
    let (shape, strides) = order.of(layout);
    dense(q, &shape[from..], &strides[from..], Some(dtype), fill)
}

/// A list of `float32`.
pub(crate) fn list<'py>(q: &Array<'py>, len: usize) -> Result<Bound<'py, PyAny>> {
    dense(q, &[len], &[1], Some(Dtype::F32), Fill::Nothing)
}

/// By numpy or by cupy, whose functions are the same.
fn by_numpy<'py>(
    q: &Array<'py>,
    shape: &[usize],
    strides: &[usize],
    dtype: Option<Dtype>,
    fill: Fill,
) -> Result<Bound<'py, PyAny>> {
    let py = q.object.py();
    let name = match (q.library, q.is.device) {
        (Library::Cupy, Device::Cuda(_)) => "cupy",
        (_, Device::Cpu) => "numpy",
        (Library::Jax, Device::Cuda(_)) => {
            return Err(Failure::Invalid(
                "q is an array of jax on a GPU, for which warptile cannot make results; pass torch.from_dlpack(q), and the others alike"
                    .to_owned(),
            ));
        }
        (_, Device::Cuda(_)) => {
            return Err(Failure::Invalid(
                "out is missing: on a GPU, warptile can make results for torch and cupy only; pass out, and lse if you want it"
                    .to_owned(),
            ));
        }
    };
    let module = py.import(name).map_err(|_| {
        Failure::Invalid(format!(
            "out is missing, and {name} cannot be imported to make it"
        ))
    })?;
    let dtype = match dtype {
        Some(dtype) => numpy_dtype(&module, &dtype)?,
        None if matches!(q.library, Library::Numpy | Library::Cupy) => q.object.getattr("dtype")?,
        None => numpy_dtype(&module, &q.is.dtype)?,
    };
    // The dimensions in the order in which they lie in memory, and the way back.
    let mut order: Vec<usize> = (0..shape.len()).collect();
    order.sort_by_key(|&dimension| std::cmp::Reverse(strides[dimension]));
    let stored: Vec<usize> = order.iter().map(|&dimension| shape[dimension]).collect();
    let mut back = vec![0; order.len()];
    for (place, &dimension) in order.iter().enumerate() {
        back[dimension] = place;
    }
    let function = match fill {
        Fill::Nothing => "empty",
        Fill::Zeros => "zeros",
    };
    let make = || Ok(module.call_method1(function, (stored, dtype))?);
    let made = match q.is.device {
        // Cupy makes arrays on its current device.
        Device::Cuda(ordinal) => {
            let device = module.getattr("cuda")?.call_method1("Device", (ordinal,))?;
            within(&device, make)?
        }
        Device::Cpu => make()?,
    };
    Ok(made.call_method1("transpose", (back,))?)
}

/// A numpy array without other owners, as an array of jax on the device of `like`, which need not be the default one.
pub(crate) fn into_jax<'py>(
    array: Bound<'py, PyAny>,
    like: &Array<'py>,
) -> Result<Bound<'py, PyAny>> {
    let jax = array.py().import("jax")?;
    // Arrays that DLPack exports are on one device.
    let devices = like.object.call_method0("devices")?;
    let device = devices.try_iter()?.next().transpose()?;
    Ok(jax.call_method1("device_put", (array, device))?)
}

/// The type of these elements in numpy, or in ml_dtypes.
fn numpy_dtype<'py>(module: &Bound<'py, PyModule>, dtype: &Dtype) -> Result<Bound<'py, PyAny>> {
    match dtype {
        Dtype::Bf16 => {
            let other = module.py().import("ml_dtypes").map_err(|_| {
                Failure::Invalid(
                    "out is missing: numpy has no bfloat16 for the result without ml_dtypes; pass out, or install ml_dtypes"
                        .to_owned(),
                )
            })?;
            Ok(other.getattr("bfloat16")?)
        }
        dtype => Ok(module.getattr(dtype.to_string())?),
    }
}
