//! Finding the library and filling the table from it.

use std::ffi::{OsString, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use warptile_cuda_sys::Attempt;

use crate::table::{NcclApi, NcclResult, look_up};

/// The environment variable that names the library; when set, nothing else is tried.
pub const LIBRARY_OVERRIDE: &str = "WARPTILE_LIBNCCL";

/// The oldest version that will do.
pub const REQUIRED_VERSION: Version = Version(21_801);

/// Names for the system's loader, which knows a library by its name if the process has loaded it from anywhere.
const CANDIDATES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// A version as NCCL counts it since 2.9: 10000 * major + 100 * minor + patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version(code) = *self;
        match code {
            0..10_000 => write!(f, "{}.{}.{}", code / 1000, code / 100 % 10, code % 100),
            _ => write!(f, "{}.{}.{}", code / 10_000, code / 100 % 100, code % 100),
        }
    }
}

/// The reason why NCCL cannot be called.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No library could be opened.
    #[error(
        "NCCL not found ({}). Install it, or set {LIBRARY_OVERRIDE} to its path, such as that of pip, .../site-packages/nvidia/nccl/lib/libnccl.so.2",
        Attempt::by_reason(.tried)
    )]
    NotFound {
        /// Everything that was tried, in order.
        tried: Vec<Attempt>,
    },
    /// The library lacks a function.
    #[error("{} has no function {symbol}, so it is no NCCL of version {REQUIRED_VERSION} or later", library.display())]
    MissingSymbol {
        /// The exported name that was looked up.
        symbol: &'static str,
        /// The library.
        library: PathBuf,
        /// The loader's error.
        source: Arc<libloading::Error>,
    },
    /// The library predates the oldest supported one.
    #[error("{} is NCCL {found}, but {required} or later is required", library.display())]
    TooOld {
        /// The library's version.
        found: Version,
        /// The oldest version that will do.
        required: Version,
        /// The library.
        library: PathBuf,
    },
    /// The library does not say which version it is.
    #[error("{} failed ncclGetVersion with {code:?}", library.display())]
    NoVersion {
        /// The answer.
        code: NcclResult,
        /// The library.
        library: PathBuf,
    },
}

/// The system's NCCL, opened on the first call; every later call repeats the first answer, success or error.
///
/// Tried in order: the library named by the environment variable [`LIBRARY_OVERRIDE`] (then nothing else), `libnccl.so.2`, `libnccl.so`.
///
/// # Errors
/// [`LoadError`].
pub fn load() -> Result<Arc<NcclApi>, LoadError> {
    static LOADED: OnceLock<Result<Arc<NcclApi>, LoadError>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            search(std::env::var_os(LIBRARY_OVERRIDE).filter(|path| !path.is_empty())).map(Arc::new)
        })
        .clone()
}

/// Opens the first candidate that is there. A library that opens but won't do ends the search.
fn search(only: Option<OsString>) -> Result<NcclApi, LoadError> {
    let candidates: Vec<PathBuf> = match only {
        Some(path) => vec![path.into()],
        None => CANDIDATES.iter().map(PathBuf::from).collect(),
    };
    let mut all = Vec::new();
    for library in candidates {
        // SAFETY: these names belong to NCCL, and whoever sets the override or the search path of a process decides what code it runs.
        match unsafe { load_from(&library) } {
            Err(LoadError::NotFound { tried }) => all.extend(tried),
            done => return done,
        }
    }
    Err(LoadError::NotFound { tried: all })
}

/// Opens one particular library, which stays in memory for the rest of the process.
///
/// # Errors
/// [`LoadError`]; [`LoadError::NotFound`] lists this one attempt.
///
/// # Safety
/// `library` must name NCCL or a stand-in whose exports have NCCL's signatures: its initialisers run, and its functions are called as
/// [`NcclApi`] declares them.
pub unsafe fn load_from(library: impl AsRef<Path>) -> Result<NcclApi, LoadError> {
    let path = library.as_ref();
    // SAFETY: the caller vouches for the library.
    let library =
        unsafe { warptile_cuda_sys::open(path) }.map_err(|attempt| LoadError::NotFound {
            tried: vec![attempt],
        })?;
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> NcclResult;
    let mut version: c_int = 0;
    // SAFETY: the function has had this signature in every version, and `version` outlives the call.
    let code = unsafe { look_up::<GetVersion>(&library, path, "ncclGetVersion")?(&mut version) };
    if code != NcclResult::SUCCESS {
        return Err(LoadError::NoVersion {
            code,
            library: path.to_owned(),
        });
    }
    let found = Version(u32::try_from(version).unwrap_or(0));
    if found < REQUIRED_VERSION {
        return Err(LoadError::TooOld {
            found,
            required: REQUIRED_VERSION,
            library: path.to_owned(),
        });
    }
    // SAFETY: the caller vouches for the signatures, and the library is never unloaded.
    unsafe { NcclApi::resolve(&library, path, found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_names_what_was_tried() {
        let missing = "no-such-directory/libnccl.so.2";
        let error = search(Some(missing.into())).unwrap_err();
        assert!(error.to_string().contains(missing), "{error}");
        assert!(matches!(error, LoadError::NotFound { tried } if tried.len() == 1));
    }

    #[test]
    fn another_library_is_not_taken_for_nccl() {
        if cfg!(target_os = "linux") {
            let error = search(Some("libc.so.6".into())).unwrap_err();
            assert!(error.to_string().contains("ncclGetVersion"), "{error}");
        }
    }

    #[test]
    fn versions_read_as_people_write_them() {
        let text = [2803, 21_801, 22_809].map(|code| Version(code).to_string());
        assert_eq!(text, ["2.8.3", "2.18.1", "2.28.9"]);
    }
}
