//! Maintainer tasks behind `cargo xtask`: fetch the compiler, compile the kernels, pack them for a GPU host, and turn what
//! was measured there into the tables of the documentation.
//!
//! Nothing here depends on `warptile-kernels`: the tool that repairs a broken catalog must build while it is broken. What both need
//! (the ABI, the ELF and record readers) is in `warptile-spec`.

pub mod build_kernels;
pub mod bundle;
pub mod catalog;
pub mod changes;
pub mod code;
pub mod compile;
pub mod debug;
pub mod evolve;
pub mod files;
pub mod folder;
pub mod gates;
pub mod inspect;
pub mod instances;
pub mod manifest;
pub mod nvrtc;
pub mod packs;
pub mod reference;
pub mod report;
pub mod resources;
mod sample;
pub mod sources;
pub mod target;
pub mod toolchain;
mod units;

#[cfg(test)]
#[path = "../../crates/check/src/normal.rs"]
mod normal;
#[path = "../../crates/check/src/trial.rs"]
pub mod trial;
