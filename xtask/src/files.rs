//! File operations whose errors name the file, and the places of this repository.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

/// For `map_err`: names what was done to which file.
pub fn failed(action: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| anyhow!("cannot {action} {}: {source}", path.display())
}

/// Reads a file.
///
/// # Errors
/// If it cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(failed("read", path))
}

/// Reads a UTF-8 file.
///
/// # Errors
/// If it cannot be read or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(failed("read", path))
}

/// Reads a JSON file.
///
/// # Errors
/// If it cannot be read or is not what is expected.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    serde_json::from_str(&read_text(path)?).map_err(|error| anyhow!("{}: {error}", path.display()))
}

/// Writes readable JSON that ends in a line break, whole as [`write()`] does.
///
/// # Errors
/// If it cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write(
        path,
        (serde_json::to_string_pretty(value)? + "\n").as_bytes(),
    )
}

/// Writes a file whole, creating its directory; a reader never sees half of it.
///
/// # Errors
/// If it cannot be written.
pub fn write(path: &Path, contents: &[u8]) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    create_dir(directory)?;
    let temporary = tempfile::NamedTempFile::new_in(directory).map_err(failed("write", path))?;
    std::fs::write(temporary.path(), contents).map_err(failed("write", path))?;
    temporary
        .persist(path)
        .map_err(|error| failed("write", path)(error.error))?;
    // Temporary files are private; what is committed or bundled is not.
    set_mode(path, 0o644)
}

/// Lets everyone run the file at `path`.
///
/// # Errors
/// If its permissions cannot be set.
pub fn make_executable(path: &Path) -> Result<()> {
    set_mode(path, 0o755)
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(failed("set the permissions of", path))
}

#[cfg(not(unix))]
fn set_mode(_path: &Path, _mode: u32) -> Result<()> {
    Ok(())
}

/// Creates a directory and its parents.
///
/// # Errors
/// If that fails.
pub fn create_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(failed("create the directory", path))
}

/// Paths in a directory, sorted; none if the directory does not exist.
///
/// # Errors
/// If it exists but cannot be listed.
pub fn list(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("list", path))?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(failed("list", path))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// Paths in a directory whose names end in `.` and `extension`, as [`list`] has them.
///
/// # Errors
/// As [`list`].
pub fn list_of(path: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut paths = list(path)?;
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    Ok(paths)
}

/// Files below a directory, by their paths from it, sorted; none if the directory does not exist.
///
/// # Errors
/// If a directory cannot be listed.
pub fn tree(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in list(root)? {
        let name = PathBuf::from(path.file_name().unwrap_or_default());
        match path.is_dir() {
            true => files.extend(tree(&path)?.iter().map(|file| name.join(file))),
            false => files.push(name),
        }
    }
    Ok(files)
}

/// SHA-256 in lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The repository's root. Cargo says at run time where the running xtask's manifest lies, which is right even when
/// several checkouts share a target directory.
pub fn repository_root() -> PathBuf {
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest_dir
        .parent()
        .map_or(manifest_dir.clone(), Path::to_owned)
}
