//! The manifest next to the images, for tools: what the catalog says, as JSON.

use warptile_spec::TileShape;

/// Everything known of the committed images, ordered by name.
#[derive(Debug, Default, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Manifest {
    /// One entry per image.
    pub images: Vec<ManifestEntry>,
}

/// The numbers of a tile, each a field of an entry.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(remote = "TileShape")]
struct Tile {
    block_m: u32,
    block_n: u32,
    head_dim: u32,
    value_dim: u32,
    stages: u32,
    warps: u32,
    k_stride: u32,
    v_stride: u32,
}

/// The manifest's entry of an image; the catalog's `Image` documents the fields.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestEntry {
    /// `{kernel}_{element}_{target}`.
    pub name: String,
    /// `{family}_{tiling}`.
    pub kernel: String,
    /// Entry function.
    pub entry: String,
    /// Kernel family.
    pub family: String,
    /// Number of its `Role`.
    pub role: u32,
    /// Number of its `Schedule`.
    pub schedule: u32,
    /// Bits of its `Features`.
    pub features: u32,
    /// `sm_90`, `sm_90a`, `compute_80`, ...
    pub target: String,
    /// `f16`, `bf16` or `f32`.
    pub element: String,
    /// The tile's numbers.
    #[serde(flatten, with = "Tile")]
    pub tiling: TileShape,
    /// Registers per thread; 0 for PTX.
    pub registers: u32,
    /// Stack frame in bytes; 0 for PTX.
    pub stack_bytes: u32,
    /// Spill stores and loads in bytes; 0 for PTX.
    pub spill_bytes: u32,
    /// Static shared memory in bytes.
    pub static_shared_bytes: u32,
    /// Dynamic shared memory in bytes.
    pub dynamic_shared_bytes: u32,
    /// Tensor-core instructions in the machine code; 0 for PTX.
    pub tensor_instructions: u32,
    /// Hash of the parameter block's declaration, in hexadecimal.
    pub abi_hash: String,
    /// Size of the parameter block in bytes.
    pub param_bytes: u32,
    /// Compiler and version.
    pub toolchain: String,
    /// Compiler flags, without include paths.
    pub flags: String,
    /// SHA-256 over code, flags, gates and toolchain.
    pub source_hash: String,
    /// SHA-256 of the image.
    pub sha256: String,
    /// The pack it lies in, `{pack}.zst`: `{kernel}_{cargo feature}`.
    pub pack: String,
    /// Where the image begins in the unpacked pack, in bytes.
    pub offset: usize,
    /// Size of the image in bytes.
    pub len: usize,
}

#[cfg(test)]
impl ManifestEntry {
    /// An entry with these fields. The others are empty or 0.
    pub(crate) fn with(given: serde_json::Value) -> Self {
        let mut all = serde_json::json!({
            "name": "", "kernel": "", "entry": "", "family": "", "role": 1, "schedule": 1, "features": 0, "target": "sm_90", "element": "f16",
            "block_m": 0, "block_n": 0, "head_dim": 0, "value_dim": 0, "stages": 0, "warps": 0, "k_stride": 0, "v_stride": 0, "registers": 0,
            "stack_bytes": 0, "spill_bytes": 0, "static_shared_bytes": 0, "dynamic_shared_bytes": 0, "tensor_instructions": 0, "abi_hash": "0",
            "param_bytes": 0, "toolchain": "", "flags": "", "source_hash": "", "sha256": "", "pack": "", "offset": 0, "len": 0,
        });
        for (field, value) in given.as_object().unwrap() {
            all[field] = value.clone();
        }
        serde_json::from_value(all).unwrap()
    }
}
