//! Tile shapes as types: the Rust side of the kernels' C++ `Traits`.

/// Shape of the tiles a kernel works in, under the names its C++ `Traits` uses.
///
/// Each compiled image carries the same numbers as a constant record; tests hold that record against these constants.
pub trait Tiling {
    /// Query rows of a tile.
    const BLOCK_M: usize;
    /// Keys of a tile.
    const BLOCK_N: usize;
    /// Head size the tile is laid out for; smaller heads are padded with zeros on chip.
    const HEAD_DIM: usize;
    /// K/V tiles in flight.
    const STAGES: usize;
    /// Warps of a CTA.
    const WARPS: usize;
    /// Name of the tiling inside a kernel's name: `d{HEAD_DIM}_{BLOCK_M}x{BLOCK_N}_w{WARPS}_s{STAGES}`.
    const NAME: &'static str;

    /// Elements of padding after each row of K and V in shared memory: 16 bytes of a 2-byte type. It moves neighbouring
    /// rows to different banks.
    const PADDING: usize = 8;
    /// Elements between neighbouring rows of K in shared memory.
    const K_STRIDE: usize = Self::HEAD_DIM + Self::PADDING;
    /// Elements between neighbouring rows of V in shared memory.
    const V_STRIDE: usize = Self::HEAD_DIM + Self::PADDING;
}

/// The constants of a [`Tiling`] as values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TilingConstants {
    /// [`Tiling::NAME`].
    pub name: &'static str,
    /// [`Tiling::BLOCK_M`].
    pub block_m: usize,
    /// [`Tiling::BLOCK_N`].
    pub block_n: usize,
    /// [`Tiling::HEAD_DIM`].
    pub head_dim: usize,
    /// [`Tiling::STAGES`].
    pub stages: usize,
    /// [`Tiling::WARPS`].
    pub warps: usize,
    /// [`Tiling::K_STRIDE`].
    pub k_stride: usize,
    /// [`Tiling::V_STRIDE`].
    pub v_stride: usize,
}

impl TilingConstants {
    /// The constants of `T`.
    #[must_use]
    pub const fn of<T: Tiling>() -> Self {
        TilingConstants {
            name: T::NAME,
            block_m: T::BLOCK_M,
            block_n: T::BLOCK_N,
            head_dim: T::HEAD_DIM,
            stages: T::STAGES,
            warps: T::WARPS,
            k_stride: T::K_STRIDE,
            v_stride: T::V_STRIDE,
        }
    }
}

macro_rules! tilings {
    ($($(#[$doc:meta])* $type:ident = d $d:literal, $m:literal x $n:literal, w $w:literal, s $s:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub enum $type {}

            impl Tiling for $type {
                const BLOCK_M: usize = $m;
                const BLOCK_N: usize = $n;
                const HEAD_DIM: usize = $d;
                const STAGES: usize = $s;
                const WARPS: usize = $w;
                const NAME: &'static str = concat!("d", $d, "_", $m, "x", $n, "_w", $w, "_s", $s);
            }
        )*

        /// Every named tiling.
        pub const TILINGS: &[TilingConstants] = &[$(TilingConstants::of::<$type>()),*];
    };
}

tilings! {
    /// The original kernel's base tiling.
    D64M32N64W4S2 = d 64, 32 x 64, w 4, s 2;
    /// Half the keys per tile.
    D64M32N32W4S2 = d 64, 32 x 32, w 4, s 2;
    /// 48 rows over 8 warps: rows don't divide into one 16-row tile per warp, so warps share tiles.
    D64M48N64W8S2 = d 64, 48 x 64, w 8, s 2;
    /// The base tiling without prefetching.
    D64M32N64W4S1 = d 64, 32 x 64, w 4, s 1;
    /// The fewest rows per tile.
    D64M16N64W4S2 = d 64, 16 x 64, w 4, s 2;
    /// Square tiles over 8 warps.
    D64M64N64W8S2 = d 64, 64 x 64, w 8, s 2;
    /// Head size 128 over 8 warps.
    D128M48N32W8S2 = d 128, 48 x 32, w 8, s 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_shape() {
        assert_eq!(D128M48N32W8S2::NAME, "d128_48x32_w8_s2");
        for tiling in TILINGS {
            assert_eq!(
                tiling.name,
                format!(
                    "d{}_{}x{}_w{}_s{}",
                    tiling.head_dim, tiling.block_m, tiling.block_n, tiling.warps, tiling.stages
                )
            );
        }
    }

    #[test]
    fn rows_stay_aligned_and_off_one_bank() {
        for tiling in TILINGS {
            for stride in [tiling.k_stride, tiling.v_stride] {
                assert_eq!(stride * 2 % 16, 0, "{}: 16-byte copies", tiling.name);
                assert_ne!(stride * 2 % 128, 0, "{}: bank conflicts", tiling.name);
            }
        }
    }

    /// A catalog image whose kernel has one of these tilings must have been compiled with the same shape.
    #[test]
    fn the_catalog_agrees() {
        for image in warptile_kernels::catalog() {
            let Some(ours) = TILINGS
                .iter()
                .find(|tiling| image.kernel.ends_with(tiling.name))
            else {
                continue;
            };
            let theirs = image.tiling;
            assert_eq!(
                (
                    ours.block_m,
                    ours.block_n,
                    ours.head_dim,
                    ours.stages,
                    ours.warps
                ),
                (
                    theirs.block_m as usize,
                    theirs.block_n as usize,
                    theirs.head_dim as usize,
                    theirs.stages as usize,
                    theirs.warps as usize
                ),
                "{}",
                image.name
            );
        }
    }
}
