//! Streams: queues of work, owned or borrowed.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use warptile_cuda_sys::{
    CU_STREAM_NON_BLOCKING, CUcontext, CUresult, CUstream, CUstreamCaptureStatus, DriverApi,
    SYMBOLS,
};

use crate::context::Context;
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::event::Event;

/// A queue of work on a device. A cheap handle: clones are the same stream, which is destroyed
/// when the last of them and the last buffer that belongs to it are gone.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: CUstream,
    holder: Holder,
}

/// Who destroys the stream.
enum Holder {
    Us,
    /// Someone else, not before this is dropped.
    Owner {
        /// Held only to be dropped.
        _owner: Arc<dyn Any + Send + Sync>,
    },
}

impl Stream {
    /// Creates a stream of normal priority that does not wait for the legacy default stream.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn new(context: &Context) -> Result<Stream> {
        Stream::with_priority(context, 0)
    }

    /// Creates a stream with a priority; smaller is more urgent, and a value outside
    /// [`Context::stream_priorities`] is moved to the nearest inside.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn with_priority(context: &Context, priority: i32) -> Result<Stream> {
        let _current = context.enter()?;
        let mut raw = CUstream::NULL;
        // SAFETY: `raw` outlives the call and the context is current. `Inner::drop` destroys it.
        unsafe {
            call!(
                context,
                "creating a stream",
                stream_create_with_priority(&mut raw, CU_STREAM_NON_BLOCKING, priority)
            )
        }?;
        Ok(Stream {
            inner: Arc::new(Inner {
                context: context.clone(),
                raw,
                holder: Holder::Us,
            }),
        })
    }

    /// Borrows a stream that someone else made: cudarc, candle, PyTorch, or raw CUDA. It is never
    /// destroyed here; `owner` is dropped when the last clone is. A null handle is the legacy
    /// default stream.
    ///
    /// # Errors
    /// [`DriverError::ForeignContext`] if the stream is not of this context.
    ///
    /// # Safety
    /// `raw` is a stream of the same loaded driver, and stays one for as long as `owner` is alive.
    pub unsafe fn borrow(
        context: &Context,
        raw: CUstream,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Stream> {
        let _current = context.enter()?;
        let mut of = CUcontext::NULL;
        // SAFETY: `of` outlives the call, and the caller promises that the stream is live.
        unsafe {
            call!(
                context,
                "examining the borrowed stream",
                stream_get_ctx(raw, &mut of)
            )
        }?;
        if of != context.raw() {
            return Err(DriverError::ForeignContext {
                device: format!("{:?}", context.device()),
            });
        }
        Ok(Stream {
            inner: Arc::new(Inner {
                context: context.clone(),
                raw,
                holder: Holder::Owner { _owner: owner },
            }),
        })
    }

    /// The context the stream belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The driver's handle, valid while this stream lives.
    #[must_use]
    pub fn raw(&self) -> CUstream {
        self.inner.raw
    }

    /// Waits until everything queued so far is done.
    ///
    /// # Errors
    /// Whatever failed on the stream since it was last synchronized, naming the kernels launched on
    /// it. Errors that destructors met on the way are reported here too.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.context().enter()?;
        self.refuse_capture("waiting for the stream")?;
        self.synchronize_in_context()
    }

    /// [`Stream::synchronize`] where the stream's context is current already.
    fn synchronize_in_context(&self) -> Result<()> {
        // SAFETY: the stream is live and its context is current.
        let done = unsafe {
            call!(
                self,
                "waiting for the stream",
                stream_synchronize(self.raw())
            )
        };
        self.context().settle(Some(self.raw()), done)
    }

    /// Ends a copy from or to borrowed host memory, `queued` being how queueing it went: waits until
    /// the device has let go of the memory, whatever went wrong.
    pub(crate) fn finish_copy(&self, queued: Result<()>) -> Result<()> {
        let done = self.synchronize_in_context();
        if done.is_err() {
            // The stream could not be waited for; the context is the second way. If that fails too
            // the context is lost, and the device does no more work for it.
            self.context().defer(self.context().drain());
        }
        queued.and(done)
    }

    /// Whether everything queued so far is done; doesn't wait.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn query(&self) -> Result<bool> {
        let _current = self.context().enter()?;
        self.refuse_capture("asking whether the stream is done")?;
        // SAFETY: the stream is live and its context is current.
        let code = unsafe { (self.api().stream_query)(self.raw()) };
        let done = match code {
            CUresult::SUCCESS => Ok(()),
            CUresult::ERROR_NOT_READY => return Ok(false),
            code => Err(self.failed(
                SYMBOLS.stream_query,
                code,
                "asking whether the stream is done".into(),
            )),
        };
        self.context().settle(Some(self.raw()), done).map(|()| true)
    }

    /// Makes what is queued from now on wait for the event; the host doesn't wait.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _current = self.context().enter()?;
        // SAFETY: both are live; an event of another context or device is allowed here.
        unsafe {
            call!(
                self,
                "making a stream wait for an event",
                stream_wait_event(self.raw(), event.raw(), 0)
            )
        }
    }

    /// Makes the event happen when everything queued so far is done.
    ///
    /// # Errors
    /// [`DriverError::OtherContext`], or what the driver reports.
    pub fn record(&self, event: &Event) -> Result<()> {
        if !self.context().is(event.context()) {
            return Err(DriverError::OtherContext {
                operation: "recording an event",
            });
        }
        let _current = self.context().enter()?;
        // SAFETY: both are live and of the current context.
        unsafe {
            call!(
                self,
                "recording an event",
                event_record(event.raw(), self.raw())
            )
        }
    }

    /// Makes what is queued here from now on wait for what is queued on `other` so far. Streams of
    /// different devices may wait for each other.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        if self.raw() == other.raw() && self.context().is(other.context()) {
            return Ok(());
        }
        let event = Event::new(other.context())?;
        other.record(&event)?;
        self.wait(&event)
    }

    /// [`Stream::wait_for`] where memory safety hangs on it: if the streams cannot be ordered, waits
    /// for the device instead.
    pub(crate) fn come_after(&self, other: &Stream) -> Result<()> {
        let ordered = self.wait_for(other);
        if ordered.is_err() {
            self.context().defer(other.context().drain());
        }
        ordered
    }

    /// Whether the stream is being captured into a graph, by [`Graph`](crate::Graph) or by others.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn is_capturing(&self) -> Result<bool> {
        let _current = self.context().enter()?;
        let mut status = CUstreamCaptureStatus::NONE;
        // SAFETY: `status` outlives the call; the stream is live and its context current.
        unsafe {
            call!(
                self,
                "asking whether the stream is being captured",
                stream_is_capturing(self.raw(), &mut status)
            )
        }?;
        Ok(status != CUstreamCaptureStatus::NONE)
    }

    /// If this stream is being captured by a [`Graph`](crate::Graph), the graph keeps `what` alive
    /// as long as it can be launched; otherwise does nothing. Say this of everything a kernel
    /// launched on a caller's stream uses; buffers copied or filled here are kept without asking.
    pub fn keep_for_graph(&self, what: Arc<dyn Any + Send + Sync>) {
        self.context().captures().keep(what);
    }

    /// Refuses what would break a capture, before the driver breaks it.
    pub(crate) fn refuse_capture(&self, operation: &'static str) -> Result<()> {
        // Only a capture begun through this crate, or on a stream that others hold, can be under
        // way, so the common case asks the driver nothing.
        let possible =
            self.context().captures().active() || matches!(self.inner.holder, Holder::Owner { .. });
        if possible && self.is_capturing()? {
            return Err(DriverError::Capturing { operation });
        }
        Ok(())
    }

    pub(crate) fn api(&self) -> &DriverApi {
        self.context().api()
    }

    pub(crate) fn failed(
        &self,
        symbol: &'static str,
        code: CUresult,
        operation: Cow<'static, str>,
    ) -> DriverError {
        self.context()
            .failed_on(Some(self.raw()), symbol, code, operation)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?} of {:?})", self.raw().0, self.context())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if matches!(self.holder, Holder::Us) {
            let _current = self.context.enter_to_release();
            // SAFETY: this was the last user of a stream created here. Work still queued on it is
            // finished by the driver before the stream's resources go.
            let result = unsafe {
                call!(
                    &self.context,
                    "destroying a stream",
                    stream_destroy(self.raw)
                )
            };
            self.context.defer(result);
        }
    }
}
