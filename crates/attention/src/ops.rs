//! Operations beside forward: results merged, new keys and values written into a cache.

pub(crate) mod append;
mod cache_write;
mod merge;
pub(crate) mod rotary;

use crate::extents::{check_alone, expect_same};
use crate::gpu::{Access, Expected};
use crate::layout::DIMENSIONS;
use crate::{Layout, Result};

pub use append::{Append, AppendBuilder, append_cpu};
pub use cache_write::{CacheTensors, CacheWrite};
pub use merge::{LseBase, Merge, MergeBuilder, merge, merge_cpu, merge_into};
pub use rotary::{Pairing, Rotary};

/// What a tensor of an operation must be in memory, after its layout is checked. Its extents come from the tensor called `other`.
fn slot(
    argument: &'static str,
    layout: &Layout,
    (other, shape): (&'static str, [usize; 4]),
    element_bytes: usize,
    access: Access,
) -> Result<Expected> {
    expect_same(argument, layout.shape, (other, shape), DIMENSIONS)?;
    check_alone(argument, layout, access == Access::Write)?;
    let alignment = element_bytes as u64;
    Ok(Expected::tensor(
        argument,
        layout,
        element_bytes,
        access,
        alignment,
    ))
}
