//! Times by the wall clock: the CPU path.

use std::time::Instant;

use warptile::Element;

use super::Effort;
use crate::tensors::Forward;

/// Microseconds of each call.
pub(super) fn wall<T: Element>(
    forward: &Forward<'_, T>,
    effort: Effort,
) -> warptile::Result<Vec<f64>> {
    effort.warm_up(|| forward.run().map(drop))?;
    effort.spend(|| {
        let start = Instant::now();
        let output = forward.run()?;
        let elapsed = start.elapsed();
        drop(output);
        Ok(elapsed.as_secs_f64() * 1e6)
    })
}
