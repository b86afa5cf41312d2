//! A result whose error keeps a case from being checked.

/// Shorthand for a result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a case has no problem, or a problem no reference.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The problem or its arguments break a rule of the library, or the device failed.
    #[error(transparent)]
    Call(#[from] warptile::Error),

    /// A case has used lengths for other than its sequences.
    #[error("{found} used lengths are given for {sequences} sequences")]
    UsedLengths {
        /// Used lengths.
        found: usize,
        /// Sequences.
        sequences: usize,
    },

    /// The data would not fit into the memory of an ordinary machine.
    #[error("the problem has {found} {what}; the limit is {limit}")]
    TooLarge {
        /// The quantity that is too large.
        what: &'static str,
        /// How much of it.
        found: u128,
        /// How much there may be.
        limit: u128,
    },

    /// The reference would take far too long.
    #[error(
        "a float64 reference of {found:.1e} multiply-adds is too much; the limit is {limit:.1e}"
    )]
    TooMuchWork {
        /// Multiply-adds of both matrix products.
        found: f64,
        /// How many there may be.
        limit: f64,
    },
}

impl From<warptile::spec::Invalid> for Error {
    fn from(error: warptile::spec::Invalid) -> Self {
        Error::Call(error.into())
    }
}

impl From<warptile::driver::DriverError> for Error {
    fn from(error: warptile::driver::DriverError) -> Self {
        Error::Call(error.into())
    }
}

/// Fails if there is more of something than there may be.
pub(crate) fn limited(what: &'static str, found: u128, limit: u128) -> Result<()> {
    if found > limit {
        return Err(Error::TooLarge { what, found, limit });
    }
    Ok(())
}
