//! Who computes a call, and on which cores.

use std::num::NonZero;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::thread::available_parallelism;

use rayon::ThreadPoolBuilder;

use places::Places;
use visits::Pool;

use super::stop::Stop;
use crate::error::Result;

mod visits;

/// Calls `work` for each number below `count`, on the threads that [`forward_cpu`](super::forward_cpu) would take.
///
/// # Errors
/// [`Error::Stopped`](crate::Error::Stopped) if the caller's [`Stop`] was requested; the remaining numbers are left out then.
pub(crate) fn in_parallel(count: usize, work: impl Fn(usize) + Sync) -> Result<()> {
    let (threads, stop) = (Threads::for_caller(), Stop::current());
    // Some at a time: to draw a number takes about as long as a short row.
    let run = (count / (16 * threads.count())).max(1);
    threads.in_turn(count.div_ceil(run), |index| {
        (index * run..count.min((index + 1) * run))
            .take_while(|_| !stop.is_requested())
            .for_each(&work);
    });
    stop.check()
}

/// Who computes.
pub(super) enum Threads {
    /// The threads of the pool that the caller is one of.
    Callers,
    /// The caller, and those threads of our own that have nothing else to do.
    Own(&'static Pool),
    /// The caller alone: there is one core, or the system starts no threads.
    Caller,
}

impl Threads {
    pub(super) fn for_caller() -> Self {
        match rayon::current_thread_index() {
            Some(_) => Threads::Callers,
            None => helpers().map_or(Threads::Caller, Threads::Own),
        }
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Threads::Callers => rayon::current_num_threads(),
            Threads::Own(pool) => 1 + pool.threads.current_num_threads(),
            Threads::Caller => 1,
        }
    }

    /// Calls `work` for each number below `count`, in their order: who is free takes the next one. The caller works, too: it is awake and
    /// has a core. If it slept instead, the system would wake others while its core is still in use, and leave two of them on another
    /// one for milliseconds.
    pub(super) fn in_turn(&self, count: usize, work: impl Fn(usize) + Sync) {
        self.all_in_turn(count, &work);
    }

    fn all_in_turn(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let draw = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return;
                }
                work(index);
            }
        };
        let others = self.count().min(count).saturating_sub(1);
        match self {
            Threads::Callers => rayon::in_place_scope(|scope| {
                (0..others).for_each(|_| scope.spawn(|_| draw()));
                draw();
            }),
            Threads::Own(pool) => {
                let places = Places::default();
                let helper = || {
                    places.take_another();
                    draw();
                };
                places.take();
                visits::with_helpers(pool, others, &helper, draw);
            }
            Threads::Caller => draw(),
        }
    }
}

/// The threads of one process. Those of the parent do not exist in a child that was forked, so its first call makes others.
struct Helpers {
    process: u32,
    /// `None` where the caller is the only thread there is to be.
    pool: Option<Pool>,
}

static HELPERS: AtomicPtr<Helpers> = AtomicPtr::new(std::ptr::null_mut());

/// Threads of our own, one less than those that compute; `None` if that is none, or the system starts none. Not
/// rayon's global pool, which panics where a thread cannot start, and is of the process that made it. Takes no lock,
/// as another thread may have held it at a fork.
fn helpers() -> Option<&'static Pool> {
    let process = std::process::id();
    let known = HELPERS.load(Ordering::Acquire);
    // SAFETY: what is stored there was leaked, so it is valid for ever.
    if let Some(helpers) = unsafe { known.as_ref() }
        && helpers.process == process
    {
        return helpers.pool.as_ref();
    }
    let name = |index| format!("warptile-{index}");
    let pool = match thread_count() - 1 {
        0 => None,
        // A failure is not remembered: there may be threads the next time.
        count => Some(Pool::new(
            { ThreadPoolBuilder::new().num_threads(count) }
                .thread_name(name)
                .build()
                .ok()?,
        )),
    };
    let made = Box::into_raw(Box::new(Helpers { process, pool }));
    match HELPERS.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
        // The parent's are leaked: dropping them would wake threads that do not exist here.
        // SAFETY: leaked, as above.
        Ok(_) => unsafe { &*made }.pool.as_ref(),
        Err(theirs) => {
            // Another thread of this process was first.
            // SAFETY: `made` came from a box and has not been shared.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: leaked, as above, and not null: another thread has stored it.
            unsafe { &*theirs }.pool.as_ref()
        }
    }
}

/// Threads that compute, where the caller is in no pool: as many as rayon would have.
fn thread_count() -> usize {
    let named = std::env::var("RAYON_NUM_THREADS").ok();
    { named.and_then(|count| count.parse().ok()) }
        .filter(|&count| count > 0)
        .or_else(|| available_parallelism().ok().map(NonZero::get))
        .unwrap_or(1)
}

/// The cores that the threads of a call are on. When a thread wakes up, Linux often does not look for an idle core: it leaves the
/// thread on its last one, or puts it on that of the thread that woke it. A call of a millisecond ends before the thread is moved.
#[cfg(target_os = "linux")]
mod places {
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// A bit for each core that a thread of the call has taken.
    #[derive(Default)]
    pub(super) struct Places([AtomicU64; CpuSet::MAX_CPU / 64]);

    impl Places {
        /// Takes the core that this thread is on. Returns true if it was free.
        pub(super) fn take(&self) -> bool {
            let core = sched_getcpu();
            let bit = 1 << (core % 64);
            // More cores than the system's sets have: nothing is known of them.
            let Some(word) = self.0.get(core / 64) else {
                return true;
            };
            word.fetch_or(bit, Ordering::Relaxed) & bit == 0
        }

