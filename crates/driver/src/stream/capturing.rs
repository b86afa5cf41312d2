//! The capture that a stream is in, and the values that its graph keeps.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use warptile_cuda_sys::{CUresult, CUstreamCaptureStatus, SYMBOLS};

use super::{Holder, Inner, Stream};
use crate::capture::CaptureId;
use crate::context::Current;
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::gate::Pass;

/// The description of [`Stream::status`] in errors.
const ASKING: &str = "asking which capture the stream is in";

/// The capture status of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// In none.
    Free,
    /// In this one.
    In(CaptureId),
    /// In one that something has broken.
    Broken,
}

/// While it lives, nothing of this crate takes a stream of the context into a capture, or out of one: see
/// [`Stream::hold`].
#[must_use = "streams are held only as long as this lives"]
pub struct Held<'a> {
    _pass: Pass<'a>,
}

impl fmt::Debug for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

/// The state that launches on a stream need, made once for several of them; see [`Stream::launching`].
pub struct Launching<'a> {
    stream: &'a Stream,
    capture: Option<CaptureId>,
    // Fields are dropped in this order: the context is left last.
    _held: Held<'a>,
    _current: Current<'a>,
}

impl Launching<'_> {
    /// The stream.
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// The capture that the stream is in, while this lives.
    pub fn capture(&self) -> Option<CaptureId> {
        self.capture
    }
}

impl fmt::Debug for Launching<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launching({:?}, {:?})", self.stream, self.capture)
    }
}

impl Stream {
    /// Returns true if the stream is being captured into a graph, by [`Graph`](crate::Graph) or by others.
    ///
    /// # Errors
    /// The driver's error.
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

    /// The capture that the stream is in, whoever began it, for
    /// [`keep_in`](Stream::keep_in) and [`attached_in`](Stream::attached_in). Under a
    /// [`hold`](Stream::hold) the answer stays true as far as this crate can tell.
    ///
    /// Costs a call of the driver for a borrowed stream. For an owned one it costs nothing unless a
    /// capture of ours is under way: others do not capture it.
    ///
    /// # Errors
    /// The driver's error, such as a capture that something has broken.
    pub fn capture(&self) -> Result<Option<CaptureId>> {
        match self.status()? {
            Status::Free => Ok(None),
            Status::In(id) => Ok(Some(id)),
            Status::Broken => Err(self.broken()),
        }
    }

    fn broken(&self) -> DriverError {
        let code = CUresult::ERROR_STREAM_CAPTURE_INVALIDATED;
        self.failed(SYMBOLS.stream_get_capture_info, code, ASKING.into())
    }

