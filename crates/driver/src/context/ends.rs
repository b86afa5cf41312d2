//! The ends of streams that are gone. What a context destroys last may be in use by work that they left behind, and that is all
//! the work it waits for: a wait for the whole context would break the captures that others have under way in it.

use std::mem::take;

use warptile_cuda_sys::{CU_EVENT_DISABLE_TIMING, CUevent, CUresult, CUstream, SYMBOLS};

use crate::context::{Context, lock};
use crate::driver::{Driver, call};
use crate::error::Result;

/// The known ends of the work that streams left behind.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// At the end of each stream that was not done when it went.
    events: Vec<CUevent>,
    /// True if there is a stream whose end could not be marked.
    unknown: bool,
}

impl Ends {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && !self.unknown
    }

    /// Adds the ends that another list has.
    pub(super) fn join(&mut self, mut other: Ends) {
        self.events.append(&mut other.events);
        self.unknown |= other.unknown;
    }

    /// Destroys the events of streams that are done by now. The context is current, and the thread minds no captures.
    fn forget_what_is_over(&mut self, driver: &Driver) {
        self.events.retain(|&event| {
            // SAFETY: the event is live and its context current.
            let over = unsafe { (driver.api().event_query)(event) } == CUresult::SUCCESS;
            if over {
                destroy(driver, event);
            }
            !over
        });
    }

    /// Waits for the ends and destroys the events; whether all that was queued on the streams is over. The context is current,
    /// and the thread minds no captures.
    pub(super) fn wait(mut self, driver: &Driver) -> bool {
        let mut over = !self.unknown;
        for event in take(&mut self.events) {
            // SAFETY: the event is live and its context current.
            let wait = || unsafe {
                call!(
                    driver,
                    "waiting for the end of a stream",
                    event_synchronize(event)
                )
            };
            // The first failure may be an error of earlier work.
            over &= wait().or_else(|_| wait()).is_ok();
            destroy(driver, event);
        }
        over
    }

    /// Destroys the events, of streams that are known to be done or that are not waited for. The context is current.
    pub(super) fn forget(self, driver: &Driver) {
        for event in self.events {
            destroy(driver, event);
        }
    }
}

/// Destroys an event of ours, with its context current. An error is that of earlier work.
fn destroy(driver: &Driver, event: CUevent) {
    // SAFETY: made by `Context::end_event` and destroyed once: whoever calls this takes it off its list.
    let _ = unsafe { call!(driver, "destroying an event", event_destroy(event)) };
}

impl Context {
    /// Marks the end of a stream that is about to go, for the end of the context, unless the stream is done. The context is
    /// current, and the stream is in no capture.
    pub(crate) fn mark_end(&self, stream: CUstream) -> Result<()> {
        let _relaxed = self.relaxed()?;
        // SAFETY: the stream is live and its context current.
        if unsafe { (self.api().stream_query)(stream) } == CUresult::SUCCESS {
            return Ok(());
        }
        let event = self.end_event(stream)?;
        let mut ends = lock(&self.inner.ends);
        ends.forget_what_is_over(self.driver());
        ends.events.push(event);
        Ok(())
    }

    /// An event at the present end of a stream.
    fn end_event(&self, stream: CUstream) -> Result<CUevent> {
        let operation = "marking the end of a stream";
        let mut event = CUevent::NULL;
        // SAFETY: `event` outlives the call and the context is current.
        unsafe {
            call!(
                self,
                operation,
                event_create(&mut event, CU_EVENT_DISABLE_TIMING)
            )
        }?;
        // SAFETY: both are live and of the current context.
        match unsafe { (self.api().event_record)(event, stream) } {
            CUresult::SUCCESS => Ok(event),
            code => {
                destroy(self.driver(), event);
                Err(self.failed(SYMBOLS.event_record, code, operation.into()))
            }
        }
    }

    /// Notes that a stream goes of whose end nothing is known. What its work may use is then left to the end of the CUDA
    /// context.
    pub(crate) fn lose_end(&self) {
        lock(&self.inner.ends).unknown = true;
    }
}
