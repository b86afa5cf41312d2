//! The tile shape, as both the catalog and an image's own record state it.

/// The tile shape and shared-memory layout of a kernel, as its C++ `Traits` has them. A kernel without tiles has only warps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TileShape {
    /// Query rows of a tile.
    pub block_m: u32,
    /// Keys of a tile.
    pub block_n: u32,
    /// Head size of queries and keys the tile is laid out for; smaller heads are padded with zeros on chip.
    pub head_dim: u32,
    /// Likewise that of values and the output.
    pub value_dim: u32,
    /// K/V tiles in flight.
    pub stages: u32,
    /// Warps of a CTA, producers included.
    pub warps: u32,
    /// Elements between neighbouring rows of K in shared memory; 0 where rows are swizzled instead of padded.
    pub k_stride: u32,
    /// Elements between neighbouring rows of V in shared memory; 0 where rows are swizzled instead of padded.
    pub v_stride: u32,
}

impl TileShape {
    /// Whether the kernel computes in tiles.
    #[must_use]
    pub const fn has_tiles(&self) -> bool {
        self.block_m > 0
    }
}