    /// Prepares for launches on the stream: its context is entered, the gate of captures is held, and
    /// whether the stream is in a capture is known, each once for all launches by
    /// [`Kernel::launch_at`](crate::Kernel::launch_at). To be held briefly, as [`Stream::hold`] is.
    ///
    /// # Errors
    /// As [`Stream::capture`].
    pub fn launching(&self) -> Result<Launching<'_>> {
        let current = self.context().enter()?;
        let held = self.hold();
        let capture = match self.inner.is_surely_free() {
            true => None,
            false => match self.settled(self.ask_entered()?) {
                Status::Free => None,
                Status::In(id) => Some(id),
                Status::Broken => return Err(self.broken()),
            },
        };
        Ok(Launching {
            stream: self,
            capture,
            _held: held,
            _current: current,
        })
    }

    /// [`Stream::capture`], told apart from a broken capture.
    pub(crate) fn status(&self) -> Result<Status> {
        if self.inner.is_surely_free() {
            return Ok(Status::Free);
        }
        // So that the stream does not enter a capture between the question and the note of its
        // answer.
        let _pass = self.context().pass();
        Ok(self.settled(self.ask()?))
    }

    /// Notes an answer that was given while the gate was held.
    fn settled(&self, status: Status) -> Status {
        if status == Status::Free {
            self.inner.maybe_captured.store(false, Ordering::Release);
        }
        status
    }

    /// Asks the driver for the stream's capture.
    fn ask(&self) -> Result<Status> {
        let _current = self.context().enter()?;
        self.ask_entered()
    }

    /// [`Stream::ask`] where the stream's context is current already.
    fn ask_entered(&self) -> Result<Status> {
        let (mut status, mut id) = (CUstreamCaptureStatus::NONE, 0);
        // SAFETY: both results outlive the call, which leaves out the others for null pointers; the
        // stream is live and its context current.
        unsafe {
            call!(
                self,
                ASKING,
                stream_get_capture_info(
                    self.raw(),
                    &mut status,
                    &mut id,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut()
                )
            )
        }?;
        Ok(match status {
            CUstreamCaptureStatus::NONE => Status::Free,
            CUstreamCaptureStatus::ACTIVE => Status::In(CaptureId::new(id)),
            _ => Status::Broken,
        })
    }

    /// Keeps this crate from taking streams of the context into captures, and from ending these, while the result lives:
    /// [`Graph::capture`](crate::Graph::capture) on another thread waits for that. On this one it is an error to begin a capture, and
    /// an end is not kept. For who asks for the [`capture`](Stream::capture) and then launches by the
    /// answer; to be held briefly, and not over a wait for the device.
    pub fn hold(&self) -> Held<'_> {
        Held {
            _pass: self.context().pass(),
        }
    }

    /// If this stream is in a capture, has its graph keep `what` alive; otherwise does nothing. See
    /// [`Stream::keep_in`].
    ///
    /// # Errors
    /// The driver's error when asked for the capture.
    pub fn keep_for_graph(&self, what: Arc<dyn Any + Send + Sync>) -> Result<()> {
        let _held = self.hold();
        if let Some(capture) = self.capture()? {
            self.keep_in(capture, what);
        }
        Ok(())
    }

    /// Has the graph of a capture keep `what` alive as long as it can be launched. Say this of
    /// everything a kernel uses that is launched on a caller's stream; buffers copied or filled here
    /// and the modules of launched kernels are kept without asking.
    ///
    /// Launches of a [`Graph`](crate::Graph) are ordered with the stream of a buffer whose
    /// [`owner`](crate::DeviceBuffer::owner) it keeps. Of anything else it is not known how it frees
    /// what it has: a graph that keeps such a thing waits for its last launch when it is dropped,
    /// and what belongs to a stream in there is not ordered.
    ///
    /// If somebody else began the capture, the end of its graph is not seen: `what` is kept for good.
    pub fn keep_in(&self, capture: CaptureId, what: Arc<dyn Any + Send + Sync>) {
        self.context()
            .captures()
            .with(capture, |kept| kept.keep(what));
    }

    /// The capture's value of type `T` on this stream, made by `make` if it has none. A capture may
    /// fork onto several streams, which run side by side, so each has its own.
    ///
    /// For a capture of [`Graph`](crate::Graph) the value lives as long as the graph. If somebody
    /// else began the capture, it lives as long as the context, or for good if it holds a handle of
    /// it. A value is best made of [`Scratch`](crate::Scratch) or of
    /// [`permanent_zeroed`](crate::Context::permanent_zeroed) memory, which captures do not notice.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn attached_in<T: Any + Send + Sync, E>(
        &self,
        capture: CaptureId,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let handle = self.raw().0.addr();
        self.context().captures().attached(capture, handle, make)
    }

    /// Refuses what would break a capture, before the driver breaks it.
    pub(crate) fn refuse_capture(&self, operation: &'static str) -> Result<()> {
        match self.status()? {
            Status::Free => Ok(()),
            _ => Err(DriverError::Capturing { operation }),
        }
    }

    /// [`Stream::refuse_capture`] for what is queued while the result lives.
    pub(crate) fn outside_captures(&self, operation: &'static str) -> Result<Held<'_>> {
        let held = self.hold();
        self.refuse_capture(operation)?;
        Ok(held)
    }

    /// The capture that has just begun here; asked while the gate is closed.
    pub(crate) fn fresh_capture(&self) -> Result<CaptureId> {
        match self.ask()? {
            Status::In(id) => Ok(id),
            _ => Err(self.broken()),
        }
    }

    /// Notes that a capture is about to begin here.
    pub(crate) fn expect_capture(&self) {
        self.inner.maybe_captured.store(true, Ordering::Release);
    }
}

impl Inner {
    /// Returns true if the driver need not be asked: an owned stream that nothing has taken into a capture.
    pub(super) fn is_surely_free(&self) -> bool {
        matches!(self.holder, Holder::Us)
            && !self.maybe_captured.load(Ordering::Acquire)
            && !self.context.captures().active()
    }

    /// Returns true if the stream is in a capture, or if that is unknown. The context is current.
    pub(super) fn is_captured(&self) -> bool {
        let ask = || {
            let mut status = CUstreamCaptureStatus::NONE;
            // SAFETY: `status` outlives the call; the stream is live and its context current.
            let asked = unsafe {
                call!(
                    &self.context,
                    ASKING,
                    stream_is_capturing(self.raw, &mut status)
                )
            };
            asked.map(|()| status != CUstreamCaptureStatus::NONE)
        };
        // The first failure may be an error of earlier work.
        !self.is_surely_free() && ask().or_else(|_| ask()).unwrap_or(true)
    }
}
