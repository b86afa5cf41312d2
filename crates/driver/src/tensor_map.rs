//! Tensor maps: what the copy engine of Hopper and newer (TMA) reads a tensor by.

use std::ffi::c_void;
use std::fmt;

use bytemuck::{Pod, Zeroable};
use warptile_cuda_sys::{
    CUdeviceptr, CUresult, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOobFill,
    CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle, SYMBOLS,
};

use crate::context::Context;
use crate::driver::Driver;
use crate::error::{DriverError, Result};

/// An encoded tensor map, to be placed in a kernel's parameter block: a `__grid_constant__`
/// `CUtensorMap` on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct TensorMap {
    opaque: [u64; 16],
}

/// Element types of a tensor map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorMapElement {
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary32.
    F32,
    /// One unsigned byte, also for 8-bit floats.
    U8,
}

impl TensorMapElement {
    fn raw(self) -> CUtensorMapDataType {
        match self {
            TensorMapElement::F16 => CUtensorMapDataType::FLOAT16,
            TensorMapElement::Bf16 => CUtensorMapDataType::BFLOAT16,
            TensorMapElement::F32 => CUtensorMapDataType::FLOAT32,
            TensorMapElement::U8 => CUtensorMapDataType::UINT8,
        }
    }

    const fn size(self) -> u64 {
        match self {
            TensorMapElement::F16 | TensorMapElement::Bf16 => 2,
            TensorMapElement::F32 => 4,
            TensorMapElement::U8 => 1,
        }
    }
}

/// How 16-byte chunks are permuted within rows of this many bytes in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Swizzle {
    /// Not at all.
    #[default]
    None,
    /// 32-byte rows.
    Bytes32,
    /// 64-byte rows.
    Bytes64,
    /// 128-byte rows.
    Bytes128,
}

impl Swizzle {
    fn raw(self) -> CUtensorMapSwizzle {
        match self {
            Swizzle::None => CUtensorMapSwizzle::NONE,
            Swizzle::Bytes32 => CUtensorMapSwizzle::B32,
            Swizzle::Bytes64 => CUtensorMapSwizzle::B64,
            Swizzle::Bytes128 => CUtensorMapSwizzle::B128,
        }
    }

    /// Longest row of a box, in bytes.
    const fn row_limit(self) -> Option<u64> {
        match self {
            Swizzle::None => None,
            Swizzle::Bytes32 => Some(32),
            Swizzle::Bytes64 => Some(64),
            Swizzle::Bytes128 => Some(128),
        }
    }
}

/// Most dimensions of a tensor.
const MAX_RANK: usize = 5;

/// Numbers for the dimensions of a tensor: a map is made at every launch, so they lie here and not on the heap.
#[derive(Clone, Copy)]
struct List<T> {
    /// The first of them; 0 behind the last.
    numbers: [T; MAX_RANK],
    /// How many were given. More than there is room for are refused.
    count: usize,
}

impl<T: Copy + Default> List<T> {
    fn new(given: &[T]) -> List<T> {
        let mut numbers = [T::default(); MAX_RANK];
        for (number, &given) in numbers.iter_mut().zip(given) {
            *number = given;
        }
        List {
            numbers,
            count: given.len(),
        }
    }

    fn as_slice(&self) -> &[T] {
        &self.numbers[..self.count.min(MAX_RANK)]
    }
}

impl<T: Copy + Default + fmt::Debug> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// A tiled tensor map in the making; lists begin with the dimension that is contiguous in memory.
///
/// ```no_run
/// use warptile_driver::{Context, Swizzle, TensorMap, TensorMapElement};
/// # fn f(context: &Context, keys: u64) -> warptile_driver::Result<()> {
/// // 4096 rows of 128 halves, read in boxes of 64 by 64.
/// let map = TensorMap::tiled(TensorMapElement::F16, keys, &[128, 4096], &[256], &[64, 64])
///     .swizzle(Swizzle::Bytes128)
///     .encode_in(context)?;
/// # let _ = map;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct TiledTensorMap {
    element: TensorMapElement,
    address: CUdeviceptr,
    dims: List<u64>,
    strides: List<u64>,
    box_dims: List<u32>,
    swizzle: Swizzle,
    l2_promotion: CUtensorMapL2promotion,
}

impl TensorMap {
    /// A map of the tensor at `address`: `dims` elements along each dimension, `strides` bytes between neighbours
    /// along each dimension but the first, read in boxes of `box_dims`. Elements outside the tensor read as zero and
    /// are not written.
    pub fn tiled(
        element: TensorMapElement,
        address: CUdeviceptr,
        dims: &[u64],
        strides: &[u64],
        box_dims: &[u32],
    ) -> TiledTensorMap {
        TiledTensorMap {
            element,
            address,
            dims: List::new(dims),
            strides: List::new(strides),
            box_dims: List::new(box_dims),
            swizzle: Swizzle::None,
            l2_promotion: CUtensorMapL2promotion::B128,
        }
    }
}

impl TiledTensorMap {
    /// With rows swizzled in shared memory.
    pub fn swizzle(self, swizzle: Swizzle) -> TiledTensorMap {
        TiledTensorMap { swizzle, ..self }
    }

    /// With loads widened to this size in L2; 128 bytes unless told otherwise. What is read once is read a tenth slower with 256.
    pub fn l2_promotion(mut self, l2_promotion: CUtensorMapL2promotion) -> TiledTensorMap {
        self.l2_promotion = l2_promotion;
        self
    }

