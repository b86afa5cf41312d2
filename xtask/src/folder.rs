//! Images in a folder that `WARPTILE_KERNELS_DIR` names: candidates of a search, and debug images.

use std::path::Path;

use anyhow::Result;

use crate::build_kernels::{Compiler, Failure, Layout, Progress, manifest_text, read_sources};
use crate::files;
use crate::instances::Instance;
use crate::manifest::Manifest;
use crate::units::{Built, compile_all};

/// Compiles images into a folder, each in a file of its own, next to the manifest that `WARPTILE_KERNELS_DIR` asks for. The manifest
/// is written last, so that a folder with one is whole.
///
/// # Errors
/// If the sources cannot be read or the results not be written. What failed is returned next to the manifest.
pub fn build(
    layout: &Layout,
    compiler: &Compiler,
    instances: &[Instance],
    folder: &Path,
    progress: &dyn Progress,
) -> Result<(Manifest, Vec<Failure>)> {
    let sources = read_sources(layout, instances)?;
    let (built, failures) = compile_all(layout, compiler, &sources, instances, progress)?;
    let mut manifest = Manifest::default();
    for Built { mut entry, image } in built {
        let kind = if entry.target.starts_with("compute_") {
            "ptx"
        } else {
            "cubin"
        };
        entry.pack = format!("{}.{kind}", entry.name);
        files::write(&folder.join(&entry.pack), &image)?;
        manifest.images.push(entry);
    }
    manifest.images.sort_by(|a, b| a.name.cmp(&b.name));
    let text = manifest_text(&manifest);
    files::write(&folder.join("manifest.json"), text.as_bytes())?;
    Ok((manifest, failures))
}
