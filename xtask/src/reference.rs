//! `build-reference`: compiles the float64 reference of the check crate.

use std::path::Path;

use crate::files::{self, FileError};
use crate::nvrtc::{Nvrtc, NvrtcError};
use crate::packs;
use crate::toolchain::Toolchain;

/// Source and result, below the repository's root.
const SOURCE: &str = "crates/check/gpu/reference.cu";
const IMAGE: &str = "crates/check/gpu/reference.ptx.zst";

/// No fused multiply-add: the reference rounds where its source says so.
const OPTIONS: [&str; 3] = [
    "--gpu-architecture=compute_80",
    "--std=c++17",
    "--fmad=false",
];

/// Why the reference could not be compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The source is not there, or the result cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The compiler cannot be used.
    #[error(transparent)]
    Compiler(#[from] NvrtcError),
    /// The source is wrong, or gives warnings.
    #[error("{SOURCE} does not compile cleanly:\n{log}")]
    Source {
        /// What the compiler says.
        log: String,
    },
    /// With `--check`: what is committed is not what the source compiles to.
    #[error("{IMAGE} is stale: run `cargo xtask build-reference` and commit the result")]
    Stale,
}

/// Compiles the reference to PTX, and writes it or, with `check`, compares it with what is committed.
///
/// # Errors
/// [`ReferenceError`].
pub fn build(root: &Path, toolchain: &Toolchain, check: bool) -> Result<(), ReferenceError> {
    let source = files::read_text(&root.join(SOURCE))?;
    let includes = toolchain
        .includes
        .iter()
        .map(|path| format!("--include-path={}", path.display()));
    let options: Vec<String> = OPTIONS
        .iter()
        .map(|&option| option.to_owned())
        .chain(includes)
        .collect();
    let compiled = Nvrtc::load(&toolchain.nvrtc)?.compile(&source, "reference.cu", &options)?;
    if !compiled.ok || !compiled.log.trim().is_empty() {
        return Err(ReferenceError::Source { log: compiled.log });
    }
    // NVRTC ends the text with a NUL, which the driver crate adds when it loads PTX.
    let text = compiled.ptx.strip_suffix(b"\0").unwrap_or(&compiled.ptx);
    let image = root.join(IMAGE);
    let file_error = |action| FileError::new(action, &image);
    if check {
        let committed =
            zstd::decode_all(&files::read(&image)?[..]).map_err(file_error("unpack"))?;
        return match committed == text {
            true => Ok(()),
            false => Err(ReferenceError::Stale),
        };
    }
    let packed = packs::compress(text).map_err(file_error("pack"))?;
    Ok(files::write(&image, &packed)?)
}
