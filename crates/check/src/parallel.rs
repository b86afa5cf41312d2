//! Work on all cores, which may turn out to be one.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Calls `work` with every item, on as many threads as there are cores.
///
/// A system that starts no more threads gets fewer: the calling thread works too, and alone if need be.
pub(crate) fn for_each<I: Send>(
    items: impl ExactSizeIterator<Item = I> + Send,
    work: impl Fn(I) + Sync,
) {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let helpers = (cores - 1).min(items.len().saturating_sub(1));
    let items = Mutex::new(items);
    let drain = || {
        // An iterator whose `next` panicked is not asked again: the panic ends the scope.
        let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some(item) = next() {
            work(item);
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
            let mut counts = vec![0; len];
            for_each(counts.iter_mut(), |count| *count += 1);
            assert!(counts.iter().all(|&count| count == 1));
        }
    }
}
