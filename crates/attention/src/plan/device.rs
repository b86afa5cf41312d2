//! The facts about a device that the planner needs; a plain record, so that planning can be tested without a device.

use warptile_driver::{Device, DeviceAttribute as Attribute};

use crate::error::{Error, Result};

/// The limits of a GPU that decide which kernel runs and how fast.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct DeviceProfile {
    /// Marketing name, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability, major.
    pub major: u32,
    /// Compute capability, minor.
    pub minor: u32,
    /// Streaming multiprocessors, at most [`MAX_MULTIPROCESSORS`](Self::MAX_MULTIPROCESSORS).
    pub multiprocessors: u32,
    /// Most dynamic shared memory a CTA may ask for, in bytes.
    pub shared_bytes_per_cta: u32,
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_bytes_per_multiprocessor: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Threads a multiprocessor keeps resident.
    pub threads_per_multiprocessor: u32,
}

impl DeviceProfile {
    /// The most multiprocessors that are planned for, ten times as many as any GPU has. With these the numbers that CTAs draw tiles by fit
    /// 32 bits.
    pub const MAX_MULTIPROCESSORS: u32 = 2048;

    /// # Errors
    /// [`Error::Profile`] if a limit is beyond what is planned for.
    pub(crate) fn check(&self) -> Result<()> {
        match self.multiprocessors {
            0..=Self::MAX_MULTIPROCESSORS => Ok(()),
            found => Err(Error::Profile {
                limit: "multiprocessors",
                found,
                most: Self::MAX_MULTIPROCESSORS,
            }),
        }
    }

    /// Reads the limits of `device`.
    ///
    /// # Errors
    /// When the driver refuses an attribute.
    pub fn of(device: &Device) -> Result<Self> {
        let read = |attribute| -> Result<u32> {
            Ok(u32::try_from(device.attribute(attribute)?).unwrap_or(0))
        };
        Ok(DeviceProfile {
            name: device.name()?,
            major: read(Attribute::COMPUTE_CAPABILITY_MAJOR)?,
            minor: read(Attribute::COMPUTE_CAPABILITY_MINOR)?,
            multiprocessors: read(Attribute::MULTIPROCESSOR_COUNT)?,
            shared_bytes_per_cta: read(Attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            shared_bytes_per_multiprocessor: read(Attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            registers_per_multiprocessor: read(Attribute::MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            threads_per_multiprocessor: read(Attribute::MAX_THREADS_PER_MULTIPROCESSOR)?,
        })
    }

    /// Changes the number of multiprocessors: on few of them small problems take the paths of large ones.
    pub fn with_multiprocessors(mut self, multiprocessors: u32) -> Self {
        self.multiprocessors = multiprocessors;
        self
    }

    /// The H200's limits: the device that most measured figures of this project come from, and the one planner tests use.
    pub fn h200() -> Self {
        DeviceProfile {
            name: "NVIDIA H200".to_owned(),
            major: 9,
            minor: 0,
            multiprocessors: 132,
            shared_bytes_per_cta: 232_448,
            shared_bytes_per_multiprocessor: 233_472,
            registers_per_multiprocessor: 65_536,
            threads_per_multiprocessor: 2_048,
        }
    }
}
