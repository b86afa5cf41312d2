//! The C interface of Warptile. `warptile.h` is made of these sources: what is documented here is what C programmers read.
//!
//! Every exported function checks what it is given, does its work in `error::guarded`, and returns a code.

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "libwarptile is for 64-bit systems: only there the structs of warptile.h have no padding"
);

pub mod error;
mod host;
pub mod machine;
pub mod structs;

pub mod attention_desc;
pub mod forward;

pub mod backward;
pub mod backward_desc;

pub mod explain;

pub mod append;
pub mod append_desc;

pub mod merge;

#[cfg(feature = "distributed")]
pub mod dealt;
#[cfg(feature = "distributed")]
pub mod group;
#[cfg(feature = "distributed")]
mod ranks;
#[cfg(feature = "distributed")]
pub mod sharded;
#[cfg(feature = "distributed")]
pub mod sharded_desc;
