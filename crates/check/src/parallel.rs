//! Work on all cores, which may turn out to be one.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

use warptile::cpu::Stop;

/// Multiply-adds that are worth a thread: milliseconds, where starting it takes a fraction of one.
const WORK_PER_THREAD: f64 = (1 << 23) as f64;

/// Most items that a thread takes at once.
const MAX_BATCH: usize = 64;

/// Calls `work` with every item, on as many threads as there are cores, or fewer if the items are less than `cost`
/// multiply-adds for each of them: who computes many small problems does so side by side.
///
/// Once the caller's [`Stop`] is requested, the other items are left out.
///
/// A system that starts no more threads gets fewer: the calling thread works too, and alone if need be.
pub fn for_each<I: Send>(
    items: impl ExactSizeIterator<Item = I> + Send,
    cost: f64,
    work: impl Fn(I) + Sync,
) {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let helpers = (cores - 1)
        .min(items.len().saturating_sub(1))
        .min((cost / WORK_PER_THREAD) as usize);
    // A few batches for each thread, so that all of them end at about the same time.
    let batch = (items.len() / (8 * (helpers + 1))).clamp(1, MAX_BATCH);
    let items = Mutex::new(items);
    let stop = Stop::current();
    let drain = || {
        let next = || -> Vec<I> {
            // An iterator whose `next` panicked is not asked again: the panic ends the scope.
            let mut items = items.lock().unwrap_or_else(PoisonError::into_inner);
            items.by_ref().take(batch).collect()
        };
        loop {
            let items = next();
            if items.is_empty() || stop.is_requested() {
                break;
            }
            let wanted = items.into_iter().take_while(|_| !stop.is_requested());
            wanted.for_each(&work);
        }
    };
    thread::scope(|scope| {
        for _ in 0..helpers {
            if thread::Builder::new().spawn_scoped(scope, drain).is_err() {
                break;
            }
        }
        drain();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_once() {
        for len in [0, 1, 2, 1000] {
            for cost in [0.0, 1e9, f64::INFINITY] {
                let mut counts = vec![0; len];
                for_each(counts.iter_mut(), cost, |count| *count += 1);
                assert!(counts.iter().all(|&count| count == 1));
            }
        }
    }
}
