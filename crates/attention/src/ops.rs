//! Operations beside forward: results merged, new keys and values written into a cache.

pub(crate) mod append;
mod cache_write;
mod merge;
pub(crate) mod rotary;

use crate::gpu::{Access, Expected};
use crate::layout::{DIMENSIONS, MAX_LEN};
use crate::{Error, Layout, Result};

pub use append::{
    Append, AppendBuilder, AppendOperands, CacheMut, CacheOperand, QueriesMut, append_cpu,
};
pub use cache_write::{CacheTensors, CacheWrite};
pub use merge::{LseBase, Merge, MergeBuilder, merge, merge_cpu, merge_into};
pub use rotary::{Pairing, Rotary, Tables};

/// What a tensor of an operation must be in memory, after its layout is checked. Its extents come from the tensor called `other`.
fn slot(
    argument: &'static str,
    layout: &Layout,
    (other, shape): (&'static str, [usize; 4]),
    element_bytes: usize,
    access: Access,
) -> Result<Expected> {
    same_shape(argument, layout.shape, (other, shape))?;
    for (&found, dimension) in layout.shape.iter().zip(DIMENSIONS) {
        if found > MAX_LEN {
            return Err(Error::TooLong {
                argument,
                dimension,
                found,
                limit: MAX_LEN,
            });
        }
    }
    layout.validate(argument)?;
    if access == Access::Write && !layout.is_overlap_free() {
        return Err(Error::OutputOverlaps {
            argument,
            other: "itself: its strides place two elements at one address".to_owned(),
        });
    }
    let alignment = element_bytes as u64;
    Ok(Expected::tensor(
        argument,
        layout,
        element_bytes,
        access,
        alignment,
    ))
}

/// Checks that a tensor has the extents of the one called `other`.
fn same_shape(
    argument: &'static str,
    found: [usize; 4],
    (other, expected): (&'static str, [usize; 4]),
) -> Result<()> {
    for ((found, expected), dimension) in found.into_iter().zip(expected).zip(DIMENSIONS) {
        if found != expected {
            return Err(Error::Mismatch {
                argument,
                dimension,
                found,
                other,
                expected,
            });
        }
    }
    Ok(())
}
