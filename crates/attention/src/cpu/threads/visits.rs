//! Threads of a pool that help with a call: those that come before its caller is done. Who waited for all of a pool's
//! threads would wait for as long as another call has them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rayon::ThreadPool;

/// Requests that may wait for each thread. Where one call has all threads for long, those of thousands of short ones would.
const MOST_WAITING: usize = 16;

/// Threads, and how many requests wait for one.
#[derive(Debug)]
pub(in crate::cpu) struct Pool {
    pub(in crate::cpu) threads: ThreadPool,
    waiting: AtomicUsize,
}

impl Pool {
    pub(super) const fn new(threads: ThreadPool) -> Self {
        Pool {
            threads,
            waiting: AtomicUsize::new(0),
        }
    }
}

/// Calls `work` here, and `helper` on this many threads of the pool at most. When this returns, `work` and all calls of `helper`
/// have returned, and `helper` is not called again.
///
/// # Panics
/// Whatever `work` or `helper` panics with.
pub(super) fn with_helpers(
    pool: &'static Pool,
    most: usize,
    helper: &(dyn Fn() + Sync),
    work: impl FnOnce(),
) {
    let room = MOST_WAITING * pool.threads.current_num_threads();
    let count = most.min(room.saturating_sub(pool.waiting.load(Ordering::Relaxed)));
    if count == 0 {
        return work();
    }
    let helper = std::ptr::from_ref(helper);
    let door = Arc::new(Door {
        // SAFETY: only the lifetime is another, which a pointer does not promise; see `enter`.
        helper: unsafe { std::mem::transmute::<*const (dyn Fn() + Sync), Helper>(helper) },
        inside: Mutex::default(),
        last_has_left: Condvar::new(),
    });
    pool.waiting.fetch_add(count, Ordering::Relaxed);
    for _ in 0..count {
        let door = door.clone();
        pool.threads.spawn(move || {
            pool.waiting.fetch_sub(1, Ordering::Relaxed);
            door.enter();
        });
    }
    // Closes the door if `work` panics, too.
    let closing = Closing(&door);
    work();
    drop(closing);
    let panic = door.inside().panic.take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

type Helper = *const (dyn Fn() + Sync + 'static);

/// By which threads come to a call.
struct Door {
    helper: Helper,
    inside: Mutex<Inside>,
    last_has_left: Condvar,
}

// SAFETY: what the pointer leads to may be shared by threads, and `enter` says when they do.
unsafe impl Send for Door {}
// SAFETY: as above.
unsafe impl Sync for Door {}

#[derive(Default)]
struct Inside {
    count: usize,
    is_closed: bool,
    panic: Option<Box<dyn Any + Send>>,
}

impl Door {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) {
        let mut inside = self.inside();
        if inside.is_closed {
            return;
        }
        inside.count += 1;
        drop(inside);
        // SAFETY: `with_helpers` has a reference to it as long as it runs, and returns only when the door is closed and no thread is
        // inside.
        let helper = unsafe { &*self.helper };
        let panic = catch_unwind(AssertUnwindSafe(helper)).err();
        let mut inside = self.inside();
        inside.count -= 1;
        inside.panic = inside.panic.take().or(panic);
        if inside.count == 0 {
            self.last_has_left.notify_all();
        }
    }
}

struct Closing<'a>(&'a Door);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut inside = self.0.inside();
        inside.is_closed = true;
        while inside.count > 0 {
            inside = { self.0.last_has_left.wait(inside) }.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
