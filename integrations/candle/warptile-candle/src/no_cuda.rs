//! Where `cuda` would be: this build has no GPU in it.

use candle_core::{CudaStorage, Layout, Result};

use crate::attention::Attention;

/// An error.
pub(crate) fn forward(
    attention: &Attention,
    _: [&CudaStorage; 3],
    _: [&Layout; 3],
    _: bool,
) -> Result<(CudaStorage, Option<CudaStorage>)> {
    Err(attention.broken(
        "the tensors are on a GPU, but warptile-candle was built without its feature `cuda`",
    ))
}
