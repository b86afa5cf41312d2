//! Errors.

use cudarc::driver::DriverError;

/// Shorthand for a result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Everything this crate reports.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument breaks a rule, no kernel can do it, or the driver reports an error to Warptile.
    #[error(transparent)]
    Warptile(#[from] warptile::Error),

    /// The driver reports an error to cudarc.
    #[error(transparent)]
    Cuda(#[from] DriverError),

    /// Warptile's kernels are loaded in the device's primary context.
    #[error("the stream's context is not the primary one of cuda:{ordinal}; use CudaContext::new")]
    NotPrimary {
        /// The device.
        ordinal: usize,
    },

    /// A tensor has no memory on a GPU.
    #[error("{argument} is on the CPU; copy its elements from the host (Tensor::to_vec)")]
    OnCpu {
        /// The argument.
        argument: &'static str,
    },

    /// The memory of a view and the session's stream belong to different contexts.
    #[error(
        "{argument} is in a context of cuda:{found}, but the session's stream is in one of cuda:{expected}"
    )]
    OtherContext {
        /// The argument.
        argument: &'static str,
        /// Device of the session.
        expected: usize,
        /// Device of the view.
        found: usize,
    },
}

impl From<warptile::spec::Invalid> for Error {
    fn from(error: warptile::spec::Invalid) -> Self {
        Error::Warptile(error.into())
    }
}
