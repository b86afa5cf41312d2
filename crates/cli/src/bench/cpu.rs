//! Times by the wall clock: the CPU path.

use std::time::Instant;

use warptile::Element;

use super::{Call, WARM_UP};

/// Microseconds of each of `samples` calls.
pub(super) fn wall<T: Element>(call: &Call<T>, samples: usize) -> warptile::Result<Vec<f64>> {
    for _ in 0..WARM_UP {
        call.run()?;
    }
    (0..samples)
        .map(|_| {
            let start = Instant::now();
            let output = call.run()?;
            let elapsed = start.elapsed();
            drop(output);
            Ok(elapsed.as_secs_f64() * 1e6)
        })
        .collect()
}
