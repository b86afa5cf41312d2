//! Looking whether a stream is in a capture, and acting on the answer, without a window in between.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::context::lock;
use crate::error::{DriverError, Result};

/// A context's gate. Whoever looks and then acts goes through it, any number at a time; whoever
/// takes a stream into a capture closes it first.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    inside: usize,
    /// Threads that wait for `inside` to be 0.
    closing: usize,
    closed: bool,
}

thread_local! {
    /// The number of gates that this thread has passed and not left. Without a destructor, so that the destructors of other
    /// thread-locals may drop buffers.
    static PASSED: Cell<usize> = const { Cell::new(0) };
}

impl Gate {
    /// Goes through, waiting while the gate is closed, which is as long as a call of the driver.
    pub(crate) fn pass(&self) -> Pass<'_> {
        let passed = PASSED.get();
        let mut state = lock(&self.state);
        // Nobody is inside of a closed gate. Who closes it goes before those who are inside nowhere,
        // so that they cannot keep it waiting for ever.
        while state.closed || (state.closing != 0 && passed == 0) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.inside += 1;
        PASSED.set(passed + 1);
        Pass {
            gate: self,
            on_this_thread: PhantomData,
        }
    }

    /// Closes the gate once no thread is inside.
    ///
    /// # Errors
    /// [`DriverError::Held`] if this thread is inside and so would wait for itself.
    pub(crate) fn close(&self, operation: &'static str) -> Result<Closed<'_>> {
        if PASSED.get() != 0 {
            return Err(DriverError::Held { operation });
        }
        let mut state = lock(&self.state);
        state.closing += 1;
        while state.inside != 0 || state.closed {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.closing -= 1;
        state.closed = true;
        Ok(Closed { gate: self })
    }
}

/// While it lives, no stream of the context enters a capture by way of this crate.
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    /// Passes are counted by thread.
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        PASSED.set(PASSED.get() - 1);
        let mut state = lock(&self.gate.state);
        state.inside -= 1;
        // Only a thread that closes the gate waits for the last one. A notification without a waiter would still be a
        // system call.
        if state.inside == 0 && state.closing != 0 {
            self.gate.changed.notify_all();
        }
    }
}

/// While it lives, no thread is between looking and acting.
pub(crate) struct Closed<'a> {
    gate: &'a Gate,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        lock(&self.gate.state).closed = false;
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn closing_waits_for_those_inside_and_holds_up_those_outside() {
        let (gate, closed, left) = (
            Gate::default(),
            AtomicBool::new(false),
            AtomicBool::new(false),
        );
        let pass = gate.pass();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let guard = gate.close("testing").unwrap();
                assert!(left.load(Ordering::SeqCst), "closed over someone inside");
                closed.store(true, Ordering::SeqCst);
                std::thread::yield_now();
                closed.store(false, Ordering::SeqCst);
                drop(guard);
            });
            drop(gate.pass());
            left.store(true, Ordering::SeqCst);
            drop(pass);
            for _ in 0..1000 {
                let _pass = gate.pass();
                assert!(!closed.load(Ordering::SeqCst), "went through a closed gate");
            }
        });
    }

    #[test]
    fn a_thread_that_is_inside_is_told_instead_of_waiting_for_itself() {
        let gate = Gate::default();
        let pass = gate.pass();
        assert!(matches!(
            gate.close("testing"),
            Err(DriverError::Held {
                operation: "testing"
            })
        ));
        drop(pass);
        gate.close("testing").unwrap();
    }
}
