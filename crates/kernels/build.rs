//! Turns `images/manifest.json`, written by `cargo xtask build-kernels`, into the static catalog.

use std::fmt::Write as _;
use std::{env, error::Error, fs, path::PathBuf};

#[derive(serde::Deserialize)]
struct Manifest {
    images: Vec<Entry>,
}

#[derive(serde::Deserialize)]
struct Entry {
    name: String,
    kernel: String,
    entry: String,
    family: String,
    target: String,
    element: String,
    block_m: u32,
    block_n: u32,
    head_dim: u32,
    stages: u32,
    warps: u32,
    k_stride: u32,
    v_stride: u32,
    registers: u32,
    stack_bytes: u32,
    spill_bytes: u32,
    static_shared_bytes: u32,
    dynamic_shared_bytes: u32,
    tensor_instructions: u32,
    param_bytes: u32,
    toolchain: String,
    flags: String,
    source_hash: String,
    sha256: String,
    len: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let images = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("images");
    let manifest_path = images.join("manifest.json");
    println!("cargo::rerun-if-changed={}", images.display());

    let text = fs::read_to_string(&manifest_path)
        .map_err(|error| format!("{}: {error}", manifest_path.display()))?;
    let mut manifest: Manifest = serde_json::from_str(&text)?;
    manifest.images.sort_by(|a, b| a.name.cmp(&b.name));

    let mut code = String::from("static CATALOG: &[Image] = &[\n");
    for image in &manifest.images {
        let packed = images.join(format!("{}.zst", image.name));
        let Entry {
            name,
            kernel,
            entry,
            toolchain,
            flags,
            source_hash,
            sha256,
            len,
            ..
        } = image;
        let family = variant(&image.family);
        let element = variant(&image.element);
        let target = target(&image.target)?;
        let Entry {
            block_m,
            block_n,
            head_dim,
            stages,
            warps,
            k_stride,
            v_stride,
            ..
        } = image;
        let Entry {
            registers,
            stack_bytes,
            spill_bytes,
            static_shared_bytes,
            dynamic_shared_bytes,
            ..
        } = image;
        let Entry {
            tensor_instructions,
            param_bytes,
            ..
        } = image;
        writeln!(
            code,
            "Image {{ name: {name:?}, kernel: {kernel:?}, entry: {entry:?}, family: Family::{family}, target: Target::{target}, \
             element: ElementType::{element}, \
             tiling: Tiling {{ block_m: {block_m}, block_n: {block_n}, head_dim: {head_dim}, stages: {stages}, warps: {warps}, \
             k_stride: {k_stride}, v_stride: {v_stride} }}, \
             resources: Resources {{ registers: {registers}, stack_bytes: {stack_bytes}, spill_bytes: {spill_bytes}, \
             static_shared_bytes: {static_shared_bytes}, dynamic_shared_bytes: {dynamic_shared_bytes}, \
             tensor_instructions: {tensor_instructions} }}, \
             param_bytes: {param_bytes}, toolchain: {toolchain:?}, flags: {flags:?}, source_hash: {source_hash:?}, \
             sha256: {sha256:?}, len: {len}, packed: include_bytes!({packed:?}) }},",
        )?;
    }
    code.push_str("];\n");
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("catalog.rs"), code)?;
    Ok(())
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

fn target(name: &str) -> Result<String, Box<dyn Error>> {
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
