//! The CUDA driver API as one table, opened at run time.
//!
//! Nothing here links against CUDA: the crate builds on any machine, with or without a GPU, and
//! finds out at run time whether there is a driver. [`load`] answers with the table of functions or
//! with a [`LoadError`] that says what was tried and what to do; it never panics.
//!
//! ```no_run
//! use warptile_cuda_sys::{CUresult, load};
//!
//! let cuda = load()?;
//! let mut count = 0;
//! // SAFETY: `count` outlives the call, and `cuInit` comes first.
//! let status = unsafe {
//!     (cuda.init)(0);
//!     (cuda.device_get_count)(&mut count)
//! };
//! println!("{count} devices ({status:?}), driver API {}", cuda.version());
//! assert_eq!(status, CUresult::SUCCESS);
//! # Ok::<(), warptile_cuda_sys::LoadError>(())
//! ```
//!
//! # What is where
//! - [`DriverApi`]: the functions, one field each, written down once in [`driver_api!`].
//!   A function that an accepted driver may lack is an [`Option`].
//! - [`load`], [`load_from`]: finding the library; the second takes a path, which is how a test
//!   puts its own driver in place.
//! - The types are transparent integers and opaque handles: a value this crate has no name for,
//!   say an error code of a newer driver, is legal everywhere.
//!
//! The crate is as thin as it can be: every function is `unsafe` and takes raw handles. Ownership,
//! checked launches and readable errors are `warptile-driver`'s.

mod error;
mod load;
mod results;
mod table;
mod types;

pub use error::{Attempt, LoadError};
pub use load::{LIBRARY_OVERRIDE, REQUIRED_VERSION, Version, load, load_from, open};
pub use results::CUresult;
pub use table::{DriverApi, SYMBOLS, Symbols};
pub use types::*;

/// The README's examples, tested with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
