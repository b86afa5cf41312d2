//! Files that are replaced whole or not at all.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

use crate::failure::Failure;

/// A file about to be written. Until [`finish`](Replacement::finish) has succeeded, what was at its path stays there.
#[derive(Debug)]
pub(crate) struct Replacement {
    /// As the user wrote it.
    path: PathBuf,
    /// Where that is, behind symbolic links.
    target: PathBuf,
    file: Opened,
}

#[derive(Debug)]
enum Opened {
    /// In the folder of the target, to be renamed.
    Beside(NamedTempFile, Unfinished),
    /// A pipe or a device: nothing that could be replaced.
    Direct(File),
}

/// Files that are to be renamed and were not yet.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the files that are to be renamed: for the end of the process in the middle of its work.
pub(crate) fn discard_unfinished() {
    let mut unfinished = unfinished();
    for path in std::mem::take(&mut *unfinished) {
        // If the file cannot be removed it stays; there is no way to report it.
        let _ = fs::remove_file(path);
    }
    // No file is begun after that.
    std::mem::forget(unfinished);
}

/// A file is among [`UNFINISHED`] while it lives.
#[derive(Debug)]
struct Unfinished(PathBuf);

impl Unfinished {
    /// Makes the file while nothing can be discarded.
    fn make(make: impl FnOnce() -> io::Result<NamedTempFile>) -> io::Result<(NamedTempFile, Self)> {
        let mut unfinished = unfinished();
        let file = make()?;
        unfinished.insert(file.path().to_owned());
        let registered = Unfinished(file.path().to_owned());
        Ok((file, registered))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        unfinished().remove(&self.0);
    }
}

impl Replacement {
    /// Makes sure that `path` can be written, before the work that fills it.
    ///
    /// # Errors
    /// [`Failure::File`].
    pub(crate) fn begin(path: &Path) -> Result<Self, Failure> {
        Self::open(path).map_err(|source| Failure::write(path, source))
    }

    fn open(path: &Path) -> io::Result<Self> {
        let target = match fs::canonicalize(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
            resolved => resolved?,
        };
        let present = match fs::metadata(&target) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            metadata => Some(metadata?),
        };
        let file = match &present {
            Some(present) if present.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Some(present) if !present.is_file() => {
                Opened::Direct(OpenOptions::new().write(true).open(&target)?)
            }
            Some(present) if present.permissions().readonly() => {
                return Err(ErrorKind::PermissionDenied.into());
            }
            _ => {
                let make = || temporary(&target, present.as_ref());
                let (file, unfinished) = Unfinished::make(make)?;
                Opened::Beside(file, unfinished)
            }
        };
        Ok(Replacement {
            path: path.to_owned(),
            target,
            file,
        })
    }

    /// As the user wrote it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `bytes` and puts the file in its place.
    ///
    /// # Errors
    /// [`Failure::File`]; a file that was there is then as it was.
    pub(crate) fn finish(self, bytes: &[u8]) -> Result<(), Failure> {
        let Replacement { path, target, file } = self;
        let written = match file {
            Opened::Direct(mut file) => file.write_all(bytes),
            // Not by its own methods, whose errors name the temporary file.
            Opened::Beside(mut file, _unfinished) => { file.as_file_mut() }
                .write_all(bytes)
                // A full disk may show only now.
                .and_then(|()| file.as_file().sync_all())
                .and_then(|()| file.persist(&target).map_err(|error| error.error).map(drop)),
        };
        written.map_err(|source| Failure::write(&path, source))
    }
}

/// A file in the folder of `target`, with the permissions of what it will replace or those of any new file.
fn temporary(target: &Path, present: Option<&fs::Metadata>) -> io::Result<NamedTempFile> {
    let folder = folder_of(target);
    let mut builder = tempfile::Builder::new();
    // An error of `tempfile_in` would name the temporary file.
    let file = builder
        .prefix(".warptile-")
        .make_in(folder, |path| File::create_new(path))?;
    if let Some(present) = present {
        file.as_file().set_permissions(present.permissions())?;
    }
    Ok(file)
}

/// Checks that a command writes to none of the files that it reads.
///
/// # Errors
/// [`Failure::Input`].
pub(crate) fn refuse_replacing<'a>(
    read: impl IntoIterator<Item = &'a PathBuf>,
    written: &Path,
) -> Result<(), Failure> {
    match { read.into_iter() }.find(|read| is_same_file(read, written)) {
        None => Ok(()),
        Some(read) => Err(Failure::Input(format!(
            "{}: the output would replace a file that is read: {}",
            written.display(),
            read.display()
        ))),
    }
}

/// Returns true if both paths lead to the same file, or will once it is written.
pub(crate) fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((place(a), place(b)), (Ok(a), Ok(b)) if a == b)
}

/// The path of a file without symbolic links; of a file that is not there yet, that of its folder and the name.
fn place(path: &Path) -> io::Result<PathBuf> {
    match (fs::canonicalize(path), path.file_name()) {
        (Err(error), Some(name)) if error.kind() == ErrorKind::NotFound => {
            Ok(fs::canonicalize(folder_of(path))?.join(name))
        }
        (found, _) => found,
    }
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn entries(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn the_old_file_stays_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(&path, "old").unwrap();
        let replacement = Replacement::begin(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(replacement);
        assert_eq!(entries(folder.path()), 1, "nothing is left of an attempt");
        Replacement::begin(&path).unwrap().finish(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(entries(folder.path()), 1);
    }

    #[test]
    fn a_file_that_is_there_can_be_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3000 {
                    drop(Replacement::begin(&folder.path().join("out")).unwrap());
                }
                ended.store(true, Ordering::Relaxed);
            });
            while !ended.load(Ordering::Relaxed) {
                for entry in fs::read_dir(folder.path()).unwrap() {
                    let path = entry.unwrap().path();
                    let unfinished = unfinished();
                    assert!(!path.exists() || unfinished.contains(&path));
                }
            }
        });
    }

    #[test]
    fn a_folder_that_is_not_there_shows_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let error = Replacement::begin(&folder.path().join("no/out")).unwrap_err();
        assert!(
            error.to_string().contains("no/out: cannot write: "),
            "{error}"
        );
        assert!(
            Replacement::begin(folder.path()).is_err(),
            "a folder is no file"
        );
    }

    #[test]
    #[cfg(unix)]
    fn links_permissions_and_devices_stay_what_they_are() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "old").unwrap();
        fs::set_permissions(&real, PermissionsExt::from_mode(0o640)).unwrap();
        symlink(&real, &link).unwrap();
        Replacement::begin(&link).unwrap().finish(b"new").unwrap();
        assert_eq!(fs::read(&real).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(
            fs::metadata(&real).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert!(is_same_file(&real, &link));
        let null = Path::new("/dev/null");
        Replacement::begin(null).unwrap().finish(b"gone").unwrap();
        assert!(!fs::metadata(null).unwrap().is_file());
    }
}
