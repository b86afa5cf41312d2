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
