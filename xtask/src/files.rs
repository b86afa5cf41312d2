//! File operations whose errors name the file, and the places of this repository.

use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// A file operation failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct FileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    /// For `map_err`: names what was done to which file.
    pub fn new(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self {
            action,
            path,
            source,
        }
    }
}

/// Reads a file.
///
/// # Errors
/// [`FileError`] if it cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    std::fs::read(path).map_err(FileError::new("read", path))
}

/// Reads a UTF-8 file.
///
/// # Errors
/// [`FileError`] if it cannot be read or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(FileError::new("read", path))
}

/// Writes a file whole, creating its directory; a reader never sees half of it.
///
/// # Errors
/// [`FileError`] if it cannot be written.
pub fn write(path: &Path, contents: &[u8]) -> Result<(), FileError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    create_dir(directory)?;
    let temporary =
        tempfile::NamedTempFile::new_in(directory).map_err(FileError::new("write", path))?;
    std::fs::write(temporary.path(), contents).map_err(FileError::new("write", path))?;
    temporary
        .persist(path)
        .map_err(|error| FileError::new("write", path)(error.error))?;
    // Temporary files are private; what is committed or bundled is not.
    set_mode(path, 0o644)
}

/// Lets everyone run the file at `path`.
///
/// # Errors
/// [`FileError`] if its permissions cannot be set.
pub fn make_executable(path: &Path) -> Result<(), FileError> {
    set_mode(path, 0o755)
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) -> Result<(), FileError> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(FileError::new("set the permissions of", path))
}

#[cfg(not(unix))]
fn set_mode(_path: &Path, _mode: u32) -> Result<(), FileError> {
    Ok(())
}

/// Creates a directory and its parents.
///
/// # Errors
/// [`FileError`] if that fails.
pub fn create_dir(path: &Path) -> Result<(), FileError> {
    std::fs::create_dir_all(path).map_err(FileError::new("create the directory", path))
}

/// Paths in a directory, sorted; none if the directory does not exist.
///
/// # Errors
/// [`FileError`] if it exists but cannot be listed.
pub fn list(path: &Path) -> Result<Vec<PathBuf>, FileError> {
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(FileError::new("list", path))?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(FileError::new("list", path))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// SHA-256 in lower-case hexadecimal.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Bytes in lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The repository's root. Cargo says at run time where the running xtask's manifest lies, which is right even when
/// several checkouts share a target directory.
#[must_use]
pub fn repository_root() -> PathBuf {
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest_dir
        .parent()
        .map_or(manifest_dir.clone(), Path::to_owned)
}
