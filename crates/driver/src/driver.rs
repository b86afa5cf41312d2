//! The loaded driver: where everything begins.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use warptile_cuda_sys::{CUresult, DriverApi, Version};

use crate::device::Device;
use crate::error::{CudaError, DriverError, Result};

/// Calls a function of the table and turns its code into a [`Result`].
///
/// `$on` is what the call is made for, a [`Driver`], a context or a stream: it knows the table and
/// what else to say in an error. Used inside an `unsafe` block that argues the call is sound.
macro_rules! call {
    ($on:expr, $operation:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let on = $on;
        let code = (on.api().$name)($($argument),*);
        if code == warptile_cuda_sys::CUresult::SUCCESS {
            Ok(())
        } else {
            Err(on.failed(warptile_cuda_sys::SYMBOLS.$name, code, $operation.into()))
        }
    }};
}
pub(crate) use call;

/// The CUDA driver, loaded and initialised. A cheap handle: clones share one table.
#[derive(Clone)]
pub struct Driver {
    api: Arc<DriverApi>,
}

impl Driver {
    /// Loads the system's driver and initialises it.
    ///
    /// # Errors
    /// [`DriverError::Load`] if there is no usable driver (this is the answer on a machine without a GPU),
    /// [`DriverError::NoDevice`] if there is a driver but no device, [`DriverError::Initialise`] if `cuInit` fails otherwise.
    pub fn load() -> Result<Driver> {
        Driver::initialise(warptile_cuda_sys::load()?)
    }

    /// Loads the driver from one particular library: the seam for a test driver.
    ///
    /// # Errors
    /// As [`Driver::load`].
    ///
    /// # Safety
    /// As [`warptile_cuda_sys::load_from`]: `library` is a CUDA driver or a stand-in for one.
    pub unsafe fn load_from(library: impl AsRef<Path>) -> Result<Driver> {
        // SAFETY: the caller's promise is the same.
        let api = unsafe { warptile_cuda_sys::load_from(library) }?;
        Driver::initialise(Arc::new(api))
    }

    fn initialise(api: Arc<DriverApi>) -> Result<Driver> {
        let driver = Driver { api };
        // SAFETY: cuInit takes no pointers and may be called any number of times.
        match unsafe { call!(&driver, "initialising the CUDA driver", init(0)) } {
            Ok(()) => Ok(driver),
            Err(DriverError::Cuda(error)) => Err(match error.code {
                CUresult::ERROR_NO_DEVICE => DriverError::NoDevice,
                CUresult::ERROR_STUB_LIBRARY => {
                    DriverError::Load(warptile_cuda_sys::LoadError::Stub {
                        library: driver.library().to_owned(),
                    })
                }
                _ => DriverError::Initialise(error),
            }),
            Err(error) => Err(error),
        }
    }

    /// The table of driver functions, for what this crate doesn't wrap.
    pub fn api(&self) -> &DriverApi {
        &self.api
    }

    /// The CUDA version the driver supports.
    pub fn version(&self) -> Version {
        self.api.version()
    }

    /// The library the driver was loaded from.
    pub fn library(&self) -> &Path {
        self.api.library()
    }

    /// How many devices this process can see; zero is not an error here.
    ///
    /// # Errors
    /// The error of `cuDeviceGetCount`.
    pub fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        unsafe { call!(self, "counting devices", device_get_count(&mut count)) }?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The device with this ordinal, counted from 0.
    ///
    /// # Errors
    /// [`DriverError::NoDevice`], [`DriverError::NoSuchDevice`], or what the driver reports.
    pub fn device(&self, ordinal: u32) -> Result<Device> {
        let count = self.device_count()?;
        if count == 0 {
            return Err(DriverError::NoDevice);
        }
        if ordinal >= count {
            return Err(DriverError::NoSuchDevice { ordinal, count });
        }
        Device::get(self, ordinal)
    }

    /// All devices this process can see, in the driver's order; perhaps none.
    ///
    /// # Errors
    /// The driver's error.
    pub fn devices(&self) -> Result<Vec<Device>> {
        (0..self.device_count()?)
            .map(|ordinal| Device::get(self, ordinal))
            .collect()
    }

    /// A number that identifies a loaded library: equal for all handles of it, and different from other libraries'
    /// numbers.
    pub(crate) fn identity(&self) -> usize {
        self.api.init as usize
    }

    /// Describes a failed call.
    pub(crate) fn failed(
        &self,
        symbol: &'static str,
        code: CUresult,
        operation: Cow<'static, str>,
    ) -> DriverError {
        DriverError::Cuda(Box::new(self.describe(symbol, code, operation)))
    }

    pub(crate) fn describe(
        &self,
        symbol: &'static str,
        code: CUresult,
        operation: Cow<'static, str>,
    ) -> CudaError {
        let name = self
            .words(self.api.get_error_name, code)
            .or_else(|| code.name().map(str::to_owned))
            .unwrap_or_else(|| format!("error {}", code.0));
        let text = self
            .words(self.api.get_error_string, code)
            .unwrap_or_else(|| "no description".to_owned());
        CudaError {
            operation,
            symbol,
            code,
            name,
            text,
            suspects: Vec::new(),
        }
    }

    /// The text of `cuGetErrorName` or `cuGetErrorString` for a code.
    fn words(
        &self,
        of: unsafe extern "system" fn(CUresult, *mut *const c_char) -> CUresult,
        code: CUresult,
    ) -> Option<String> {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: `text` outlives the call, and both functions accept any code.
        let status = unsafe { of(code, &mut text) };
        if status != CUresult::SUCCESS || text.is_null() {
            return None;
        }
        // SAFETY: on success the driver returns a NUL-terminated string of static lifetime.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_string_lossy().into_owned())
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("library", &self.library())
            .field("version", &self.version())
            .finish()
    }
}
