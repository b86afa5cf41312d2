//! Writing tensors.

use std::borrow::Cow;

use safetensors::Dtype;
use warptile::{Element, ElementType};

use super::{Format, quantized_dtype};
use crate::failure::Failure;
use crate::npy;
use crate::output::Replacement;

/// A tensor to be written.
pub(crate) struct OutTensor<'a> {
    name: &'static str,
    dtype: Dtype,
    shape: Vec<usize>,
    data: &'a [u8],
}

impl<'a> OutTensor<'a> {
    pub(crate) fn new<T: Element>(name: &'static str, shape: Vec<usize>, data: &'a [T]) -> Self {
        OutTensor {
            name,
            dtype: dtype::<T>(),
            shape,
            data: bytemuck::cast_slice(data),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Keys or values in 8 bits.
    pub(crate) fn quantized(
        name: &'static str,
        element: ElementType,
        shape: Vec<usize>,
        data: &'a [u8],
    ) -> Self {
        OutTensor {
            name,
            dtype: quantized_dtype(element).unwrap_or(Dtype::U8),
            shape,
            data,
        }
    }

    /// Bytes.
    pub(crate) fn bytes(name: &'static str, shape: Vec<usize>, data: &'a [u8]) -> Self {
        OutTensor {
            name,
            dtype: Dtype::U8,
            shape,
            data,
        }
    }

    /// Numbers of a reference.
    pub(crate) fn f64(name: &'static str, shape: Vec<usize>, data: &'a [f64]) -> Self {
        OutTensor {
            name,
            dtype: Dtype::F64,
            shape,
            data: bytemuck::cast_slice(data),
        }
    }

    /// Row offsets, lengths, or numbers of pages.
    pub(crate) fn integers(name: &'static str, shape: Vec<usize>, data: &'a [i32]) -> Self {
        OutTensor {
            name,
            dtype: Dtype::I32,
            shape,
            data: bytemuck::cast_slice(data),
        }
    }
}

impl safetensors::View for &OutTensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.data)
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

fn dtype<T: Element>() -> Dtype {
    match T::TYPE {
        warptile::ElementType::F16 => Dtype::F16,
        warptile::ElementType::Bf16 => Dtype::BF16,
        _ => Dtype::F32,
    }
}

/// Writes `tensors` as a whole file of the format that its name asks for. An `.npy` file gets the first one.
///
/// # Errors
/// [`Failure::File`].
pub(crate) fn write(file: Replacement, tensors: &[OutTensor<'_>]) -> Result<(), Failure> {
    let array = |tensor: &OutTensor<'_>| {
        npy::file(tensor.dtype, &tensor.shape, tensor.data).map_err(std::io::Error::other)
    };
    let bytes = match Format::of(file.path()) {
        Format::Safetensors => {
            let named = tensors.iter().map(|tensor| (tensor.name, tensor));
            safetensors::serialize(named, None).map_err(std::io::Error::other)?
        }
        Format::Npy => tensors.first().map(array).transpose()?.unwrap_or_default(),
        Format::Npz => {
            let members = tensors
                .iter()
                .map(|tensor| Ok((tensor.name, array(tensor)?)));
            let members: Vec<_> = members.collect::<std::io::Result<_>>()?;
            npy::pack(&members).map_err(std::io::Error::other)?
        }
    };
    file.finish(&bytes)
}
