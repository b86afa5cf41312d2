//! Prebuilt attention kernels (cubin and PTX) and the catalog that describes them.
//!
//! Pure data: nothing here calls CUDA. [`catalog`] lists every embedded image; [`Image::bytes`] unpacks one.
//!
//! Words: a *kernel* is one compiled instance, named `{family}_{tiling}` such as `scalar_d64_32x64_w4_s2`
//! (`{family}_w{warps}` if it has no tiles); an *image* is that kernel for one element type and one target, named
//! `{kernel}_{element}_{target}`.
//!
//! # Cargo features
//! One for each architecture, all on by default. Each brings the crate that the images lie in, `warptile-images-sm80` for `sm_80`.
//! Without one, its images are in neither the catalog nor the program:
//!
//! | feature | images | GPUs |
//! |---|---|---|
//! | `sm_80` | `sm_80` | compute capability 8.x |
//! | `sm_90` | `sm_90`, `sm_90a` | 9.0 |
//! | `sm_100` | `sm_100` | 10.x |
//! | `sm_120` | `sm_120` | 12.x |
//! | `ptx` | `compute_80`, `compute_89` | any other from 8.0 on: the driver compiles |

mod external;
#[rustfmt::skip]
#[path = "generated/catalog.rs"]
mod generated;
mod image;
pub mod tiling;

pub use external::{External, ExternalError};
pub use image::{Image, Resources, Target, UnknownTarget, UnpackError};

pub use warptile_spec::{
    Count, ElementType, Elements, Excerpt, Family, Features, Kind, Operand, Operations, Role,
    Schedule, Slots, TileShape, Types, Values, abi, elf, record,
};

use generated::{CATALOG, PACKS};

/// Every embedded image, ordered by name.
pub fn catalog() -> &'static [Image] {
    CATALOG
}

/// The images for one step of a computation, ordered by name.
pub fn images_for(role: Role) -> impl Iterator<Item = &'static Image> + Clone {
    CATALOG.iter().filter(move |image| image.role == role)
}

/// The packs that hold the images, as embedded: their lengths are what the catalog adds to a program.
pub fn packs() -> impl Iterator<Item = &'static [u8]> {
    PACKS.iter().copied()
}

/// The image called `name`, if the catalog has it.
pub fn image(name: &str) -> Option<&'static Image> {
    CATALOG
        .binary_search_by_key(&name, |image| image.name)
        .ok()
        .map(|index| &CATALOG[index])
}

/// The images of one kernel: its element types and targets.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Kernel {
    /// `{family}_{tiling}`.
    pub name: &'static str,
    /// Images of the kernel, ordered by name; never empty.
    pub images: &'static [Image],
}

/// Every kernel of the catalog with its images, ordered by name.
pub fn kernels() -> impl Iterator<Item = Kernel> {
    // Image names start with the kernel's, but a kernel's name may be a prefix of another's: group by the field.
    catalog()
        .chunk_by(|a, b| a.kernel == b.kernel)
        .map(|images| Kernel {
            name: images[0].kernel,
            images,
        })
}

/// The README's examples, tested with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
