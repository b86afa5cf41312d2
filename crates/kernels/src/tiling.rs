//! Tilings as types, with the constants of the kernels' C++ `Traits` under the same names.
//!
//! A family and a tiling together name a kernel:
//!
//! ```
//! use warptile_kernels::tiling::{D64M32N64W4S2, KernelTiling, PaddedIn, Tiling, Wmma, kernel_name};
//! assert_eq!(kernel_name::<Wmma, D64M32N64W4S2>(), "wmma_d64_32x64_w4_s2");
//! assert_eq!(D64M32N64W4S2::BLOCK_M * D64M32N64W4S2::THREADS, 32 * 128);
//! // Rows of 64 elements, padded by 16 bytes.
//! assert_eq!(<D64M32N64W4S2 as PaddedIn<Wmma, 2>>::K_STRIDE, 72);
//! ```

use warptile_spec::Family;

/// Blocks that attention is computed in, on a GPU or not.
pub trait Tiling {
    /// Query rows of a tile.
    const BLOCK_M: usize;
    /// Keys of a tile.
    const BLOCK_N: usize;
}

/// A tiling that kernels are compiled for.
pub trait KernelTiling: Tiling {
    /// Head size of queries and keys the tile is laid out for; smaller heads are padded with zeros on chip.
    const HEAD_DIM: usize;
    /// Head size of values and the output that the tiles are laid out for.
    const VALUE_DIM: usize;
    /// K/V tiles in flight.
    const STAGES: usize;
    /// Warps of a CTA, producers included.
    const WARPS: usize;
    /// Threads of a CTA.
    const THREADS: usize = 32 * Self::WARPS;
    /// Its part of a kernel's name: `d{HEAD_DIM}_{BLOCK_M}x{BLOCK_N}_w{WARPS}_s{STAGES}`, with `v{VALUE_DIM}` behind the head size
    /// if values have another one.
    const NAME: &'static str;
}

/// A [`Family`] as a type.
pub trait FamilyType {
    /// The family as a value.
    const FAMILY: Family;
}

macro_rules! families {
    ($($(#[doc = $doc:literal])* $name:ident;)*) => {
        $(
            $(#[doc = $doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub enum $name {}

            impl FamilyType for $name {
                const FAMILY: Family = Family::$name;
            }
        )*
    };
}

families! {
    /// [`Family::Scalar`].
    Scalar;
    /// [`Family::Wmma`].
    Wmma;
    /// [`Family::Wgmma`].
    Wgmma;
    /// [`Family::Mma`].
    Mma;
    /// [`Family::Decode`].
    Decode;
    /// [`Family::Dkv`].
    Dkv;
    /// [`Family::Dq`].
    Dq;
    /// [`Family::Dbias`].
    Dbias;
    /// [`Family::Dqkv`].
    Dqkv;
    /// [`Family::Dqsum`].
    Dqsum;
    /// [`Family::Wdkv`].
    Wdkv;
    /// [`Family::Wdq`].
    Wdq;
}

/// A tiling that the catalog has a kernel of in the family `F`.
pub trait ShippedIn<F: FamilyType>: KernelTiling {
    /// `{family}_{tiling}`.
    const KERNEL: &'static str;
}

/// The needs of a CTA of the family `F` for elements of `ELEMENT_BYTES`.
pub trait CompiledIn<F: FamilyType, const ELEMENT_BYTES: usize>: ShippedIn<F> {
    /// Dynamic shared memory of a CTA of the plain images in bytes; variants say what they take in [`Resources`](crate::Resources).
    const SHARED_BYTES: usize;
}

/// The layout of K and V in shared memory in a family that pads their rows.
pub trait PaddedIn<F: FamilyType, const ELEMENT_BYTES: usize>:
    CompiledIn<F, ELEMENT_BYTES>
{
    /// Elements between neighbouring rows of K.
    const K_STRIDE: usize;
    /// Elements between neighbouring rows of V.
    const V_STRIDE: usize;
}

/// Name of the kernel that the family `F` has for the tiling `T`.
pub const fn kernel_name<F: FamilyType, T: ShippedIn<F>>() -> &'static str {
    T::KERNEL
}

macro_rules! tilings {
    ($($type:ident: head_dim $d:literal $(value_dim $v:literal)?, tile $m:literal x $n:literal, warps $w:literal, stages $s:literal;)*) => {
        $(
            #[doc = concat!(
                stringify!($m), " queries and ", stringify!($n), " keys a tile, head size ", stringify!($d), ", ", $(stringify!($v), " of values, ",)?
                stringify!($w), " warps, ", stringify!($s), " stages."
            )]
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub enum $type {}

            impl Tiling for $type {
                const BLOCK_M: usize = $m;
                const BLOCK_N: usize = $n;
            }

            impl KernelTiling for $type {
                const HEAD_DIM: usize = $d;
                const VALUE_DIM: usize = tilings!(@value_dim $d $($v)?);
                const STAGES: usize = $s;
                const WARPS: usize = $w;
                const NAME: &'static str = concat!("d", $d, $("v", $v,)? "_", $m, "x", $n, "_w", $w, "_s", $s);
            }
        )*
    };
    (@value_dim $d:literal) => { $d };
    (@value_dim $d:literal $v:literal) => { $v };
}

