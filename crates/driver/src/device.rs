//! Devices and what can be known of them without a context.

use std::ffi::{CStr, c_int};
use std::fmt;

use warptile_cuda_sys::{CUdevice, CUdeviceAttribute, CUuuid};

use crate::driver::{Driver, call};
use crate::error::Result;

/// A GPU. A cheap handle.
#[derive(Clone)]
pub struct Device {
    driver: Driver,
    ordinal: u32,
    raw: CUdevice,
}

impl Device {
    pub(crate) fn get(driver: &Driver, ordinal: u32) -> Result<Device> {
        let mut raw = 0;
        let index = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: `raw` outlives the call; an ordinal out of range is an error code.
        unsafe { call!(driver, "opening a device", device_get(&mut raw, index)) }?;
        Ok(Device {
            driver: driver.clone(),
            ordinal,
            raw,
        })
    }

    /// The driver the device belongs to.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Its place in the driver's order, counted from 0.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The driver's handle.
    pub fn raw(&self) -> CUdevice {
        self.raw
    }

    /// The product name, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn name(&self) -> Result<String> {
        let mut text = [0_u8; 256];
        // SAFETY: the buffer outlives the call and has the length that is passed.
        unsafe {
            call!(
                &self.driver,
                "reading the device's name",
                device_get_name(text.as_mut_ptr().cast(), 256, self.raw)
            )
        }?;
        Ok(string_from(&text))
    }

    /// The identity that is the same in every process.
    ///
    /// # Errors
    /// The driver's error.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = CUuuid::default();
        // SAFETY: `uuid` outlives the call.
        unsafe {
            call!(
                &self.driver,
                "reading the device's UUID",
                device_get_uuid(&mut uuid, self.raw)
            )
        }?;
        Ok(uuid.bytes)
    }

    /// The PCI address, such as `0000:65:00.0`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn pci_bus_id(&self) -> Result<String> {
        let mut text = [0_u8; 32];
        // SAFETY: the buffer outlives the call and has the length that is passed.
        unsafe {
            call!(
                &self.driver,
                "reading the device's PCI address",
                device_get_pci_bus_id(text.as_mut_ptr().cast(), 32, self.raw)
            )
        }?;
        Ok(string_from(&text))
    }

    /// Device memory in bytes, used or not.
    ///
    /// # Errors
    /// The driver's error.
    pub fn total_memory(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: `bytes` outlives the call.
        unsafe {
            call!(
                &self.driver,
                "reading the device's memory size",
                device_total_mem(&mut bytes, self.raw)
            )
        }?;
        Ok(bytes)
    }

    /// One attribute, by its name: `device.attribute(DeviceAttribute::MULTIPROCESSOR_COUNT)`.
    ///
    /// # Errors
    /// The driver's error: an attribute newer than the driver is an invalid value.
    pub fn attribute(&self, attribute: CUdeviceAttribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: `value` outlives the call; an unknown attribute is an error code.
        unsafe {
            call!(
                &self.driver,
                format!("reading {attribute:?}"),
                device_get_attribute(&mut value, attribute, self.raw)
            )
        }?;
        Ok(value)
    }

    /// An attribute that counts something, so is never negative.
    pub(crate) fn count_of(&self, attribute: CUdeviceAttribute) -> Result<u32> {
        Ok(u32::try_from(self.attribute(attribute)?).unwrap_or(0))
    }

    /// Returns true if an attribute that answers yes or no says yes. A driver too old to know it says no.
    pub(crate) fn has(&self, attribute: CUdeviceAttribute) -> Result<bool> {
        match self.attribute(attribute) {
            Ok(value) => Ok(value != 0),
            Err(error)
                if error.code() == Some(warptile_cuda_sys::CUresult::ERROR_INVALID_VALUE) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Compute capability, major and minor: `(9, 0)` for Hopper.
    ///
    /// # Errors
    /// The driver's error.
    pub fn compute_capability(&self) -> Result<(u32, u32)> {
        Ok((
            self.count_of(CUdeviceAttribute::COMPUTE_CAPABILITY_MAJOR)?,
            self.count_of(CUdeviceAttribute::COMPUTE_CAPABILITY_MINOR)?,
        ))
    }

    /// How many streaming multiprocessors the device has.
    ///
    /// # Errors
    /// The driver's error.
    pub fn multiprocessors(&self) -> Result<u32> {
        self.count_of(CUdeviceAttribute::MULTIPROCESSOR_COUNT)
    }

    /// Most shared memory a block can have, in bytes, static and dynamic together.
    ///
    /// # Errors
    /// The driver's error.
    pub fn max_shared_bytes_per_block(&self) -> Result<u32> {
        self.count_of(CUdeviceAttribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    }

    /// Returns true if kernels on this device can read `other`'s memory once peer access is enabled.
    ///
    /// # Errors
    /// The driver's error.
    pub fn can_access_peer(&self, other: &Device) -> Result<bool> {
        let mut can = 0;
        // SAFETY: `can` outlives the call.
        unsafe {
            call!(
                &self.driver,
                "asking for peer access",
                device_can_access_peer(&mut can, self.raw, other.raw)
            )
        }?;
        Ok(can != 0)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.ordinal)
    }
}

/// The text up to the first NUL, or all of it.
fn string_from(bytes: &[u8]) -> String {
    match CStr::from_bytes_until_nul(bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}
