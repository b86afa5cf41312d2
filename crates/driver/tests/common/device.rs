//! The GPU that tests run on.

use warptile_driver::{Context, Driver};

pub(crate) fn first_context() -> Context {
    let driver = Driver::load().unwrap();
    Context::new(&driver.device(0).unwrap()).unwrap()
}
