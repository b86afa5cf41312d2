//! Prebuilt attention kernels (cubin and PTX) and the catalog that describes them.
//!
//! Pure data: nothing here calls CUDA. [`catalog`] lists every embedded image; [`Image::bytes`] unpacks one.
//!
//! Words: a *kernel* is one compiled instance, named `{family}_{tiling}` such as `scalar_d64_32x64_w4_s2`; an *image* is
//! that kernel for one element type and one target, named `{kernel}_{element}_{target}`.

mod image;

pub use image::{ElementType, Family, Image, Resources, Target, Tiling, UnpackError};

include!(concat!(env!("OUT_DIR"), "/catalog.rs"));

/// Every embedded image, ordered by name.
#[must_use]
pub fn catalog() -> &'static [Image] {
    CATALOG
}

/// The image called `name`, if the catalog has it.
#[must_use]
pub fn image(name: &str) -> Option<&'static Image> {
    CATALOG
        .binary_search_by_key(&name, |image| image.name)
        .ok()
        .map(|index| &CATALOG[index])
}
