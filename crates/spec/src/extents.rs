//! Rules for the extents of any kind of tensor.

use crate::{Invalid, MAX_LEN, Result};

/// Checks that a tensor has the extents that are expected of it because of the one called `other`.
pub fn expect_same<const N: usize>(
    argument: &'static str,
    found: [usize; N],
    (other, expected): (&'static str, [usize; N]),
    dimensions: [&'static str; N],
) -> Result<()> {
    for ((found, expected), dimension) in found.into_iter().zip(expected).zip(dimensions) {
        if found != expected {
            return Err(Invalid::Mismatch {
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
pub fn expect_countable(
    argument: &'static str,
    dimension: &'static str,
    found: usize,
) -> Result<()> {
    match found {
        ..=MAX_LEN => Ok(()),
        _ => Err(Invalid::TooLong {
            argument,
            dimension,
            found,
            limit: MAX_LEN,
        }),
    }
}

/// Checks that a buffer has as many elements as are needed.
pub fn expect_room(argument: &'static str, needed: usize, available: usize) -> Result<()> {
    match available < needed {
        true => Err(Invalid::BufferTooSmall {
            argument,
            needed,
            available,
        }),
        false => Ok(()),
    }
}

/// Checks that an argument is given if and only if the options ask for it.
pub fn expect_presence(argument: &'static str, wanted: bool, given: bool) -> Result<()> {
    match (wanted, given) {
        (true, false) => Err(Invalid::presence(
            argument,
            "is missing, but the options ask for it",
        )),
        (false, true) => Err(Invalid::presence(
            argument,
            "is given, but the options do not ask for it",
        )),
        _ => Ok(()),
    }
}
