//! Where the time of cases goes.

use std::time::Instant;

use serde::Serialize;

/// Seconds spent on cases, in the order of what is done, summed over all threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Phases {
    /// Choosing the kernel.
    pub(super) planning: f64,
    /// Making the data.
    pub(super) generating: f64,
    /// Loading the kernel, the first time that it is chosen. The driver compiles PTX here.
    pub(super) loading: f64,
    /// Computing the reference and the bounds; on a GPU, where it is behind the launches, waiting for those, too.
    pub(super) reference: f64,
    /// Copying the data to the GPU, launching, waiting for what is left, and copying the results back.
    pub(super) computing: f64,
    /// Judging the results.
    pub(super) comparing: f64,
}

impl std::ops::AddAssign for Phases {
    fn add_assign(&mut self, other: Self) {
        self.planning += other.planning;
        self.generating += other.generating;
        self.loading += other.loading;
        self.reference += other.reference;
        self.computing += other.computing;
        self.comparing += other.comparing;
    }
}

/// Adds the time of `work` to `seconds`.
pub(super) fn timed<R>(seconds: &mut f64, work: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = work();
    *seconds += start.elapsed().as_secs_f64();
    result
}
