//! Numpy's and CUDA's array interfaces and the buffer protocol, which tell of an array by strides in bytes.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::array::described::{Described, Device, Dtype};
use crate::array::{Library, Use};
use crate::errors::{Failure, Result};

/// Address and whether it is read-only.
pub(super) fn data_of(name: &'static str, interface: &Bound<'_, PyDict>) -> Result<(u64, bool)> {
    match interface.get_item(intern!(interface.py(), "data"))? {
        Some(data) if !data.is_none() => Ok(data.extract()?),
        _ => Err(Failure::Type(format!(
            "{name} does not say where its data is"
        ))),
    }
}

/// Numpy's interface, version 3: <https://numpy.org/doc/stable/reference/arrays.interface.html>.
pub(super) fn array_interface(
    name: &'static str,
    object: &Bound<'_, PyAny>,
    library: Library,
) -> Result<Described> {
    let interface = object.getattr(intern!(object.py(), "__array_interface__"))?;
    let interface = interface.cast::<PyDict>().map_err(PyErr::from)?;
    // A subclass with a mask has values that do not count, and its interface does not say so.
    if library != Library::Numpy && object.hasattr("mask")? {
        return Err(Failure::Type(format!(
            "{name} is a masked array, whose mask would be ignored; pass its data, and its mask as key_mask"
        )));
    }
    of_interface(name, object, interface, Device::Cpu)
}

/// CUDA's version 3: <https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html>.
pub(super) fn cuda_array_interface(
    name: &'static str,
    object: &Bound<'_, PyAny>,
    for_use: Use,
) -> Result<Described> {
    let interface = object.getattr("__cuda_array_interface__")?;
    let interface = interface.cast::<PyDict>().map_err(PyErr::from)?;
    let (address, _) = data_of(name, interface)?;
    let device = crate::gpu::device_of_address(name, address)?;
    if let (Device::Cuda(ordinal), Some(stream)) = (device, interface.get_item("stream")?)
        && !stream.is_none()
    {
        let stream: u64 = stream.extract()?;
        crate::gpu::order_after(object.py(), ordinal, stream, for_use.stream)?;
    }
    of_interface(name, object, interface, device)
}

/// The part that both interfaces share.
fn of_interface<'py>(
    name: &'static str,
    object: &Bound<'py, PyAny>,
    interface: &Bound<'py, PyDict>,
    device: Device,
) -> Result<Described> {
    let py = object.py();
    let item = |key: &Bound<'py, PyString>| -> Result<Option<Bound<'py, PyAny>>> {
        Ok(interface.get_item(key)?.filter(|item| !item.is_none()))
    };
    if item(intern!(py, "mask"))?.is_some() {
        return Err(Failure::Type(format!(
            "{name} has a mask in its array interface, which warptile does not read"
        )));
    }
    let missing = |key: &str| Failure::Type(format!("{name} has an array interface without {key}"));
    let (address, read_only) = data_of(name, interface)?;
    let shape = item(intern!(py, "shape"))?.ok_or_else(|| missing("shape"))?;
    let shape: Vec<i64> = shape.extract()?;
    let typestr = item(intern!(py, "typestr"))?.ok_or_else(|| missing("typestr"))?;
    let typestr: String = typestr.extract()?;
    let mut dtype = dtype_of_typestr(&typestr);
    // Numpy has no bfloat16 and no float8 of its own; those of ml_dtypes are bytes of nothing in particular.
    if let Dtype::Other(_) = dtype {
        let own = object.getattr("dtype").and_then(|own| own.getattr("name"));
        if let Ok(own) = own.and_then(|own| own.extract::<String>()) {
            let known = Dtype::scaled().find(|scaled| scaled.to_string() == own);
            dtype = match (own.as_str(), known) {
                (_, Some(scaled)) => scaled,
                ("bfloat16", _) => Dtype::Bf16,
                _ if typestr.starts_with('>') => Dtype::Other(typestr),
                _ => Dtype::Other(own),
            };
        }
    }
    let strides: Option<Vec<i64>> = item(intern!(py, "strides"))?
        .map(|item| item.extract())
        .transpose()?;
    let strides = in_elements(name, &shape, strides.as_deref(), &dtype)?;
    Described::new(
        name,
        device,
        address,
        dtype,
        &shape,
        strides.as_deref(),
        !read_only,
    )
}

fn dtype_of_typestr(typestr: &str) -> Dtype {
    let other = || Dtype::Other(typestr.to_owned());
    let mut letters = typestr.chars();
    let (Some(order), Some(kind)) = (letters.next(), letters.next()) else {
        return other();
    };
    let native = match order {
        '|' => true,
        '<' => cfg!(target_endian = "little"),
        '>' => cfg!(target_endian = "big"),
        _ => false,
    };
    let bytes = letters.as_str().parse().ok();
    bytes
        .filter(|_| native)
        .and_then(|bytes| Dtype::of_kind(kind, bytes))
        .unwrap_or_else(other)
}

/// Strides in elements from those in bytes.
fn in_elements(
    name: &'static str,
    shape: &[i64],
    bytes: Option<&[i64]>,
    dtype: &Dtype,
) -> Result<Option<Vec<i64>>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let size = dtype.size() as i64;
    if size == 0 {
        // Rejected for its type when it is used.
        return Ok(None);
    }
    if bytes.len() != shape.len() {
        return Err(Failure::Invalid(format!(
            "{name} has {} dimensions and {} strides",
            shape.len(),
            bytes.len()
        )));
    }
    let mut strides = Vec::with_capacity(bytes.len());
    for (dimension, (&stride, &extent)) in bytes.iter().zip(shape).enumerate() {
        if stride % size != 0 && extent > 1 {
            return Err(Failure::Invalid(format!(
                "{name} has a stride of {stride} bytes in dimension {dimension}, which is not a multiple of its elements' {size}"
            )));
        }
        strides.push(stride / size);
    }
    Ok(Some(strides))
}

pub(super) fn of_buffer(name: &'static str, buffer: &PyUntypedBuffer) -> Result<Described> {
    if buffer.suboffsets().is_some() {
        return Err(Failure::Invalid(format!(
            "{name} is a buffer of pointers, which warptile does not read"
        )));
    }
    let format = buffer.format().to_string_lossy();
    let kind = match format.trim_start_matches([
        '@',
        '=',
        if cfg!(target_endian = "little") {
            '<'
        } else {
            '>'
        },
    ]) {
        "e" | "f" => Some('f'),
        "i" | "l" | "q" => Some('i'),
        "I" | "L" | "B" => Some('u'),
        "?" => Some('b'),
        _ => None,
    };
    let dtype = kind
        .and_then(|kind| Dtype::of_kind(kind, buffer.item_size()))
        .unwrap_or_else(|| Dtype::Other(format!("{format:?} of the buffer protocol")));
    let shape: Vec<i64> = buffer.shape().iter().map(|&extent| extent as i64).collect();
    let bytes: Vec<i64> = buffer.strides().iter().map(|&step| step as i64).collect();
    let strides = in_elements(name, &shape, Some(&bytes), &dtype)?;
    Described::new(
        name,
        Device::Cpu,
        buffer.buf_ptr() as u64,
        dtype,
        &shape,
        strides.as_deref(),
        !buffer.readonly(),
    )
}
