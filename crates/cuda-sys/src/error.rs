//! The reasons why no driver can be called.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::load::{LIBRARY_OVERRIDE, Version};
use crate::results::CUresult;

/// One library that was tried, and why it could not be opened.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The file name or path passed to the system's loader.
    pub library: PathBuf,
    /// The loader's own words, without the library's name.
    pub reason: String,
    /// The loader's error.
    pub source: Arc<libloading::Error>,
}

impl Attempt {
    /// The libraries that were tried, with every reason once: `libcuda.so.1, libcuda.so: no such file`.
    pub fn by_reason(tried: &[Attempt]) -> String {
        let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
        for attempt in tried {
            let library = attempt.library.display().to_string();
            match reasons
                .iter_mut()
                .find(|(reason, _)| *reason == attempt.reason)
            {
                Some((_, libraries)) => libraries.push(library),
                None => reasons.push((&attempt.reason, vec![library])),
            }
        }
        let groups: Vec<String> = reasons
            .iter()
            .map(|(reason, libraries)| format!("{}: {reason}", libraries.join(", ")))
            .collect();
        groups.join("; ")
    }
}

/// Why the CUDA driver cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No library could be opened.
    #[error(
        "no CUDA driver found ({}). Install NVIDIA's driver, start the container with GPU access, \
         or set {LIBRARY_OVERRIDE} to the path of libcuda",
        Attempt::by_reason(.tried)
    )]
    NotFound {
        /// Everything that was tried, in order.
        tried: Vec<Attempt>,
        /// The first attempt's error.
        source: Arc<libloading::Error>,
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
        /// The code that `cuDriverGetVersion` returned.
        code: CUresult,
        /// The library that was asked.
        library: PathBuf,
    },
}

/// The stubs of older toolkits are recognised by where they lie, not by what they answer.
fn stub_hint(library: &Path) -> &'static str {
    if library.components().any(|part| part.as_os_str() == "stubs") {
        " (by its directory it is the CUDA toolkit's stub, which exists only to link against)"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(library: &str, reason: &str) -> Attempt {
        Attempt {
            library: library.into(),
            reason: reason.to_owned(),
            source: Arc::new(libloading::Error::DlOpenUnknown),
        }
    }

    #[test]
    fn a_reason_that_several_libraries_share_is_given_once() {
        let missing = "cannot open shared object file: No such file or directory";
        let tried = vec![
            attempt("libcuda.so.1", missing),
            attempt("/usr/lib/wsl/lib/libcuda.so.1", "file too short"),
            attempt("libcuda.so", missing),
        ];
        assert_eq!(
            Attempt::by_reason(&tried),
            format!(
                "libcuda.so.1, libcuda.so: {missing}; /usr/lib/wsl/lib/libcuda.so.1: file too short"
            )
        );
        let error = LoadError::NotFound {
            source: tried[0].source.clone(),
            tried,
        };
        assert!(error.to_string().len() < 300, "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }
}
