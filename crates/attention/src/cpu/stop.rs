//! Ending work on the CPU from outside.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

thread_local! {
    static CURRENT: RefCell<Stop> = RefCell::default();
}

/// A flag that ends a call on the CPU early, with [`Error::Stopped`]: attention, its gradients, cache writes and merges. Clones are the
/// same flag.
///
/// Each thread of a call looks at the flag before each tile or row, so the call ends within milliseconds. Its outputs then hold partial
/// results. A GPU is not affected.
///
/// ```
/// use warptile::cpu::Stop;
/// use warptile::{Attention, Backend, Error};
///
/// let stop = Stop::default();
/// let from_outside = stop.clone();
/// // On Ctrl-C, or when a request is cancelled, another thread calls this:
/// from_outside.request();
///
/// let q = Backend::cpu().tensor(&[1.0_f32; 64], [1, 1, 1, 64])?;
/// let result = stop.during(|| Attention::new().forward(&q, (&q, &q)));
/// assert!(matches!(result, Err(Error::Stopped)));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the calls that run under this flag, and those that would begin.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if somebody has requested the end.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails with [`Error::Stopped`] if the end was requested.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn check(&self) -> Result<()> {
        match self.is_requested() {
            true => Err(Error::Stopped),
            false => Ok(()),
        }
    }

    /// Runs `work`. Calls that this thread makes in it, including those that rayon runs on it meanwhile, obey this flag and no other.
    pub fn during<R>(&self, work: impl FnOnce() -> R) -> R {
        struct Before(Stop);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(std::mem::take(&mut self.0));
            }
        }
        let _before = Before(CURRENT.replace(self.clone()));
        work()
    }

    /// The flag that calls of this thread obey. Outside of [`during`](Stop::during) it is never set.
    #[must_use]
    pub fn current() -> Self {
        CURRENT.with_borrow(Stop::clone)
    }
}

#[cfg(test)]
mod tests {
    use warptile_kernels::Operand;

    use super::*;
    use crate::cpu::append_cpu;
    use crate::ops::merge;
    use crate::spec::{Append, ElementType, HostInputs, HostOutputs, Layout, LseBase};
    use crate::{Attention, Backend};

    #[test]
    fn a_merge_obeys_the_flag() {
        let stop = Stop::default();
        let q = Backend::cpu()
            .tensor(&[1.0_f32; 64], [1, 1, 1, 64])
            .unwrap();
        let result = Attention::new().forward(&q, (&q, &q)).unwrap();
        let part = (&result.out, result.lse.as_ref().unwrap());
        let merged = || merge(&[part, part], LseBase::Natural);
        assert!(stop.during(merged).is_ok());
        stop.request();
        assert!(matches!(stop.during(merged), Err(Error::Stopped)));
        assert!(merged().is_ok());
    }
    #[test]
    fn a_cache_write_obeys_the_flag() {
        let (row, pages) = (Layout::bshd([1, 1, 1, 8]), Layout::bshd([1, 4, 1, 8]));
        let append = Append::builder(ElementType::F32, [&row, &row], [&pages, &pages]);
        let append = append.slots(&[0]).build().unwrap();
        let new = [1.0_f32; 8];
        let inputs = { HostInputs::default().with(Operand::K, &new) }.with(Operand::V, &new);
        let mut cache = [0.0_f32; 64];
        let mut write = || append_cpu(&append, &inputs, HostOutputs::cache_in_one(&mut cache, 32));
        let stop = Stop::default();
        stop.request();
        assert!(matches!(stop.during(&mut write), Err(Error::Stopped)));
        write().unwrap();
        assert_eq!(cache[0], 1.0);
    }
}
