//! Maintainer tasks behind `cargo xtask`: fetch the compiler, compile the kernels, pack them for a GPU host, and turn what
//! was measured there into the tables of the documentation.
//!
//! Nothing here depends on `warptile-kernels`: the tool that repairs a broken catalog must build while it is broken. The
//! files both need (the ABI, the ELF and record readers) are compiled into both.

pub mod build_kernels;
pub mod bundle;
pub mod catalog;
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

#[path = "../../crates/attention/src/spec/heads.rs"]
pub mod heads;

#[path = "../../crates/kernels/src/abi.rs"]
pub mod abi;
#[path = "../../crates/kernels/src/capability.rs"]
pub mod capability;
#[path = "../../crates/kernels/src/elf.rs"]
pub mod elf;
#[path = "../../crates/kernels/src/operand.rs"]
pub mod operand;
#[path = "../../crates/kernels/src/record.rs"]
pub mod record;
#[path = "../../crates/kernels/src/shape.rs"]
pub mod shape;
#[path = "../../crates/kernels/src/table.rs"]
pub mod table;
