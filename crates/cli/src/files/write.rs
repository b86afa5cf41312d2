//! Writing tensors.

use std::borrow::Cow;

use bytemuck::Pod;
use safetensors::Dtype;
use warptile::ElementType;

use super::Format;
use crate::failure::Failure;
use crate::npy;
use crate::output::Replacement;

/// A tensor to be written.
pub(crate) struct OutTensor<'a> {
    name: &'static str,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Cow<'a, [u8]>,
}

impl<'a> OutTensor<'a> {
    pub(crate) fn new<T: Pod>(
        name: &'static str,
        dtype: Dtype,
        shape: Vec<usize>,
        data: &'a [T],
    ) -> Self {
        OutTensor {
            name,
            dtype,
            shape,
            data: Cow::Borrowed(bytemuck::cast_slice(data)),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// With its own copy of the data.
    pub(crate) fn into_owned(self) -> OutTensor<'static> {
        let data = Cow::Owned(self.data.into_owned());
        OutTensor { data, ..self }
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
        Cow::Borrowed(&self.data)
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// The name that files have for an element type.
pub(crate) const fn dtype_of(element: ElementType) -> Dtype {
    match element {
        ElementType::F16 => Dtype::F16,
        ElementType::Bf16 => Dtype::BF16,
        ElementType::E4m3 => Dtype::F8_E4M3,
        _ => Dtype::F32,
    }
}

/// The type of queries that files have another name for.
pub(crate) fn element_of(dtype: Dtype) -> Option<ElementType> {
    let all = [ElementType::F16, ElementType::Bf16, ElementType::F32];
    all.into_iter().find(|element| dtype_of(*element) == dtype)
}

/// Writes `tensors` as a whole file of the format that its name asks for. An `.npy` file gets the first one.
///
/// # Errors
/// [`Failure::File`].
pub(crate) fn write(file: Replacement, tensors: &[OutTensor<'_>]) -> Result<(), Failure> {
    let array = |tensor: &OutTensor<'_>| {
        npy::file(tensor.dtype, &tensor.shape, &tensor.data).map_err(std::io::Error::other)
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
