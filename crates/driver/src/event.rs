//! Events: points in a stream, to order by or to measure from.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use warptile_cuda_sys::{CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING, CUevent, CUresult, SYMBOLS};

use crate::capture::CaptureId;
use crate::context::{Context, lock};
use crate::driver::call;
use crate::error::{DriverError, Result};

/// A point in a stream's work: see [`Stream::record`](crate::Stream::record). An event that was
/// never recorded counts as having happened.
pub struct Event {
    context: Context,
    raw: CUevent,
    /// The capture it was recorded in last.
    capture: Mutex<Option<CaptureId>>,
}

impl Event {
    /// An event that orders work; the cheap kind.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(context: &Context) -> Result<Event> {
        Event::with_flags(context, CU_EVENT_DISABLE_TIMING)
    }

    /// An event that also notes the time, for [`Event::elapsed_since`].
    ///
    /// # Errors
    /// The driver's error.
    pub fn timed(context: &Context) -> Result<Event> {
        Event::with_flags(context, CU_EVENT_DEFAULT)
    }

    fn with_flags(context: &Context, flags: u32) -> Result<Event> {
        let _current = context.enter()?;
        let mut raw = CUevent::NULL;
        // SAFETY: `raw` outlives the call and the context is current. `drop` destroys the event.
        unsafe { call!(context, "creating an event", event_create(&mut raw, flags)) }?;
        Ok(Event {
            context: context.clone(),
            raw,
            capture: Mutex::default(),
        })
    }

    /// The context the event belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The capture that a stream enters by waiting for the event.
    pub(crate) fn capture(&self) -> Option<CaptureId> {
        *lock(&self.capture)
    }

    pub(crate) fn set_capture(&self, capture: Option<CaptureId>) {
        *lock(&self.capture) = capture;
    }

    /// The driver's handle, valid while this event lives.
    pub fn raw(&self) -> CUevent {
        self.raw
    }

    /// Waits until the event has happened.
    ///
    /// # Errors
    /// An error of the work before it.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.context.enter()?;
        // As it is, a wait or a question breaks the captures that this thread minds.
        let _relaxed = self.context.relaxed()?;
        // SAFETY: the event is live and its context current.
        unsafe {
            call!(
                &self.context,
                "waiting for an event",
                event_synchronize(self.raw)
            )
        }
    }

    /// Returns true if the event has happened; doesn't wait.
    ///
    /// # Errors
    /// An error of the work before it.
    pub fn query(&self) -> Result<bool> {
        let _relaxed = self.context.relaxed()?;
        self.ask()
    }

    /// [`Event::query`] where the thread minds no captures already.
    pub(crate) fn ask(&self) -> Result<bool> {
        let _current = self.context.enter()?;
        // SAFETY: the event is live and its context current.
        match unsafe { (self.context.api().event_query)(self.raw) } {
            CUresult::SUCCESS => Ok(true),
            CUresult::ERROR_NOT_READY => Ok(false),
            code => Err(self.context.failed(
                SYMBOLS.event_query,
                code,
                "asking whether an event has happened".into(),
            )),
        }
    }

    /// Device time between two timed events that have both happened, with a resolution of about
    /// half a microsecond.
    ///
    /// # Errors
    /// [`DriverError::OtherContext`]; or what the driver reports: not ready before both have
    /// happened, an invalid handle for events made by [`Event::new`] or never recorded.
    pub fn elapsed_since(&self, start: &Event) -> Result<Duration> {
        if !self.context.is_same(&start.context) {
            return Err(DriverError::OtherContext {
                operation: "measuring between events",
            });
        }
        let _current = self.context.enter()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: `milliseconds` outlives the call; both events are live and of this context.
        unsafe {
            call!(
                &self.context,
                "measuring between events",
                event_elapsed_time(&mut milliseconds, start.raw, self.raw)
            )
        }?;
        // Negative if the events happened the other way around.
        Ok(Duration::from_secs_f64(
            f64::from(milliseconds.max(0.0)) / 1e3,
        ))
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:?})", self.raw.0)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _current = self.context.enter_to_release();
        // SAFETY: the event was created here and has no other holder. A stream that still waits for it keeps what it
        // needs: the driver frees the event when it has happened.
        let result = unsafe {
            call!(
                &self.context,
                "destroying an event",
                event_destroy(self.raw)
            )
        };
        self.context.defer(result);
    }
}
