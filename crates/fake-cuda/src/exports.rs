//! Every function of the driver API's table, exported under its own name.

use std::ffi::{c_char, c_int, c_uint, c_void};

use warptile_cuda_sys::*;

use crate::argument::Argument;
use crate::state::entered;

/// The implementations, by field name of the table.
mod functions {
    pub(super) use crate::capture::*;
    pub(super) use crate::copy::*;
    pub(super) use crate::device::*;
    pub(super) use crate::event::*;
    pub(super) use crate::graph::*;
    pub(super) use crate::memory::*;
    pub(super) use crate::module::*;
    pub(super) use crate::stream::*;
    pub(super) use crate::user_object::*;
}

macro_rules! export {
    ($($kind:ident $($version:literal)? fn $name:ident = $symbol:ident($($argument:ident: $type:ty),* $(,)?);)*) => {$(
        #[doc = concat!("`", stringify!($symbol), "`, as the driver API documents it.")]
        ///
        /// # Safety
        /// As the driver API documents it.
        #[unsafe(no_mangle)]
        pub unsafe extern "system" fn $symbol($($argument: $type),*) -> CUresult {
            // SAFETY: the caller's promise is that of the driver API.
            $(let $argument = unsafe { Argument::take($argument) };)*
            entered(stringify!($symbol), |state| functions::$name(state, $($argument),*))
        }
    )*};
}

driver_api!(export);
