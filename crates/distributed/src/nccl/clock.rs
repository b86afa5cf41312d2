//! Time as bounds measure it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A clock that stands still while the process does, as when its job is suspended: it is looked at all the time otherwise.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The process has stood still between two looks that are further apart.
    longest: Duration,
    /// The last look, and for how long the process has stood still up to then.
    last: Mutex<(Instant, Duration)>,
}

impl Clock {
    pub(crate) fn new(longest: Duration) -> Clock {
        Clock {
            longest,
            last: Mutex::new((Instant::now(), Duration::ZERO)),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, stood_still) = *last;
        let now = Instant::now();
        let gap = now - before;
        let is_long = gap > self.longest;
        let stood_still = stood_still + if is_long { gap } else { Duration::ZERO };
        *last = (now, stood_still);
        now - stood_still
    }
}
