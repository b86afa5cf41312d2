//! Which context is current on a thread: made so around every call, and put back after it.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use warptile_cuda_sys::CUcontext;

use crate::context::Context;
use crate::driver::call;
use crate::error::{DriverError, Result};

thread_local! {
    /// The context that is current as far as this crate has to do with it; null where the driver must be asked.
    static KNOWN: Cell<CUcontext> = const { Cell::new(CUcontext::NULL) };
}

/// While it lives, the context is current on this thread; see [`Context::enter`].
#[must_use = "the context stays current only as long as this lives"]
pub struct Current<'a> {
    context: &'a Context,
    pushed: bool,
    /// The current context is a property of the thread, so the guard must not leave it.
    on_this_thread: PhantomData<*const ()>,
}

impl fmt::Debug for Current<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Current({:?})", self.context)
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.pushed {
            KNOWN.set(CUcontext::NULL);
            let mut popped = CUcontext::NULL;
            // SAFETY: pops what `enter` pushed on this thread.
            let result = unsafe {
                call!(
                    self.context.driver(),
                    "restoring the current context",
                    ctx_pop_current(&mut popped)
                )
            };
            self.context.defer(result);
        }
    }
}

impl Context {
    /// Makes the context current on this thread until the guard is dropped. Every call does so by
    /// itself; a guard around several of them saves the driver the going to and fro.
    ///
    /// # Errors
    /// The driver's error.
    pub fn enter(&self) -> Result<Current<'_>> {
        if KNOWN.get() == self.raw() {
            return Ok(self.current(false));
        }
        let mut current = CUcontext::NULL;
        // SAFETY: `current` outlives the call.
        unsafe {
            call!(
                self,
                "asking for the current context",
                ctx_get_current(&mut current)
            )
        }?;
        let pushed = current != self.raw();
        if pushed {
            // SAFETY: the context is alive: `self` retains it.
            unsafe {
                call!(
                    self,
                    "making the context current",
                    ctx_push_current(self.raw())
                )
            }?;
        }
        Ok(self.current(pushed))
    }

    fn current(&self, pushed: bool) -> Current<'_> {
        if pushed {
            KNOWN.set(CUcontext::NULL);
        }
        Current {
            context: self,
            pushed,
            on_this_thread: PhantomData,
        }
    }

    /// [`Context::enter`] around `work`, in which calls of this crate do not ask again whether the
    /// context is current. If something else in `work` makes another one current and leaves it so,
    /// calls fail for being in the wrong context.
    ///
    /// # Errors
    /// Those of [`Context::enter`] and of `work`.
    pub fn within<T, E: From<DriverError>>(
        &self,
        work: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        /// Also when `work` panics.
        struct Forget;
        impl Drop for Forget {
            fn drop(&mut self) {
                KNOWN.set(CUcontext::NULL);
            }
        }
        let _current = self.enter()?;
        KNOWN.set(self.raw());
        let _forget = Forget;
        work()
    }

    /// [`Context::enter`] for destructors, which must go on: a failure is kept for the next
    /// synchronization, and as it may be that of earlier work, the context is pushed regardless.
    pub(crate) fn enter_to_release(&self) -> Option<Current<'_>> {
        match self.enter() {
            Ok(current) => Some(current),
            Err(error) => {
                self.defer(Err(error));
                // SAFETY: the context is alive: `self` retains it.
                let pushed = unsafe {
                    call!(
                        self,
                        "making the context current",
                        ctx_push_current(self.raw())
                    )
                };
                pushed.ok().map(|()| self.current(true))
            }
        }
    }
}