macro_rules! kernels {
    ($($family:ident $type:ident $kernel:literal {
        $($bytes:literal: shared $shared:literal $(, k_stride $k:literal, v_stride $v:literal)?;)*
    })*) => {
        $(
            impl ShippedIn<$family> for $type {
                const KERNEL: &'static str = $kernel;
            }

            $(
                impl CompiledIn<$family, $bytes> for $type {
                    const SHARED_BYTES: usize = $shared;
                }

                $(
                    impl PaddedIn<$family, $bytes> for $type {
                        const K_STRIDE: usize = $k;
                        const V_STRIDE: usize = $v;
                    }
                )?
            )*
        )*

        /// The types' numbers as values, which a test compares with the catalog.
        #[cfg(test)]
        const KERNELS: &[(Family, &str, &str, [usize; 7])] = &[$((
            <$family as FamilyType>::FAMILY,
            kernel_name::<$family, $type>(),
            <$type as KernelTiling>::NAME,
            [
                <$type as Tiling>::BLOCK_M,
                <$type as Tiling>::BLOCK_N,
                <$type as KernelTiling>::HEAD_DIM,
                <$type as KernelTiling>::VALUE_DIM,
                <$type as KernelTiling>::STAGES,
                <$type as KernelTiling>::WARPS,
                <$type as KernelTiling>::THREADS,
            ],
        )),*];

        /// Kernel, bytes an element, shared memory, row strides of K and V (0 where rows are not padded).
        #[cfg(test)]
        const COMPILED: &[(&str, usize, usize, [usize; 2])] = &[$($((
            $kernel,
            $bytes,
            <$type as CompiledIn<$family, $bytes>>::SHARED_BYTES,
            kernels!(@strides $family $type $bytes $($k)?),
        ),)*)*];
    };
    (@strides $family:ident $type:ident $bytes:literal $k:literal) => {
        [
            <$type as PaddedIn<$family, $bytes>>::K_STRIDE,
            <$type as PaddedIn<$family, $bytes>>::V_STRIDE,
        ]
    };
    (@strides $family:ident $type:ident $bytes:literal) => { [0, 0] };
}

include!("generated/tilings.rs");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Image, catalog, kernels};

    /// A tiling names the kernel whose tensors have one element type, and says what its plain images take.
    fn has_type(image: &Image) -> bool {
        let plain = format!("{}_{}_{}", image.kernel, image.element, image.target);
        image.tiling.has_tiles() && image.types().scaled().is_none() && image.name == plain
    }

    #[test]
    fn every_shipped_kernel_has_its_type() {
        for kernel in kernels().filter(|kernel| has_type(&kernel.images[0])) {
            let shape = kernel.images[0].tiling;
            let (family, _, name, constants) = KERNELS
                .iter()
                .find(|(_, found, ..)| *found == kernel.name)
                .unwrap_or_else(|| panic!("{} has no type", kernel.name));
            assert_eq!(kernel.name, format!("{family}_{name}"));
            assert_eq!(*family, kernel.images[0].family);
            let [
                block_m,
                block_n,
                head_dim,
                value_dim,
                stages,
                warps,
                threads,
            ] = *constants;
            assert_eq!(
                [block_m, block_n, head_dim, value_dim, stages, warps].map(|value| value as u32),
                [
                    shape.block_m,
                    shape.block_n,
                    shape.head_dim,
                    shape.value_dim,
                    shape.stages,
                    shape.warps
                ],
                "{}",
                kernel.name
            );
            assert_eq!(threads, 32 * warps);
        }
    }

    #[test]
    fn the_layout_of_every_image_is_that_of_its_type() {
        for image in catalog().iter().filter(|image| has_type(image)) {
            let found = COMPILED
                .iter()
                .find(|(kernel, bytes, ..)| {
                    *kernel == image.kernel && *bytes == image.element.size()
                })
                .unwrap_or_else(|| panic!("{} has no type", image.name));
            let (.., shared, strides) = *found;
            assert_eq!(
                shared, image.resources.dynamic_shared_bytes as usize,
                "{}",
                image.name
            );
            let shape = image.tiling;
            assert_eq!(
                strides.map(|stride| stride as u32),
                [shape.k_stride, shape.v_stride],
                "{}",
                image.name
            );
        }
    }

    #[test]
    fn padded_rows_stay_aligned_and_off_one_bank() {
        for &(kernel, element, _, strides) in COMPILED {
            for stride in strides.into_iter().filter(|&stride| stride > 0) {
                assert_eq!(stride * element % 16, 0, "{kernel}: 16-byte copies");
                assert_ne!(stride * element % 128, 0, "{kernel}: bank conflicts");
            }
        }
    }
}
