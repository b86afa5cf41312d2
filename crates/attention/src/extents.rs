//! Rules for the extents of tensors, whatever they are tensors of.

use crate::error::{Error, Result};
use crate::layout::{DIMENSIONS, Layout, MAX_LEN};

/// Checks that a tensor has the extents that are expected of it because of the one called `other`.
pub(crate) fn expect_same<const N: usize>(
    argument: &'static str,
    found: [usize; N],
    (other, expected): (&'static str, [usize; N]),
    dimensions: [&'static str; N],
) -> Result<()> {
    for ((found, expected), dimension) in found.into_iter().zip(expected).zip(dimensions) {
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

/// Checks that kernels can count so far.
pub(crate) fn expect_countable(
    argument: &'static str,
    dimension: &'static str,
    found: usize,
) -> Result<()> {
    match found {
        ..=MAX_LEN => Ok(()),
        _ => Err(Error::TooLong {
            argument,
            dimension,
            found,
            limit: MAX_LEN,
        }),
    }
}

/// Checks that a buffer has as many elements as are needed.
pub(crate) fn expect_room(argument: &'static str, needed: usize, available: usize) -> Result<()> {
    match available < needed {
        true => Err(Error::BufferTooSmall {
            argument,
            needed,
            available,
        }),
        false => Ok(()),
    }
}

/// Checks a layout for itself: extents that kernels can count, strides that memory can have, and if the tensor is written, no two elements at one
/// address.
pub(crate) fn check_alone(argument: &'static str, layout: &Layout, written: bool) -> Result<()> {
    for (found, dimension) in layout.shape.into_iter().zip(DIMENSIONS) {
        expect_countable(argument, dimension, found)?;
    }
    layout.validate(argument)?;
    match written && !layout.is_overlap_free() {
        true => Err(Error::OutputOverlaps {
            argument,
            other: "itself: its strides place two elements at one address".to_owned(),
        }),
        false => Ok(()),
    }
}
