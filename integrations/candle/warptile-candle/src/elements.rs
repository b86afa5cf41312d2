//! The types of elements that tensors can have.

use candle_core::DType;
use warptile::ElementType;

/// The dtypes of q, k and v with the element types of warptile that they are.
pub(crate) const DTYPES: [(DType, ElementType); 4] = [
    (DType::F16, ElementType::F16),
    (DType::BF16, ElementType::Bf16),
    (DType::F32, ElementType::F32),
    (DType::F8E4M3, ElementType::E4m3),
];

pub(crate) fn element_of(dtype: DType) -> Option<ElementType> {
    let (_, element) = DTYPES.into_iter().find(|(known, _)| *known == dtype)?;
    Some(element)
}

/// Calls a function with the elements of a storage, whichever of the types of q, k and v they have.
macro_rules! with_cpu_elements {
    ($caller:expr, $storage:expr, $elements:ident => $result:expr) => {
        match $storage {
            candle_core::CpuStorage::F16($elements) => Ok($result),
            candle_core::CpuStorage::BF16($elements) => Ok($result),
            candle_core::CpuStorage::F32($elements) => Ok($result),
            candle_core::CpuStorage::F8E4M3($elements) => Ok($result),
            _ => Err($caller.broken("a tensor has another dtype than was checked")),
        }
    };
}
pub(crate) use with_cpu_elements;

/// Calls a function with the elements of a storage, whichever of the types that a call takes they have.
#[cfg(feature = "cuda")]
macro_rules! with_cuda_elements {
    ($slice:expr, $elements:ident => $result:expr) => {{
        use candle_core::cuda_backend::CudaStorageSlice;
        match $slice {
            CudaStorageSlice::U32($elements) => $result,
            CudaStorageSlice::I32($elements) => $result,
            CudaStorageSlice::I64($elements) => $result,
            CudaStorageSlice::F16($elements) => $result,
            CudaStorageSlice::BF16($elements) => $result,
            CudaStorageSlice::F32($elements) => $result,
            CudaStorageSlice::F8E4M3($elements) => $result,
            _ => None,
        }
    }};
}
#[cfg(feature = "cuda")]
pub(crate) use with_cuda_elements;
