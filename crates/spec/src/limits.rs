//! How much there can be of what.

use crate::abi;

/// The most rows a sequence or tensor may have, and the most batch entries or heads. The kernels keep such counts in 32
/// bits, with room for a mask's window on top.
pub const MAX_LEN: usize = abi::WINDOW_UNLIMITED as usize;

/// Largest head size. Above 256 the GPU has kernels for f16 and bf16 only.
pub const MAX_HEAD_DIM: usize = 512;

/// The most rows of a page of keys and values.
pub const MAX_PAGE_ROWS: usize = abi::MAX_PAGE_ROWS;

/// Names of the dimensions, in the order of [`Layout::shape`](crate::Layout::shape), as error messages use them.
pub const DIMENSIONS: [&str; 4] = ["batch", "length", "heads", "head size"];

/// The names of the dimensions of tensors that consist of pages.
pub const PAGE_DIMENSIONS: [&str; 4] = ["pages", "page rows", "heads", "head size"];
