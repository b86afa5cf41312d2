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
    /// Head size of values and the output the tile is laid out for.
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
    /// Returns true if the kernel computes in tiles.
    pub const fn has_tiles(&self) -> bool {
        self.block_m > 0
    }

    /// The head size of queries and keys, and that of values and the output, that the tile is laid out for.
    pub const fn dims(&self) -> [usize; 2] {
        [self.head_dim as usize, self.value_dim as usize]
    }

    /// The numbers, by their names in a manifest of images.
    pub const fn fields(&self) -> [(&'static str, u32); 8] {
        [
            ("block_m", self.block_m),
            ("block_n", self.block_n),
            ("head_dim", self.head_dim),
            ("value_dim", self.value_dim),
            ("stages", self.stages),
            ("warps", self.warps),
            ("k_stride", self.k_stride),
            ("v_stride", self.v_stride),
        ]
    }

    /// Bytes of a tile's unfinished result: rows of values in fp32, each with `sums` sums.
    pub const fn part_bytes(&self, sums: usize) -> usize {
        self.block_m as usize * (self.value_dim as usize + sums) * size_of::<f32>()
    }
}
