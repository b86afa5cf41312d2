//! Where `cuda` would be: this build has no GPU in it.

use candle_core::{CudaDevice, CudaStorage, DType, Error, Layout, Result};

use crate::attention::Attention;
use crate::cache::{CALLER, Pages, Write};
use crate::caller::Caller;
use crate::describe::Described;
use crate::locks::Locks;

/// An error.
pub(crate) fn describe(
    attention: &Attention,
    _: [&CudaStorage; 3],
    _: [&Layout; 3],
) -> Result<Described> {
    Err(absent(attention.caller))
}

/// An error.
pub(crate) fn forward(
    attention: &Attention,
    _: &Described,
    _: [&CudaStorage; 3],
    _: [&Layout; 3],
    _: &Locks<'_>,
    _: bool,
) -> Result<(CudaStorage, Option<CudaStorage>)> {
    Err(absent(attention.caller))
}

/// An error.
pub(crate) fn backward(
    attention: &Attention,
    _: &Described,
    _: &CudaDevice,
    _: &Locks<'_>,
    _: DType,
    _: [&Layout; 3],
) -> Result<[CudaStorage; 3]> {
    Err(absent(attention.caller))
}

/// An error.
pub(crate) fn write(_: &Write<'_>, _: Pages<'_, CudaStorage>) -> Result<()> {
    Err(absent(CALLER))
}

/// Elements that ranks can have.
#[cfg(feature = "distributed")]
pub(crate) trait Number: warptile::Element {}

#[cfg(feature = "distributed")]
impl<T: warptile::Element> Number for T {}

/// A rank that there is none of.
#[cfg(feature = "distributed")]
#[derive(Debug)]
pub(crate) enum Rank {}

#[cfg(feature = "distributed")]
impl Rank {
    /// An error.
    pub(crate) fn new(caller: Caller, _: &CudaDevice) -> Result<Self> {
        Err(absent(caller))
    }

    pub(crate) fn backend(&self) -> warptile::Backend {
        match *self {}
    }

    pub(crate) fn device(&self) -> candle_core::Device {
        match *self {}
    }

    pub(crate) fn take<T: Number>(
        &self,
        _: Caller,
        _: &candle_core::Tensor,
        _: warptile::Layout,
    ) -> Result<warptile::Tensor<T>> {
        match *self {}
    }

    pub(crate) fn give<T: Number>(
        &self,
        _: Caller,
        _: &warptile::Tensor<T>,
    ) -> Result<CudaStorage> {
        match *self {}
    }
}

fn absent(caller: Caller) -> Error {
    caller.broken(
        "the tensors are on a GPU, but warptile-candle was built without its feature `cuda`",
    )
}
