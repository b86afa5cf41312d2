//! Keys and values in e4m3: candle's `DType::F8E4M3`, whose bytes are those of [`E4m3`], and their scales.

use candle_core::{CpuStorage, DType, DeviceLocation, Result, Tensor};
use warptile::{E4m3, ScaleCounts};

use crate::caller::Caller;

/// What keys and values in e4m3 are multiplied by: f32, one for all key/value heads or one for each.
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

    /// How many there are, after a check of all but what they are. `first` is the tensor that is at `place`.
    pub(crate) fn counts(
        &self,
        caller: Caller,
        first: &str,
        place: &DeviceLocation,
    ) -> Result<ScaleCounts> {
        for (name, tensor) in self.named() {
            caller.check_place(name, tensor, first, place)?;
            caller.check_type(name, tensor, &[DType::F32])?;
            if tensor.rank() > 1 {
                let rule = "one number, or one entry per key/value head";
                return Err(caller.wrong_shape(name, tensor.dims(), rule));
            }
        }
        Ok(ScaleCounts {
            k: self.k.elem_count(),
            v: self.v.elem_count(),
        })
    }

    /// Of keys and of values, on the CPU.
    pub(crate) fn read(&self) -> Result<[Vec<f32>; 2]> {
        let read = |tensor: &Tensor| tensor.flatten_all()?.to_vec1();
        Ok([read(&self.k)?, read(&self.v)?])
    }
}

/// The numbers of a tensor in e4m3; `None` of another.
pub(crate) fn numbers(storage: &CpuStorage) -> Option<&[E4m3]> {
    let CpuStorage::F8E4M3(data) = storage else {
        return None;
    };
    let len = bytes(data);
    // SAFETY: so many bytes are initialized and borrowed for as long as the result, and every byte is an `E4m3`, which is one.
    Some(unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), len) })
}

/// As [`numbers`], for writing.
pub(crate) fn numbers_mut(storage: &mut CpuStorage) -> Option<&mut [E4m3]> {
    let CpuStorage::F8E4M3(data) = storage else {
        return None;
    };
    let len = bytes(data);
    // SAFETY: as in `numbers`; nobody else has the bytes, and candle's type has a number for every byte as well.
    Some(unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), len) })
}

/// How many bytes a list of numbers of one byte has. candle does not export the type by a name, so its size is checked here.
fn bytes<T: Copy>(data: &[T]) -> usize {
    const {
        assert!(size_of::<T>() == 1 && size_of::<E4m3>() == 1);
    }
    data.len()
}
