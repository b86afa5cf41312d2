//! Loaded modules.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::{Arc, Mutex};

use warptile_cuda_sys::{CUdeviceptr, CUfunction, CUjitOption, CUmodule, SYMBOLS};

use crate::capture::Owner;
use crate::context::{Context, Retired};
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::image;

/// Bytes set aside for each of the driver's compiler logs.
const LOG_BYTES: usize = 8 << 10;

/// Kernels and variables loaded into a context. A cheap handle. When the last clone and the last
/// [`Kernel`](crate::Kernel) of it are gone, it is given up without waiting, as its kernels may still
/// run and others may have captures under way; it is unloaded by the next [`Context::synchronize`],
/// or with the context. An owned stream that such a kernel was launched on, idle, three times keeps
/// the module among the last eight of its kind.
#[derive(Clone)]
pub struct Module {
    inner: Arc<Loaded>,
}

/// A loaded module.
pub(crate) struct Loaded {
    context: Context,
    raw: CUmodule,
    log: String,
    /// The dynamic shared memory that the driver was told to allow, by the address of the function's handle.
    pub(crate) shared_bytes: Mutex<HashMap<usize, u32>>,
}

impl Module {
    /// Loads a cubin, a fat binary, or PTX, which the driver then compiles.
    ///
    /// # Errors
    /// [`DriverError::BadImage`] for bytes that are cut off or no image at all;
    /// [`DriverError::Module`] with the driver's log if it refuses the image, for example because
    /// it is for another GPU.
    pub fn load(context: &Context, image: &[u8]) -> Result<Module> {
        let image = image::bounded(image)?;
        let _current = context.enter()?;
        let mut errors = vec![0_u8; LOG_BYTES];
        let mut infos = vec![0_u8; LOG_BYTES];
        let mut options = [
            CUjitOption::ERROR_LOG_BUFFER,
            CUjitOption::ERROR_LOG_BUFFER_SIZE_BYTES,
            CUjitOption::INFO_LOG_BUFFER,
            CUjitOption::INFO_LOG_BUFFER_SIZE_BYTES,
        ];
        // A number is passed in the place of a pointer; that is how the driver wants it.
        let size: *mut c_void = std::ptr::without_provenance_mut(LOG_BYTES);
        let mut values = [
            errors.as_mut_ptr().cast(),
            size,
            infos.as_mut_ptr().cast(),
            size,
        ];
        let mut raw = CUmodule::NULL;
        // SAFETY: the context is current; `image` holds all the bytes its own headers speak of;
        // the options, their values and the log buffers, of the sizes given, outlive the call.
        let code = unsafe {
            (context.api().module_load_data_ex)(
                &mut raw,
                image.as_ptr().cast(),
                4,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if code == warptile_cuda_sys::CUresult::SUCCESS {
            return Ok(Module {
                inner: Arc::new(Loaded {
                    context: context.clone(),
                    raw,
                    log: text_of(&infos),
                    shared_bytes: Mutex::default(),
                }),
            });
        }
        let operation = "loading a module".into();
        match context.failed(SYMBOLS.module_load_data_ex, code, operation) {
            DriverError::Cuda(source) => Err(DriverError::Module {
                source,
                log: text_of(&errors),
            }),
            other => Err(other),
        }
    }

    /// The context the module is loaded into.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The driver's handle, valid while this module lives.
    pub fn raw(&self) -> CUmodule {
        self.inner.raw
    }

    /// The log of the driver's compiler for a PTX; usually empty.
    pub fn log(&self) -> &str {
        &self.inner.log
    }

    /// Address and size in bytes of a global variable.
    ///
    /// # Errors
    /// The driver's error; not found if no such variable exists.
    pub fn global(&self, name: &str) -> Result<(CUdeviceptr, usize)> {
        let name_c = c_name(name)?;
        let _current = self.context().enter()?;
        let (mut pointer, mut bytes) = (0, 0);
        // SAFETY: all outlive the call; the module is live and its context current.
        unsafe {
            call!(
                self.context(),
                format!("looking up the variable {name}"),
                module_get_global(&mut pointer, &mut bytes, self.raw(), name_c.as_ptr())
            )
        }?;
        Ok((pointer, bytes))
    }

    /// The loaded module; a clone keeps it loaded.
    pub(crate) fn loaded(&self) -> &Arc<Loaded> {
        &self.inner
    }

    /// The owner that keeps the module loaded.
    pub(crate) fn owner(&self) -> Owner {
        self.inner.clone()
    }

    pub(crate) fn function(&self, entry: &str) -> Result<CUfunction> {
        let entry_c = c_name(entry)?;
        let _current = self.context().enter()?;
        let mut function = CUfunction::NULL;
        // SAFETY: all outlive the call; the module is live and its context current.
        unsafe {
            call!(
                self.context(),
                format!("looking up the kernel {entry}"),
                module_get_function(&mut function, self.raw(), entry_c.as_ptr())
            )
        }?;
        Ok(function)
    }
}

fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| DriverError::BadName {
        name: name.to_owned(),
    })
}

/// The log up to its first NUL.
fn text_of(log: &[u8]) -> String {
    let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim().to_owned()
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:?})", self.raw().0)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.context.retire(Retired::Module(self.raw));
    }
}
