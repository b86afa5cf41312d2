//! Why there is no driver to call.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::load::{LIBRARY_OVERRIDE, Version};
use crate::results::CUresult;

/// One library that was tried, and why it could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// What was handed to the system's loader: a file name or a path.
    pub library: PathBuf,
    /// The loader's own words.
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.library.display(), self.reason)
    }
}

/// Why the CUDA driver cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No library could be opened.
    #[error(
        "no CUDA driver found; tried {}. Install NVIDIA's driver (the CUDA toolkit is not needed); \
         in a container, start it with GPU access; or set {LIBRARY_OVERRIDE} to the path of libcuda",
        list(.tried)
    )]
    NotFound {
        /// Everything that was tried, in order.
        tried: Vec<Attempt>,
    },

    /// The library is the toolkit's link-time stand-in, which has the names but does no work.
    #[error(
        "{} is the CUDA toolkit's stub, not a driver: it exists to link against. Take its \
         directory (usually .../lib64/stubs) out of LD_LIBRARY_PATH and install NVIDIA's driver",
        library.display()
    )]
    Stub {
        /// The stub's path.
        library: PathBuf,
    },

    /// The library lacks a function that every supported driver has.
    #[error(
        "{} has no function {symbol}, so it is not a CUDA driver this crate can use{}; install \
         NVIDIA's driver, or point {LIBRARY_OVERRIDE} at its libcuda",
        library.display(), stub_hint(library)
    )]
    MissingSymbol {
        /// The exported name that was looked up.
        symbol: &'static str,
        /// The library it is missing from.
        library: PathBuf,
        /// The loader's error.
        source: Arc<libloading::Error>,
    },

    /// The driver predates the oldest supported one.
    #[error(
        "the driver at {} supports CUDA {found}, but CUDA {required} is required: update NVIDIA's \
         driver (R525 or newer)",
        library.display()
    )]
    TooOld {
        /// CUDA version the driver supports.
        found: Version,
        /// Oldest version that will do.
        required: Version,
        /// The library that was asked.
        library: PathBuf,
    },

    /// The library would not even say which version it is.
    #[error(
        "the driver at {} failed cuDriverGetVersion with {code:?}: its installation is damaged or \
         does not match the kernel module; reinstall it or reboot after an update",
        library.display()
    )]
    NoVersion {
        /// What `cuDriverGetVersion` returned.
        code: CUresult,
        /// The library that was asked.
        library: PathBuf,
    },
}

fn list(tried: &[Attempt]) -> String {
    let words: Vec<String> = tried.iter().map(Attempt::to_string).collect();
    words.join(", ")
}

/// The stubs of older toolkits are recognised by where they lie, not by what they answer.
fn stub_hint(library: &Path) -> &'static str {
    if library.components().any(|part| part.as_os_str() == "stubs") {
        " (by its directory it is the CUDA toolkit's stub, which exists only to link against)"
    } else {
        ""
    }
}
