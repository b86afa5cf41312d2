//! The driver and its kernels.

use warptile::driver::{Driver, DriverError};
use warptile::gpu::Gpu;

/// Warptile's side of a device, in words where there is none.
pub(crate) fn open(driver: Result<Driver, DriverError>, ordinal: usize) -> Result<Gpu, String> {
    let open = || {
        let ordinal = u32::try_from(ordinal).unwrap_or(u32::MAX);
        Gpu::new(&driver?, ordinal)
    };
    open().map_err(|error: warptile::Error| {
        format!("the tensors are on cuda:{ordinal}, but warptile cannot use it: {error}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_the_error_says_so() {
        // SAFETY: there is no such library, so nothing of it runs.
        let driver = unsafe { Driver::load_from("/nowhere/libcuda.so.1") };
        let error = open(driver, 0).map(|_| ()).unwrap_err();
        assert!(
            error.starts_with(
                "the tensors are on cuda:0, but warptile cannot use it: no CUDA driver found"
            ),
            "{error}"
        );
    }
}
