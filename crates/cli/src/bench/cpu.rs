//! Times by the wall clock: the CPU path.

use std::time::Instant;

use warptile::Element;

use super::{Effort, Forward, WARM_UP};
use crate::interrupt;

/// Microseconds of each call.
pub(super) fn wall<T: Element>(
    forward: &Forward<'_, T>,
    effort: Effort,
) -> warptile::Result<Vec<f64>> {
    for _ in 0..WARM_UP {
        if interrupt::requested() {
            return Ok(Vec::new());
        }
        forward.run()?;
    }
    effort.spend(|| {
        let start = Instant::now();
        let output = forward.run()?;
        let elapsed = start.elapsed();
        drop(output);
        Ok(elapsed.as_secs_f64() * 1e6)
    })
}
