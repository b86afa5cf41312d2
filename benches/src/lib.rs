//! Code that the Criterion benchmarks share. `cargo bench --package warptile-benches --features criterion` runs them; those that
//! need a GPU say so and end where there is none.
//!
//! They answer questions about this code base over time (has planning become slower?). What the README compares with other
//! libraries is measured by `warptile bench` and benches/peers instead.

use warptile::Backend;
use warptile_check::Case;

/// Element type of the GPU benchmarks.
pub type Half = half::f16;

/// The first GPU's backend, or `None` after saying why there is none.
pub fn gpu_backend() -> Option<Backend> {
    match Backend::cuda(0) {
        Ok(backend) => Some(backend),
        Err(error) => {
            eprintln!("not measured, for want of a GPU: {error}");
            None
        }
    }
}

/// A case written down in a benchmark.
///
/// # Panics
/// If the text is no case.
pub fn case(text: &str) -> Case {
    match text.parse() {
        Ok(case) => case,
        Err(error) => panic!("{text}: {error}"),
    }
}
