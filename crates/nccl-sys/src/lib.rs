//! The part of NCCL that moves bytes between ranks, as one table that is opened at run time.
//!
//! Nothing here links against NCCL. [`load`] returns the table, or a [`LoadError`] that says what was tried; it never panics. Every
//! function of [`NcclApi`] is `unsafe` and takes raw handles.

mod load;
mod table;

pub use load::{LIBRARY_OVERRIDE, LoadError, REQUIRED_VERSION, Version, load, load_from};
pub use table::*;

/// The README's example, tested with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
