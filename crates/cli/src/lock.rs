//! A lock for files that are read in order to be replaced.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The lock of a file, which no other process has while this lives. The end of a process releases it.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    /// `None` only within `drop`.
    file: Option<File>,
}

impl Lock {
    /// Waits for the lock of the file at `path` and takes it. The file need not exist, but its folder must. The lock is a file beside
    /// it that ends in `.lock`.
    ///
    /// # Errors
    /// [`Failure::File`].
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        let lock = path.with_extension("lock");
        match locked(&lock) {
            Ok(file) => Ok(Lock {
                path: lock,
                file: Some(file),
            }),
            Err(source) => Err(Failure::write(path, source)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if cfg!(unix) {
            // Removed while it is still locked, so that a process that waits for the lock finds afterwards that the file is gone.
            let _ = fs::remove_file(&self.path);
            self.file.take();
        } else {
            // An open file can't be removed: not this one before it is closed, nor one that another process has opened by then.
            self.file.take();
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // For writing, as a network file system may lock no other files.
    options.create(true).truncate(false).write(true);
    options
}

#[cfg(unix)]
fn locked(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::{FlockOperation, flock};
    use rustix::io::{Errno, retry_on_intr};

    loop {
        let file = options().open(path)?;
        match retry_on_intr(|| flock(&file, FlockOperation::LockExclusive)) {
            // On a file system without locks the command works as if it were alone.
            Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {}
            Err(error) => return Err(error.into()),
        }
        let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let ours = place(file.metadata()?);
        if fs::metadata(path).is_ok_and(|there| place(there) == ours) {
            return Ok(file);
        }
    }
}

/// An open file is a lock here, because no other process can open it.
#[cfg(windows)]
fn locked(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    use std::time::{Duration, Instant};

    /// Longer than anybody holds a lock.
    const PATIENCE: Duration = Duration::from_secs(10);

    let start = Instant::now();
    loop {
        match options().share_mode(0).open(path) {
            Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn counts_by_many_threads_are_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("count.txt");
        let count = || fs::read_to_string(&path).map_or(0, |text| text.parse::<u32>().unwrap());
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = Lock::of(&path).unwrap();
                        fs::write(&path, (count() + 1).to_string()).unwrap();
                    }
                });
            }
        });
        assert_eq!(count(), 400);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Lock::of(&folder.path().join("no/rates.txt")).unwrap_err();
        assert!(
            error.to_string().contains("no/rates.txt: cannot write: "),
            "{error}"
        );
    }
}
