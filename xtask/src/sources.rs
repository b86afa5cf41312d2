//! The hash of an image's sources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use sha2::{Digest, Sha256};

use crate::code::code;
use crate::files;
use crate::instances::Instance;

/// The folder of `kernels/` with the generated headers: the compiler looks for headers in it as it does in `kernels/`.
pub const GENERATED: &str = "generated";

/// A family's source file and every header of `kernels/` it includes, directly or not.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Text of the family's own file.
    pub text: String,
    /// [`code`] of the files, by path relative to `kernels/` or [`GENERATED`].
    files: BTreeMap<PathBuf, String>,
}

impl Sources {
    /// Reads `kernels/{source}` and follows its `#include "..."` lines.
    ///
    /// A name that is not found is left to the compiler: it may be a toolkit header, which the toolchain version covers.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(kernels: &Path, source: &str) -> Result<Self> {
        let mut sources = Self {
            text: files::read_text(&kernels.join(source))?,
            files: BTreeMap::new(),
        };
        let roots = [kernels.to_owned(), kernels.join(GENERATED)];
        let place = |path: &Path| {
            let places = roots.iter().map(|root| root.join(path));
            { places }.find(|place| place.is_file())
        };
        let mut pending = vec![PathBuf::from(source)];
        while let Some(relative) = pending.pop() {
            if sources.files.contains_key(&relative) {
                continue;
            }
            let path = place(&relative).unwrap_or_else(|| kernels.join(&relative));
            let code = code(&files::read_text(&path)?);
            for name in quoted_includes(&code) {
                let beside = relative.parent().unwrap_or(Path::new("")).join(name);
                let found = [beside, PathBuf::from(name)]
                    .into_iter()
                    .find(|candidate| place(candidate).is_some());
                pending.extend(found);
            }
            sources.files.insert(relative, code);
        }
        Ok(sources)
    }

    /// The files, relative to `kernels/` or [`GENERATED`].
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    /// SHA-256 over the [`code`] of the files, the instance's flags, what its gates expect, and the toolchain.
    ///
    /// Comments and line numbers do not reach an image: it has no line information, and the asserts that print `__LINE__` are
    /// compiled only with `build-kernels --debug`.
    pub fn hash(&self, instance: &Instance, toolchain: &str) -> String {
        let mut hasher = Sha256::new();
        let mut field = |bytes: &[u8]| {
            hasher.update((bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        for (path, contents) in &self.files {
            field(path.to_string_lossy().as_bytes());
            field(contents.as_bytes());
        }
        field(instance.flags().join(" ").as_bytes());
        field(format!("{:?}", instance.expectations).as_bytes());
        field(toolchain.as_bytes());
        files::hex(&hasher.finalize())
    }
}

fn quoted_includes(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let name = line
            .trim_start()
            .strip_prefix('#')?
            .trim_start()
            .strip_prefix("include")?
            .trim_start()
            .strip_prefix('"')?;
        name.split_once('"').map(|(name, _)| name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_do_not_change_the_hash_and_tokens_do() {
        let directory = tempfile::tempdir().unwrap();
        let kernels = directory.path();
        let instances = files::repository_root().join("kernels/instances.toml");
        let instance = &crate::instances::load(&instances).unwrap()[0];
        let hash = |header: &str| {
            files::write(&kernels.join("a.cuh"), header.as_bytes()).unwrap();
            files::write(&kernels.join("a.cu"), b"#include \"a.cuh\"\nint a;\n").unwrap();
            let sources = Sources::read(kernels, "a.cu").unwrap();
            sources.hash(instance, "toolchain")
        };
        let one = hash("// One.\nint b = 1; // that\n");
        assert_eq!(hash("int b\n    = 1;\n/* #include \"a.cu\" */"), one);
        assert_ne!(hash("// One.\nint b = 2; // that\n"), one);
        assert_ne!(hash("int c = 1;"), one);
    }

    #[test]
    fn the_hash_follows_headers_of_headers_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let kernels = directory.path();
        let write =
            |name: &str, text: &str| files::write(&kernels.join(name), text.as_bytes()).unwrap();
        write("a.cu", "#include \"one.cuh\"\n#include <cuda_fp16.h>\n");
        write(
            "one.cuh",
            "  #  include \"sub/two.cuh\" // why\n#include \"absent.h\"\n",
        );
        write(
            "sub/two.cuh",
            "#include \"three.cuh\"\n#include \"one.cuh\"\n",
        );
        write("sub/three.cuh", "int x;\n");
        write("other.cuh", "int y;\n");

        let sources = Sources::read(kernels, "a.cu").unwrap();
        let read: Vec<_> = sources
            .files
            .keys()
            .map(|path| path.to_string_lossy())
            .collect();
        assert_eq!(read, ["a.cu", "one.cuh", "sub/three.cuh", "sub/two.cuh"]);
    }
}