    /// Encodes the map, for kernels of the context. The address is not touched: whether it is right is part of the promise made
    /// to [`Kernel::launch`](crate::Kernel::launch).
    ///
    /// # Errors
    /// [`DriverError::TensorMap`] naming the broken rule, or what the driver reports.
    pub fn encode_in(&self, context: &Context) -> Result<TensorMap> {
        let _current = context.enter()?;
        self.encode(context.driver())
    }

    /// [`TiledTensorMap::encode_in`] the context that is current on the calling thread; the driver
    /// calls the context invalid if there is none.
    ///
    /// # Errors
    /// As [`TiledTensorMap::encode_in`].
    pub fn encode(&self, driver: &Driver) -> Result<TensorMap> {
        self.check()
            .map_err(|rule| DriverError::TensorMap { rule })?;
        let symbol = SYMBOLS.tensor_map_encode_tiled;
        let encode = driver.api().tensor_map_encode_tiled;
        let mut map = CUtensorMap { opaque: [0; 16] };
        let element_strides = [1_u32; MAX_RANK];
        let address: *mut c_void = std::ptr::without_provenance_mut(self.address as usize);
        // SAFETY: `map` and the lists, of the lengths that `check` made sure of, outlive the call;
        // the address is encoded, not read.
        let code = unsafe {
            encode(
                &mut map,
                self.element.raw(),
                self.dims.count as u32,
                address,
                self.dims.numbers.as_ptr(),
                self.strides.numbers.as_ptr(),
                self.box_dims.numbers.as_ptr(),
                element_strides.as_ptr(),
                CUtensorMapInterleave::NONE,
                self.swizzle.raw(),
                self.l2_promotion,
                CUtensorMapFloatOobFill::NONE,
            )
        };
        match code {
            CUresult::SUCCESS => Ok(TensorMap { opaque: map.opaque }),
            code => Err(driver.failed(symbol, code, format!("encoding {self:?}").into())),
        }
    }

    /// The hardware's rules, as documented for `cuTensorMapEncodeTiled`. The driver answers all of
    /// them with the same code, so they are told apart here.
    fn check(&self) -> Result<(), String> {
        let (rank, strides, boxes) = (self.dims.count, self.strides.count, self.box_dims.count);
        if !(1..=MAX_RANK).contains(&rank) {
            return Err(format!(
                "a tensor has 1 to {MAX_RANK} dimensions, not {rank}"
            ));
        }
        if strides != rank - 1 || boxes != rank {
            return Err(format!(
                "{rank} dimensions take {} strides and {rank} box sizes, not {strides} and {boxes}",
                rank - 1,
            ));
        }
        if !self.address.is_multiple_of(16) {
            let address = self.address;
            return Err(format!("the address {address:#x} is not a multiple of 16"));
        }
        if let Some(dim) = self
            .dims
            .as_slice()
            .iter()
            .find(|dim| !(1..=1 << 32).contains(*dim))
        {
            return Err(format!("a dimension is 1 to 2^32 elements, not {dim}"));
        }
        let misfit = |stride: &&u64| !stride.is_multiple_of(16) || **stride >= 1 << 40;
        if let Some(stride) = self.strides.as_slice().iter().find(misfit) {
            return Err(format!(
                "a stride is a multiple of 16 below 2^40 bytes, not {stride}"
            ));
        }
        if let Some(size) = self
            .box_dims
            .as_slice()
            .iter()
            .find(|size| !(1..=256).contains(*size))
        {
            return Err(format!("a box has 1 to 256 elements each way, not {size}"));
        }
        let row = u64::from(self.box_dims.numbers[0]) * self.element.size();
        if !row.is_multiple_of(16) {
            return Err(format!("a box row is a multiple of 16 bytes, not {row}"));
        }
        if let Some(limit) = self.swizzle.row_limit()
            && row > limit
        {
            return Err(format!(
                "a box row of {row} bytes is longer than the {limit} that {:?} permutes",
                self.swizzle
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(address: u64, stride: u64, box_dims: &[u32]) -> TiledTensorMap {
        let element = TensorMapElement::F16;
        TensorMap::tiled(element, address, &[128, 4096], &[stride], box_dims)
            .swizzle(Swizzle::Bytes128)
    }

    #[test]
    fn the_ordinary_map_passes() {
        assert_eq!(rows(0x7f00_0000, 256, &[64, 64]).check(), Ok(()));
    }

    #[test]
    fn each_rule_is_checked_and_named() {
        let broken = |map: TiledTensorMap| map.check().unwrap_err();
        assert!(broken(rows(8, 256, &[64, 64])).contains("address 0x8"));
        assert!(broken(rows(16, 250, &[64, 64])).contains("not 250"));
        assert!(broken(rows(16, 1 << 40, &[64, 64])).contains("2^40"));
        assert!(broken(rows(16, 256, &[64, 257])).contains("not 257"));
        assert!(broken(rows(16, 256, &[64, 0])).contains("not 0"));
        assert!(broken(rows(16, 256, &[4, 64])).contains("not 8"));
        assert!(broken(rows(16, 256, &[128, 64])).contains("256 bytes is longer"));
        assert!(broken(rows(16, 256, &[64])).contains("2 dimensions"));
        let no_keys = TensorMap::tiled(TensorMapElement::F32, 16, &[4, 0], &[16], &[4, 1]);
        assert!(broken(no_keys).contains("not 0"));
        let no_dims = TensorMap::tiled(TensorMapElement::F32, 16, &[], &[], &[]);
        assert!(broken(no_dims).contains("1 to 5"));
        let six = TensorMap::tiled(TensorMapElement::F32, 16, &[4; 6], &[16; 5], &[4; 6]);
        assert!(broken(six).contains("not 6"));
    }
}