        /// Takes the core that this thread is on, or moves to a free one that it may use. The set of cores that it may use stays the same.
        pub(super) fn take_another(&self) {
            if self.take() {
                return;
            }
            let Ok(usable) = sched_getaffinity(None) else {
                return;
            };
            let mut free = usable;
            for core in 0..CpuSet::MAX_CPU {
                if self.0[core / 64].load(Ordering::Relaxed) >> (core % 64) & 1 == 1 {
                    free.unset(core);
                }
            }
            // Refused by a container, say: the thread stays where it is.
            if free.count() > 0 && sched_setaffinity(None, &free).is_ok() {
                self.take();
                // Just gotten from the system, so there is nothing to refuse; and on its core this thread is as well off as before.
                let _ = sched_setaffinity(None, &usable);
            }
        }
    }
}

/// Other systems place threads as they like.
#[cfg(not(target_os = "linux"))]
mod places {
    #[derive(Default)]
    pub(super) struct Places {}

    impl Places {
        pub(super) fn take(&self) -> bool {
            true
        }

        pub(super) fn take_another(&self) {}
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicBool;
    use std::sync::{Barrier, Mutex};
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn numbers(threads: &Threads, count: usize) -> Vec<usize> {
        let seen = Mutex::new(Vec::new());
        threads.in_turn(count, |index| seen.lock().unwrap().push(index));
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        seen
    }

    fn own(threads: usize) -> &'static Pool {
        let threads = ThreadPoolBuilder::new().num_threads(threads);
        Box::leak(Box::new(Pool::new(threads.build().unwrap())))
    }

    #[test]
    fn each_number_comes_once_whoever_computes() {
        let own = own(3);
        for count in [0, 1, 2, 3, 100] {
            let all: Vec<usize> = (0..count).collect();
            assert_eq!(numbers(&Threads::Caller, count), all);
            assert_eq!(numbers(&Threads::Own(own), count), all);
            let in_pool = || numbers(&Threads::Callers, count);
            assert_eq!(own.threads.install(in_pool), all);
            let seen = Mutex::new(Vec::new());
            in_parallel(count, |index| seen.lock().unwrap().push(index)).unwrap();
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            assert_eq!(seen, all);
        }
        assert_eq!(Threads::Own(own).count(), 4);
    }

    #[test]
    fn the_first_calls_of_several_threads_share_one_pool() {
        let pools: Vec<_> = thread::scope(|scope| {
            let first: Vec<_> = (0..8).map(|_| scope.spawn(helpers)).collect();
            first.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let addresses = pools.iter().map(|pool| pool.map(std::ptr::from_ref));
        assert!(
            addresses
                .clone()
                .all(|pool| pool == addresses.clone().next().unwrap())
        );
        assert_eq!(
            pools[0].map_or(1, |pool| 1 + pool.threads.current_num_threads()),
            thread_count()
        );
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let panics = || in_parallel(64, |index| assert_ne!(index, 40));
        assert!(catch_unwind(panics).is_err());
        in_parallel(64, |_| ()).unwrap();
    }

    #[test]
    fn a_panic_of_a_helper_reaches_the_caller_when_all_have_left() {
        let own = Threads::Own(own(2));
        let caller = thread::current().id();
        let (has_come, has_left) = (AtomicBool::new(false), AtomicBool::new(false));
        let panics = AssertUnwindSafe(|| {
            own.in_turn(3, |_| {
                if thread::current().id() == caller {
                    while !has_come.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                    return;
                }
                has_come.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(20));
                has_left.store(true, Ordering::SeqCst);
                panic!("a helper came");
            });
        });
        let panic = catch_unwind(panics).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"a helper came"));
        assert!(has_left.load(Ordering::SeqCst));
        assert_eq!(numbers(&own, 100), (0..100).collect::<Vec<_>>());
    }

    /// Otherwise a short call takes as long as a long one of another thread.
    #[test]
    fn a_call_does_not_wait_for_threads_that_another_call_has() {
        let own = Threads::Own(own(1));
        let (all_busy, is_done) = (Barrier::new(3), Barrier::new(3));
        thread::scope(|scope| {
            scope.spawn(|| {
                own.in_turn(2, |_| {
                    all_busy.wait();
                    is_done.wait();
                });
            });
            all_busy.wait();
            // More than may wait for a thread, too.
            for _ in 0..100 {
                assert_eq!(numbers(&own, 10), (0..10).collect::<Vec<_>>());
            }
            is_done.wait();
        });
        assert_eq!(numbers(&own, 10), (0..10).collect::<Vec<_>>());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn who_finds_its_core_taken_goes_to_another_and_may_use_all_again() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

        let usable = sched_getaffinity(None).unwrap();
        if usable.count() < 2 {
            // One core: whoever computes stays on it.
            let places = Places::default();
            assert!(places.take());
            places.take_another();
            assert!(!places.take());
            return;
        }
        let here = sched_getcpu();
        let mut only = CpuSet::new();
        only.set(here);
        sched_setaffinity(None, &only).unwrap();
        let places = Places::default();
        assert!(places.take());
        // This thread may use one core: there is none to go to.
        places.take_another();
        assert_eq!(sched_getcpu(), here);
        sched_setaffinity(None, &usable).unwrap();
        let places = Places::default();
        sched_setaffinity(None, &only).unwrap();
        assert!(places.take());
        sched_setaffinity(None, &usable).unwrap();
        if sched_getcpu() == here {
            places.take_another();
            assert_ne!(sched_getcpu(), here);
        }
        assert_eq!(sched_getaffinity(None).unwrap(), usable);
    }
}
