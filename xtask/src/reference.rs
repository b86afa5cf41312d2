//! `build-reference`: compiles the float64 reference of the check crate.

use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::files;
use crate::nvrtc::Nvrtc;
use crate::packs;
use crate::toolchain::Toolchain;

/// Sources and result, below the repository's root.
const FOLDER: &str = "crates/check/gpu";
const SOURCE: &str = "crates/check/gpu/reference.cu";
const IMAGE: &str = "crates/check/gpu/reference.ptx.zst";

/// No fused multiply-add: the reference rounds where its source says so.
const OPTIONS: [&str; 3] = [
    "--gpu-architecture=compute_80",
    "--std=c++17",
    "--fmad=false",
];

/// Compiles the reference to PTX, and writes it or, with `check`, compares it with what is committed.
///
/// # Errors
/// If a file is missing, the source does not compile cleanly, or the image is stale.
pub fn build(root: &Path, toolchain: &Toolchain, check: bool) -> Result<()> {
    let source = files::read_text(&root.join(SOURCE))?;
    let includes = toolchain
        .includes
        .iter()
        .map(|path| format!("--include-path={}", path.display()));
    let options: Vec<String> = OPTIONS
        .iter()
        .map(|&option| option.to_owned())
        .chain(includes)
        .chain([format!("--include-path={}", root.join(FOLDER).display())])
        .collect();
    let compiled = Nvrtc::load(&toolchain.nvrtc)?.compile(&source, "reference.cu", &options)?;
    if !compiled.ok || !compiled.log.trim().is_empty() {
        bail!("{SOURCE} does not compile cleanly:\n{}", compiled.log);
    }
    // NVRTC ends the text with a NUL, which the driver crate adds when it loads PTX.
    let text = compiled.ptx.strip_suffix(b"\0").unwrap_or(&compiled.ptx);
    let image = root.join(IMAGE);
    let file_error = |action| files::failed(action, &image);
    if check {
        let committed =
            zstd::decode_all(&files::read(&image)?[..]).map_err(file_error("unpack"))?;
        ensure!(
            committed == text,
            "{IMAGE} is stale: run `cargo xtask build-reference` and commit the result"
        );
        return Ok(());
    }
    let packed = packs::compress(text).map_err(file_error("pack"))?;
    files::write(&image, &packed)
}
