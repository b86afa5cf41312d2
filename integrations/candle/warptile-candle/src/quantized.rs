//! Quantized keys and values: the dtypes of candle that they have, and their scales.

use candle_core::{CpuStorage, DType, DeviceLocation, Result, Tensor};
use warptile::{Quantization, QuantizedType};

use crate::caller::Caller;

/// The dtypes of quantized tensors, whose bytes are those of a type of warptile.
pub(crate) const DTYPES: [DType; 1] = [DType::F8E4M3];

/// What the bytes of a tensor of this dtype are, if it is a quantized one.
pub(crate) const fn quantized(dtype: DType) -> Option<QuantizedType> {
    match dtype {
        DType::F8E4M3 => Some(QuantizedType::E4m3),
        _ => None,
    }
}

/// What quantized keys and values are multiplied by: f32, one for all key/value heads or one for each.
#[derive(Debug, Clone)]
pub(crate) struct Scales {
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
}

impl Scales {
    pub(crate) fn new(k: &Tensor, v: &Tensor) -> Self {
        let [k, v] = [k, v].map(Tensor::clone);
        Scales { k, v }
    }

    /// With their names.
    pub(crate) fn named(&self) -> [(&'static str, &Tensor); 2] {
        [("k_scale", &self.k), ("v_scale", &self.v)]
    }

    /// What is said of keys and values of this type, after a check of all but what the scales are. `first` is the tensor that is at `place`.
    pub(crate) fn quantization(
        &self,
        caller: Caller,
        element: QuantizedType,
        first: &str,
        place: &DeviceLocation,
    ) -> Result<Quantization> {
        for (name, tensor) in self.named() {
            caller.check_place(name, tensor, first, place)?;
            caller.check_type(name, tensor, &[DType::F32])?;
            if tensor.rank() > 1 {
                let rule = "one number, or one entry per key/value head";
                return Err(caller.wrong_shape(name, tensor.dims(), rule));
            }
        }
        Ok(Quantization::new(element).scales(self.k.elem_count(), self.v.elem_count()))
    }

    /// Of keys and of values, on the CPU.
    pub(crate) fn read(&self) -> Result<[Vec<f32>; 2]> {
        let read = |tensor: &Tensor| tensor.flatten_all()?.to_vec1();
        Ok([read(&self.k)?, read(&self.v)?])
    }
}

/// The bits of a quantized tensor, and what they are; `None` of another.
pub(crate) fn bits(storage: &CpuStorage) -> Option<(&[u8], QuantizedType)> {
    let CpuStorage::F8E4M3(data) = storage else {
        return None;
    };
    let len = bytes(data);
    // SAFETY: so many bytes are initialized and borrowed for as long as the result.
    let bits = unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), len) };
    Some((bits, QuantizedType::E4m3))
}

/// As [`bits`], for writing.
pub(crate) fn bits_mut(storage: &mut CpuStorage) -> Option<&mut [u8]> {
    let CpuStorage::F8E4M3(data) = storage else {
        return None;
    };
    let len = bytes(data);
    // SAFETY: as in `bits`; nobody else has the bytes, and candle's type has a number for every byte as well.
    Some(unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), len) })
}

/// How many bytes a list of numbers of one byte has. candle does not export the type by a name, so its size is checked here.
fn bytes<T: Copy>(data: &[T]) -> usize {
    const {
        assert!(size_of::<T>() == 1);
    }
    data.len()
}
