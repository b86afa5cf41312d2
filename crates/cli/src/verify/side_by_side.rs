//! Work on several threads, whose results are taken in the order of the work.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use crate::interrupt;

/// Has the items worked on by a thread for each of the `lanes`, of which there is at least one, and gives the results to
/// `take` in the order of the items, until it returns `false`, something fails, or there are no more items. What is under way by
/// then is finished and dropped, so `take` sees the same regardless of the number of lanes.
///
/// A system that starts no more threads gets fewer; if it starts none, the calling thread works.
///
/// # Errors
/// The first error of `work` or `take`, in the order of the items.
pub(super) fn in_order<I: Send, L: Sync, R: Send, E: Send>(
    lanes: &[L],
    items: impl Iterator<Item = I> + Send,
    work: impl Fn(&L, &I) -> Result<R, E> + Sync,
    mut take: impl FnMut(I, R) -> Result<bool, E>,
) -> Result<(), E> {
    let items = Mutex::new(items.enumerate());
    let stop = AtomicBool::new(false);
    let pull = || match stop.load(Ordering::Relaxed) {
        true => None,
        false => items.lock().unwrap_or_else(PoisonError::into_inner).next(),
    };
    let (send, receive) = mpsc::channel();
    thread::scope(|scope| {
        let mut alone = true;
        for lane in lanes.iter().filter(|_| lanes.len() > 1) {
            let (send, pull, stop, work) = (send.clone(), &pull, &stop, &work);
            let drain = move || {
                let _stop = StopWhenDropped(stop);
                while let Some((index, item)) = pull() {
                    let result = work(lane, &item);
                    let failed = result.is_err();
                    if send.send((index, item, result)).is_err() || failed {
                        break;
                    }
                }
            };
            let drain = || interrupt::stoppable(drain);
            if thread::Builder::new().spawn_scoped(scope, drain).is_err() {
                break;
            }
            alone = false;
        }
        drop(send);
        // However this ends, no thread begins anything more.
        let _stop = StopWhenDropped(&stop);
        if alone {
            while let Some((_, item)) = pull() {
                let result = work(&lanes[0], &item)?;
                if !take(item, result)? {
                    break;
                }
            }
            return Ok(());
        }
        let (mut early, mut next) = (BTreeMap::new(), 0);
        for (index, item, result) in receive {
            early.insert(index, (item, result));
            while let Some((item, result)) = early.remove(&next) {
                next += 1;
                if !take(item, result?)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    })
}

/// A thread that ends, by a panic too, is the last to begin anything: it found no more items, failed, or was told to stop.
struct StopWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::time::Duration;

    const LANES: [&[u8]; 3] = [&[0], &[0, 1], &[0, 1, 2, 3, 4, 5, 6]];

    /// Later items are done earlier.
    fn dawdle(item: u64) {
        thread::sleep(Duration::from_micros(300 * (7 - item % 7)));
    }

    #[test]
    fn results_are_taken_in_order_until_it_is_enough() {
        for (lanes, most) in LANES.iter().flat_map(|lanes| [(lanes, 20), (lanes, 100)]) {
            let mut taken = Vec::new();
            let work = |_: &u8, &item: &u64| {
                dawdle(item);
                Ok::<_, Infallible>(10 * item)
            };
            let Ok(()) = in_order(lanes, 0..50, work, |item, result| {
                assert_eq!(result, 10 * item);
                taken.push(item);
                Ok(taken.len() < most)
            });
            let expected: Vec<u64> = (0..50.min(most as u64)).collect();
            assert_eq!(taken, expected);
        }
    }

    #[test]
    fn endless_work_ends_with_the_first_error_in_order() {
        for lanes in LANES {
            let mut taken = 0;
            let work = |_: &u8, &item: &u64| {
                dawdle(item);
                if item < 23 { Ok(()) } else { Err(item) }
            };
            let ended = in_order(lanes, 0.., work, |_, ()| {
                taken += 1;
                Ok(true)
            });
            assert_eq!((ended, taken), (Err(23), 23));
            let ended = in_order(
                lanes,
                0..,
                |_, _| Ok(()),
                |item: u64, ()| match item {
                    5 => Err("enough"),
                    _ => Ok(true),
                },
            );
            assert_eq!(ended, Err("enough"));
        }
    }

    #[test]
    fn a_panic_ends_endless_work() {
        for lanes in LANES {
            let work = |_: &u8, &item: &u64| match item {
                9 => panic!("on purpose"),
                _ => Ok::<_, Infallible>(()),
            };
            let endless = || in_order(lanes, 0.., work, |_, ()| Ok(true));
            assert!(std::panic::catch_unwind(endless).is_err());
        }
    }
}
