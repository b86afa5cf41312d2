//! Times by the wall clock: the CPU path.

use std::time::Instant;

use super::Effort;

/// Microseconds of each call.
pub(super) fn wall<A>(
    call: impl Fn() -> warptile::Result<A>,
    effort: Effort,
) -> warptile::Result<Vec<f64>> {
    effort.warm_up(|| call().map(drop))?;
    effort.spend(|| {
        let start = Instant::now();
        let answer = call()?;
        let elapsed = start.elapsed();
        drop(answer);
        Ok(elapsed.as_secs_f64() * 1e6)
    })
}
