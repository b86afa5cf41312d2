//! Which kernel is to run, where the planner's own choice is not wanted.

use std::fmt;
use std::str::FromStr;

use warptile_kernels::Family;
use warptile_kernels::tiling::{FamilyType, ShippedIn, kernel_name};

use crate::error::{Error, Result};
use crate::spec::Invalid;

/// Which kernel is to run: the same list in the API and on every command line.
///
/// Parses from `best`, a family's name (`wgmma`), a kernel's name (`mma_d64_64x64_w4_s2`), or an image's name
/// (`mma_d64_64x64_w4_s2_f16_compute_80`). An empty name is an error.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[must_use]
pub enum Choice {
    /// The one the planner expects to be fastest.
    #[default]
    Best,
    /// The fastest of a family.
    Family(Family),
    /// The kernel of this name, in the image made for the device.
    Kernel(String),
    /// The image of this name.
    Image(String),
}

impl Choice {
    /// Checks that it allows the computation on the CPU: [`Best`](Self::Best), or the name `cpu`.
    ///
    /// # Errors
    /// [`Error::GpuKernelOnCpu`].
    pub fn check_on_cpu(&self) -> Result<()> {
        match self {
            Choice::Best => Ok(()),
            Choice::Kernel(name) if name == "cpu" => Ok(()),
            other => Err(Error::GpuKernelOnCpu {
                name: other.to_string(),
            }),
        }
    }

    /// The kernel of a family and a tiling.
    ///
    /// ```
    /// use warptile::plan::Choice;
    /// use warptile::kernels::tiling::{D64M32N64W4S2, Wmma};
    ///
    /// assert_eq!(Choice::kernel_of::<Wmma, D64M32N64W4S2>().to_string(), "wmma_d64_32x64_w4_s2");
    /// ```
    pub fn kernel_of<F: FamilyType, T: ShippedIn<F>>() -> Self {
        Choice::Kernel(kernel_name::<F, T>().to_owned())
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Best => f.pad("best"),
            Choice::Family(family) => family.fmt(f),
            Choice::Kernel(name) | Choice::Image(name) => f.pad(name),
        }
    }
}

impl FromStr for Choice {
    type Err = Error;

    /// A name that the catalog does not have becomes a kernel, which planning then rejects with the names most like it.
    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(
                Invalid::presence("kernel", "is empty; it must be a name, or `best`").into(),
            );
        }
        Ok(
            match Family::ALL
                .into_iter()
                .find(|family| family.to_string() == text)
            {
                _ if text == "best" => Choice::Best,
                Some(family) => Choice::Family(family),
                None if warptile_kernels::image(text).is_some() => Choice::Image(text.to_owned()),
                None => Choice::Kernel(text.to_owned()),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_not_empty() {
        let error = "".parse::<Choice>().unwrap_err().to_string();
        assert_eq!(error, "kernel is empty; it must be a name, or `best`");
        assert_eq!("best".parse::<Choice>().unwrap(), Choice::Best);
        let unknown = Choice::Kernel("skalar".to_owned());
        assert_eq!("skalar".parse::<Choice>().unwrap(), unknown);
    }
}
