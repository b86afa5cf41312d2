//! Looking whether a stream is in a capture, and acting on the answer, without a window in between.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::context::lock;
use crate::error::{DriverError, Result};

/// A context's gate. Whoever looks and then acts goes through it, any number at a time; whoever
/// takes a stream into a capture or ends one closes it first.
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
        Gate::close_all(vec![self], operation)
    }

    /// Closes gates, all at one moment: who is inside of one of them may still go through another.
    ///
    /// # Errors
    /// [`DriverError::Held`] if this thread is inside of a gate and so would wait for itself.
    pub(crate) fn close_all<'a>(
        mut gates: Vec<&'a Gate>,
        operation: &'static str,
    ) -> Result<Closed<'a>> {
        if PASSED.get() != 0 {
            return Err(DriverError::Held { operation });
        }
        // Locked in this order by all.
        gates.sort_unstable_by_key(|gate| ptr::from_ref(*gate).addr());
        gates.dedup_by(|one, other| ptr::eq(*one, *other));
        for gate in &gates {
            lock(&gate.state).closing += 1;
        }
        loop {
            let mut states: Vec<_> = gates.iter().map(|gate| lock(&gate.state)).collect();
            let busy = |state: &MutexGuard<'_, State>| state.inside != 0 || state.closed;
            let Some(at) = states.iter().position(busy) else {
                for state in &mut states {
                    state.closing -= 1;
                    state.closed = true;
                }
                break;
            };
            let state = states.swap_remove(at);
            drop(states);
            drop({ gates[at].changed.wait(state) }.unwrap_or_else(PoisonError::into_inner));
        }
        Ok(Closed { gates })
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
    gates: Vec<&'a Gate>,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        for gate in &self.gates {
            lock(&gate.state).closed = false;
            gate.changed.notify_all();
        }
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
    fn who_is_inside_of_one_gate_goes_through_another_while_both_are_to_be_closed() {
        let gates = [Gate::default(), Gate::default()];
        for (inner, outer) in [(0, 1), (1, 0)] {
            let pass = gates[outer].pass();
            std::thread::scope(|scope| {
                scope.spawn(|| drop(Gate::close_all(gates.iter().collect(), "testing").unwrap()));
                while gates.iter().any(|gate| lock(&gate.state).closing == 0) {
                    std::thread::yield_now();
                }
                drop(gates[inner].pass());
                drop(pass);
            });
        }
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
