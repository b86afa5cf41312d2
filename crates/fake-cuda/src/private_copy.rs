//! A copy of a stand-in's library; the stand-in for NCCL compiles this file, too.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A copy of a stand-in's shared library, with state that no other test shares. Like any code made for tests, it panics when something is
/// not as it should be.
pub(crate) struct PrivateCopy {
    path: PathBuf,
    /// Never unloaded: whoever loads the library from `path` keeps it too.
    library: ManuallyDrop<libloading::Library>,
}

impl PrivateCopy {
    /// Opens a copy of the library of `package`, as Cargo spells it in file names, that lacks some functions.
    ///
    /// # Panics
    /// If the shared library is not next to the test executable, where Cargo puts it when the package is a dependency, or has no such
    /// function.
    pub(crate) fn open(package: &str, without: &[&str]) -> PrivateCopy {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let original = library_path(package);
        let mut bytes = std::fs::read(&original)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", original.display()));
        for symbol in without {
            rename_export(&mut bytes, symbol);
        }
        let path = std::env::temp_dir().join(format!(
            "{package}-{}-{}{}",
            std::process::id(),
            OPENED.fetch_add(1, Ordering::Relaxed),
            std::env::consts::DLL_SUFFIX
        ));
        std::fs::write(&path, bytes)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        // SAFETY: the library is a stand-in of this workspace, and has no initialisers.
        let library = unsafe { libloading::Library::new(&path) }
            .unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()));
        PrivateCopy {
            path,
            library: ManuallyDrop::new(library),
        }
    }

    /// The copy's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A function of the copy.
    ///
    /// # Safety
    /// The function has the type `F`.
    ///
    /// # Panics
    /// If there is none of this name.
    pub(crate) unsafe fn control<F: Copy>(&self, symbol: &str) -> F {
        // SAFETY: the caller vouches for the type.
        match unsafe { self.library.get::<F>(symbol) } {
            Ok(function) => *function,
            Err(error) => panic!("{} lacks {symbol}: {error}", self.path.display()),
        }
    }
}

impl Drop for PrivateCopy {
    fn drop(&mut self) {
        // Windows does not delete a library in use; then it stays in the temporary directory.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Cargo puts the library of a dependency next to the test executable, or a directory above it; `cargo xtask bundle`,
/// for benchmarks, in the directory of the tests.
fn library_path(package: &str) -> PathBuf {
    let name = format!(
        "{}{package}{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    let executable = std::env::current_exe()
        .unwrap_or_else(|error| panic!("the test executable does not know its path: {error}"));
    let mut tried = Vec::new();
    for directory in executable.ancestors().skip(1).take(3) {
        for path in ["", "deps", "tests"].map(|below| directory.join(below).join(&name)) {
            if path.is_file() {
                return path;
            }
            tried.push(path.display().to_string());
        }
    }
    panic!(
        "the stand-in is not built: none of {} exists. The test's crate needs {package} among its dev-dependencies",
        tried.join(", ")
    );
}

/// Changes the first letter of an exported name, wherever the file has it as a whole string.
fn rename_export(library: &mut [u8], symbol: &str) {
    let wanted = [b"\0", symbol.as_bytes(), b"\0"].concat();
    let places: Vec<usize> = library
        .windows(wanted.len())
        .enumerate()
        .filter(|(_, window)| *window == wanted)
        .map(|(at, _)| at)
        .collect();
    assert!(
        !places.is_empty(),
        "the stand-in driver has no export {symbol}"
    );
    for at in places {
        library[at + 1] = b'X';
    }
}
