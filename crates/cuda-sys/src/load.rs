//! Finding the driver's library and filling the table from it.

use std::ffi::{OsStr, OsString, c_int};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::error::{Attempt, LoadError};
use crate::results::CUresult;
use crate::table::{DriverApi, SYMBOLS};

/// The environment variable that names the driver's library; when set, nothing else is tried.
pub const LIBRARY_OVERRIDE: &str = "WARPTILE_LIBCUDA";

/// The oldest driver that will do: CUDA 12.0 (R525), the first to load 12.x cubins.
pub const REQUIRED_VERSION: Version = Version(12_000);

/// Where a driver may be; names without a directory go through the system's search path.
const CANDIDATES: &[&str] = if cfg!(windows) {
    &["nvcuda.dll"]
} else {
    &[
        "libcuda.so.1",
        // Windows Subsystem for Linux keeps the driver outside the default search path.
        "/usr/lib/wsl/lib/libcuda.so.1",
        "libcuda.so",
    ]
};

/// A version of the CUDA API as the driver counts it: 1000 * major + 10 * minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl Version {
    /// The part before the dot.
    pub const fn major(self) -> u32 {
        self.0 / 1000
    }

    /// The part after the dot.
    pub const fn minor(self) -> u32 {
        self.0 % 1000 / 10
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

/// The system's CUDA driver, opened on the first call; every later call repeats the first answer,
/// success or error.
///
/// Tried in order: the library named by the environment variable [`LIBRARY_OVERRIDE`] (then
/// nothing else), `libcuda.so.1`, WSL's `/usr/lib/wsl/lib/libcuda.so.1`, `libcuda.so`; on Windows
/// `nvcuda.dll`. `cuInit` is not called.
///
/// # Errors
/// [`LoadError`], by what went wrong.
pub fn load() -> Result<Arc<DriverApi>, LoadError> {
    static LOADED: OnceLock<Result<Arc<DriverApi>, LoadError>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            search(std::env::var_os(LIBRARY_OVERRIDE).filter(|path| !path.is_empty())).map(Arc::new)
        })
        .clone()
}

/// Opens the first candidate that is there. A library that opens but won't do ends the search: a
/// second driver behind a broken one would only hide the fault.
fn search(only: Option<OsString>) -> Result<DriverApi, LoadError> {
    let candidates: Vec<PathBuf> = match only {
        Some(path) => vec![path.into()],
        None => CANDIDATES.iter().map(PathBuf::from).collect(),
    };
    let mut tried = Vec::with_capacity(candidates.len());
    let mut first = None;
    for library in candidates {
        // SAFETY: these names belong to NVIDIA's driver, and whoever sets the override or the
        // library search path of a process decides what code it runs anyway.
        match unsafe { load_from(&library) } {
            Err(LoadError::NotFound {
                tried: attempts,
                source,
            }) => {
                tried.extend(attempts);
                first.get_or_insert(source);
            }
            done => return done,
        }
    }
    // There is a candidate on every system, so the first error stands for something.
    let source = first.unwrap_or_else(|| Arc::new(libloading::Error::DlOpenUnknown));
    Err(LoadError::NotFound { tried, source })
}

/// Opens one particular driver library: the seam for a test driver.
///
/// The library stays in memory for the rest of the process even when the table is dropped: a CUDA
/// driver runs threads of its own, which must not lose their code.
///
/// # Errors
/// [`LoadError`]; [`LoadError::NotFound`] lists this one attempt.
///
/// # Safety
/// `library` must name a CUDA driver or a stand-in whose exports have the CUDA driver's signatures:
/// its initialisers run, and its functions are called as [`DriverApi`] declares them.
pub unsafe fn load_from(library: impl AsRef<Path>) -> Result<DriverApi, LoadError> {
    let path = library.as_ref();
    // SAFETY: the caller vouches for the library.
    let library = unsafe { open(path) }.map_err(|attempt| LoadError::NotFound {
        source: attempt.source.clone(),
        tried: vec![attempt],
    })?;
    let version = version_of(&library, path)?;
    if version < crate::REQUIRED_VERSION {
        return Err(LoadError::TooOld {
            found: version,
            required: REQUIRED_VERSION,
            library: path.to_owned(),
        });
    }
    // SAFETY: the caller vouches for the signatures, and the library is never unloaded.
    unsafe { DriverApi::resolve(&library, path, version) }
}

/// Opens a library that stays in memory for the rest of the process, so that function pointers taken from it stay valid.
///
/// # Errors
/// The failed attempt.
///
/// # Safety
/// The library's initialisers run.
pub unsafe fn open(library: &Path) -> Result<ManuallyDrop<libloading::Library>, Attempt> {
    // SAFETY: the caller vouches for the library.
    unsafe { libloading::Library::new(library.as_os_str()) }
        .map(ManuallyDrop::new)
        .map_err(|error| Attempt {
            library: library.to_owned(),
            reason: words_of(&error, library.as_os_str()),
            source: Arc::new(error),
        })
}

/// Asks for the version before anything else is looked up, so that an old driver is called old and
/// a stub a stub, instead of lacking some function.
fn version_of(library: &libloading::Library, path: &Path) -> Result<Version, LoadError> {
    type DriverGetVersion = unsafe extern "system" fn(*mut c_int) -> CUresult;
    let symbol = SYMBOLS.driver_get_version;
    // SAFETY: cuDriverGetVersion has had this signature in every driver, and the library is one.
    let get = unsafe { library.get::<DriverGetVersion>(symbol) }.map_err(|source| {
        LoadError::MissingSymbol {
            symbol,
            library: path.to_owned(),
            source: Arc::new(source),
        }
    })?;
    let mut version: c_int = 0;
    // SAFETY: `version` outlives the call; this function may be called before cuInit.
    let code = unsafe { get(&mut version) };
    let library = path.to_owned();
    match code {
        CUresult::SUCCESS => Ok(Version(u32::try_from(version).unwrap_or(0))),
        CUresult::ERROR_STUB_LIBRARY => Err(LoadError::Stub { library }),
        code => Err(LoadError::NoVersion { code, library }),
    }
}

/// The loader's message without the library's name, which the error already gives.
fn words_of(error: &libloading::Error, library: &OsStr) -> String {
    let words =
        std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let prefix = format!("{}: ", library.to_string_lossy());
    words.strip_prefix(&prefix).unwrap_or(&words).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_that_is_not_there_is_the_only_thing_tried() {
        let missing = "no-such-directory/libcuda.so.1";
        let Err(LoadError::NotFound { tried, .. }) = search(Some(missing.into())) else {
            panic!("a missing library must be reported as not found");
        };
        assert_eq!(tried.len(), 1);
        assert_eq!(tried[0].library, Path::new(missing));
        assert!(!tried[0].reason.is_empty());
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(Version(12_080).to_string(), "12.8");
        assert_eq!(REQUIRED_VERSION.to_string(), "12.0");
        assert!(Version(11_080) < REQUIRED_VERSION);
    }

    #[test]
    fn load_repeats_its_first_answer() {
        match (load(), load()) {
            (Ok(first), Ok(second)) => assert!(Arc::ptr_eq(&first, &second)),
            (Err(first), Err(second)) => assert_eq!(first.to_string(), second.to_string()),
            _ => panic!("load() changed its mind"),
        }
    }
}
