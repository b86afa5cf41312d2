//! Turns `images/manifest.json`, written by `cargo xtask build-kernels`, into the static catalog.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, error::Error, fs};

#[path = "build/manifest.rs"]
pub mod manifest;

use manifest::{Manifest, ManifestEntry};

fn main() -> Result<(), Box<dyn Error>> {
    let images = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("images");
    let manifest_path = images.join("manifest.json");
    println!("cargo::rerun-if-changed={}", images.display());
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/manifest.rs");

    let text = fs::read_to_string(&manifest_path)
        .map_err(|error| format!("{}: {error}", manifest_path.display()))?;
    let mut manifest: Manifest = serde_json::from_str(&text)?;
    manifest.images.sort_by(|a, b| a.name.cmp(&b.name));

    let mut code = String::new();
    let packs: BTreeSet<&str> = manifest.images.iter().map(|i| i.pack.as_str()).collect();
    for pack in &packs {
        let file = images.join(format!("{pack}.zst"));
        if !file.is_file() {
            return Err(format!(
                "{} is in the manifest but not on disk; run `cargo xtask build-kernels`",
                file.display()
            )
            .into());
        }
        let name = pack_static(pack);
        writeln!(code, "static {name}: &[u8] = include_bytes!({file:?});")?;
    }
    let statics: Vec<String> = packs.into_iter().map(pack_static).collect();
    writeln!(code, "static PACKS: &[&[u8]] = &[{}];", statics.join(", "))?;
    code.push_str("static CATALOG: &[Image] = &[\n");
    for image in &manifest.images {
        writeln!(code, "{},", literal(image)?)?;
    }
    code.push_str("];\n");
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("catalog.rs"), code)?;
    Ok(())
}

/// The static that holds a pack.
fn pack_static(pack: &str) -> String {
    format!("PACK_{}", pack.to_ascii_uppercase())
}

/// The Rust expression for one image.
fn literal(image: &ManifestEntry) -> Result<String, Box<dyn Error>> {
    let ManifestEntry {
        name,
        kernel,
        entry,
        family,
        target,
        element,
        block_m,
        block_n,
        head_dim,
        stages,
        warps,
        k_stride,
        v_stride,
        registers,
        stack_bytes,
        spill_bytes,
        static_shared_bytes,
        dynamic_shared_bytes,
        tensor_instructions,
        param_bytes,
        toolchain,
        flags,
        source_hash,
        sha256,
        pack,
        offset,
        len,
    } = image;
    let pack = pack_static(pack);
    let family = variant(family);
    let target = target_literal(target)?;
    let element = variant(element);
    Ok(format!(
        "Image {{ name: {name:?}, kernel: {kernel:?}, entry: {entry:?}, family: Family::{family}, \
         target: Target::{target}, element: ElementType::{element}, \
         tiling: Tiling {{ block_m: {block_m}, block_n: {block_n}, head_dim: {head_dim}, stages: {stages}, \
         warps: {warps}, k_stride: {k_stride}, v_stride: {v_stride} }}, \
         resources: Resources {{ registers: {registers}, stack_bytes: {stack_bytes}, spill_bytes: {spill_bytes}, \
         static_shared_bytes: {static_shared_bytes}, dynamic_shared_bytes: {dynamic_shared_bytes}, \
         tensor_instructions: {tensor_instructions} }}, \
         param_bytes: {param_bytes}, toolchain: {toolchain:?}, flags: {flags:?}, source_hash: {source_hash:?}, \
         sha256: {sha256:?}, pack: {pack}, offset: {offset}, len: {len} }}"
    ))
}

/// `f16` is the variant `F16`, `wgmma` is `Wgmma`.
fn variant(name: &str) -> String {
    let mut letters = name.chars();
    letters
        .next()
        .map(|first| first.to_ascii_uppercase())
        .into_iter()
        .chain(letters)
        .collect()
}

/// `sm_90a` is `CubinExact(90)`.
fn target_literal(name: &str) -> Result<String, Box<dyn Error>> {
    if let Some(version) = name.strip_prefix("compute_") {
        return Ok(format!("Ptx({})", version.parse::<u32>()?));
    }
    let version = name
        .strip_prefix("sm_")
        .ok_or_else(|| format!("unknown target {name}"))?;
    Ok(match version.strip_suffix('a') {
        Some(exact) => format!("CubinExact({})", exact.parse::<u32>()?),
        None => format!("Cubin({})", version.parse::<u32>()?),
    })
}
