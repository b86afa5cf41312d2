//! What keeps a case from being checked.

/// Shorthand for a result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a case has no problem, or a problem no reference.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The problem or its arguments break a rule of the library, or the device failed.
    #[error(transparent)]
    Call(#[from] warptile::Error),

    /// The data would not fit into the memory of an ordinary machine.
    #[error("the problem has {found} {what}; the limit is {limit}")]
    TooLarge {
        /// What there is too much of.
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

/// Fails if there is more of something than there may be.
pub(crate) fn limited(what: &'static str, found: u128, limit: u128) -> Result<()> {
    if found > limit {
        return Err(Error::TooLarge { what, found, limit });
    }
    Ok(())
}
