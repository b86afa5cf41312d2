//! Checks attention kernels: problems, random data, a float64 reference, and the acceptance rule.
//!
//! warptile's own tests and `warptile verify` use this crate; it is published because the program needs it, and for those
//! who write a kernel or an adapter of their own.
//!
//! - A [`Case`] is a problem without data, small enough to print on a line and to parse back. Its data follows from its seed.
//! - [`Case::inputs`] and [`Case::result`] make the buffers. Everything that a kernel must not touch is poisoned: inputs have
//!   NaN in every gap, margin and unused row, outputs are NaN before the run and must still be exactly that outside the rows
//!   they hold.
//! - [`Case::check`] compares a result with an [`Expectation`]: the float64 reference, with the acceptance rule.
//! - [`ReferenceOnGpu`] computes the same expectation on a GPU, for large problems.
//! - [`Case::shrink`] makes a failing case smaller.
//! - [`trial`] says when a measurement may change a choice.
//! - [`Tile`] reads the scores and weights of one tile of a kernel one by one, and says which is wrong.
//!
//! ```
//! use warptile::cpu::forward_cpu;
//! use warptile_check::Case;
//!
//! let case: Case = "b2 q5 k7 h4/2 d16 f32 mask=causal seed=1".parse()?;
//! let call = case.call();
//! let inputs = case.inputs::<f32>();
//! let mut result = case.result::<f32>();
//! forward_cpu(&call, &inputs.host(), result.host())?;
//! let report = case.check(&inputs, &result)?;
//! assert!(report.out.passed && report.lse.passed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod accept;
mod backward;
mod case;
mod compiled;
mod data;
mod device;
mod error;
mod ferry;
mod gpu;
mod normal;
mod on_gpu;
pub mod parallel;
mod reference;
mod rounding;
mod text;
mod tile;
pub mod trial;

pub use accept::{Expectation, GradientExpectation, LSE_TOLERANCE, Verdict, Worst, differences};
pub use backward::{BackwardCase, GradientBuffers};
pub use case::{Case, LayoutKind, Lengths, Lists, Used};
pub use data::{Buffer, Data, Failure, Inputs, Report, ResultBuffers, quantize};
pub use device::{DeviceInputs, Place, values_behind_keys};
pub use error::{Error, Result};
pub use ferry::{Coming, Ferry};
pub use gpu::{ComingResult, OnGpu, rest};
pub use on_gpu::ReferenceOnGpu;
pub use reference::{ReferenceOutput, reference};
pub use text::ParseCaseError;
pub use tile::{Reading, Tile, TileFault, TileQuantity, TileReport, TileValue};

/// A file of the repository, for tests: below `WARPTILE_ROOT` if that is set (a bundle run away from the sources), else
/// below the sources this crate was built from.
pub fn repository_file(path: &str) -> std::path::PathBuf {
    std::env::var_os("WARPTILE_ROOT")
        .map_or_else(
            || concat!(env!("CARGO_MANIFEST_DIR"), "/../..").into(),
            std::path::PathBuf::from,
        )
        .join(path)
}

/// Query and key lengths at which kernels of other libraries failed.
pub const AWKWARD_LENGTHS: [(usize, usize); 14] = [
    (1, 1),
    (1, 339),
    (3, 799),
    (16, 20_000),
    (108, 256),
    (113, 203),
    (128, 217),
    (239, 1),
    (640, 128),
    (799, 3),
    (1023, 1024),
    (1024, 1023),
    (2048, 3577),
    (4224, 4224),
];

/// Head sizes that fill tiles, leave them ragged, or are between two of them.
pub const AWKWARD_HEAD_DIMS: [usize; 10] = [8, 40, 64, 96, 104, 128, 160, 192, 224, 256];

/// The README's examples, tested with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
