//! Streams: queues of work, owned or borrowed.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use warptile_cuda_sys::{
    CU_STREAM_NON_BLOCKING, CUcontext, CUdeviceptr, CUresult, CUstream, CUstreamCaptureStatus,
    DriverApi, SYMBOLS,
};

use crate::capture::{CaptureId, Owner};
use crate::context::{Context, Current, Retired, lock};
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::event::Event;
use crate::gate::Pass;

/// A queue of work on a device. A cheap handle: clones are the same stream, which is destroyed
/// when the last of them and the last buffer that belongs to it are gone.
///
/// A `Stream` is exactly one CUDA stream, whatever thread it is used on.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: CUstream,
    holder: Holder,
    /// Whether the stream may be in a capture, as far as this crate has taken it into one. Of a
    /// borrowed stream nobody but the driver knows.
    maybe_captured: AtomicBool,
    /// See [`Stream::attached`].
    attached: Mutex<HashMap<TypeId, Owner>>,
    /// Memory that was dropped while the stream was in a capture.
    orphans: Mutex<Vec<Freed>>,
}

/// Who destroys the stream.
enum Holder {
    Us,
    /// Someone else, not before this is dropped.
    Owner {
        /// Held only to be dropped.
        _owner: Owner,
    },
}

/// Memory of a stream on its way back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Freed {
    pub(crate) pointer: CUdeviceptr,
    /// From the context's pool, so freed in stream order; else after waiting.
    pub(crate) pooled: bool,
}

/// Whether a stream is in a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// In none.
    Free,
    /// In this one.
    In(CaptureId),
    /// In one that something has broken.
    Broken,
}

/// While it lives, nothing of this crate takes a stream of the context into a capture: see
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
        Ok(Stream::of(context, raw, Holder::Us))
    }

    fn of(context: &Context, raw: CUstream, holder: Holder) -> Stream {
        Stream {
            inner: Arc::new(Inner {
                context: context.clone(),
                raw,
                holder,
                maybe_captured: AtomicBool::new(false),
                attached: Mutex::default(),
                orphans: Mutex::default(),
            }),
        }
    }

    /// Borrows a stream that someone else made: cudarc, candle, PyTorch, or raw CUDA. It is never
    /// destroyed here; `owner` is dropped when the last clone is. A null handle and
    /// [`CUstream::LEGACY`] are the legacy default stream.
    ///
    /// Its owner may capture it. So where it counts, the driver is asked whether it is being
    /// captured: one call more for a launch, an allocation or a drop.
    ///
    /// # Errors
    /// [`DriverError::PerThreadStream`] for [`CUstream::PER_THREAD`], and
    /// [`DriverError::ForeignContext`] if the stream is not of this context.
    ///
    /// # Safety
    /// `raw` is a stream of the same loaded driver, and stays one for as long as `owner` is alive.
    pub unsafe fn borrow(
        context: &Context,
        raw: CUstream,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Stream> {
        let raw = match raw {
            CUstream::PER_THREAD => return Err(DriverError::PerThreadStream),
            CUstream::LEGACY => CUstream::NULL,
            raw => raw,
        };
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
        Ok(Stream::of(context, raw, Holder::Owner { _owner: owner }))
    }

    /// Whether both are the same CUDA stream: the handle and the context.
    #[must_use]
    pub fn is_same(&self, other: &Stream) -> bool {
        self.raw() == other.raw() && self.context().is_same(other.context())
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
        let held = self.outside_captures("waiting for the stream")?;
        self.free_orphans();
        drop(held);
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
            // There are other ways. If all fail the context is lost, and the device does no more
            // work for it.
            self.context().defer(self.inner.wait());
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

    /// Makes what is queued from now on wait for the event; the host doesn't wait. An event that was
    /// recorded in a capture takes this stream into it.
    ///
    /// # Errors
    /// [`DriverError::Held`] if the stream would enter a capture while this thread holds streams;
    /// or what the driver reports: a capture cannot wait for what is outside of it.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _current = self.context().enter()?;
        let entered = match event.capture() {
            Some(id) if self.status()? != Status::In(id) => Some(id),
            _ => None,
        };
        let closed = match entered {
            Some(_) => {
                let gate = self.context().gate();
                let closed = gate.close("taking a stream into a capture")?;
                self.inner.maybe_captured.store(true, Ordering::Release);
                Some(closed)
            }
            None => None,
        };
        // SAFETY: both are live; an event of another context or device is allowed here.
        unsafe {
            call!(
                self,
                "making a stream wait for an event",
                stream_wait_event(self.raw(), event.raw(), 0)
            )
        }?;
        drop(closed);
        if let Some(id) = entered {
            event.context().captures().fork(id, self);
        }
        Ok(())
    }

    /// Makes the event happen when everything queued so far is done.
    ///
    /// # Errors
    /// [`DriverError::OtherContext`], or what the driver reports.
    pub fn record(&self, event: &Event) -> Result<()> {
        if !self.context().is_same(event.context()) {
            return Err(DriverError::OtherContext {
                operation: "recording an event",
            });
        }
        let _current = self.context().enter()?;
        let _held = self.hold();
        let capture = self.capture()?;
        // SAFETY: both are live and of the current context.
        unsafe {
            call!(
                self,
                "recording an event",
                event_record(event.raw(), self.raw())
            )
        }?;
        event.set_capture(capture);
        Ok(())
    }

    /// Makes what is queued here from now on wait for what is queued on `other` so far. Streams of
    /// different devices may wait for each other. If the other stream is in a capture, this one
    /// enters it.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        if self.is_same(other) {
            return Ok(());
        }
        let event = Event::new(other.context())?;
        other.record(&event)?;
        self.wait(&event)
    }

    /// Waits until everything queued so far is done, in one way or another, for the sake of memory
    /// that it uses.
    pub(crate) fn wait_out(&self) {
        let context = self.context();
        if matches!(self.status(), Ok(Status::In(_) | Status::Broken)) {
            return; // nothing runs before the graph is launched
        }
        let _current = context.enter_to_release();
        if self.inner.wait().is_err() {
            context.lose_order();
        }
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

    /// The capture that the stream is in, whoever began it, for
    /// [`keep_in`](Stream::keep_in) and [`attached_in`](Stream::attached_in). Under a
    /// [`hold`](Stream::hold) the answer stays true as far as this crate can tell.
    ///
    /// Costs a call of the driver for a borrowed stream. For an owned one it costs nothing unless a
    /// capture of ours is under way: others do not capture it.
    ///
    /// # Errors
    /// What the driver reports, such as a capture that something has broken.
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

    /// Keeps this crate from taking streams of the context into captures while the result lives:
    /// [`Graph::capture`](crate::Graph::capture) on another thread waits for that, and on this one
    /// it is an error. For who asks for the [`capture`](Stream::capture) and then launches by the
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
    /// What the driver reports when asked for the capture.
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

    /// The stream's value of type `T`, made by `make` if it has none: one for each `Stream` and type,
    /// such as the workspace of the kernels that are launched on it, of which two never overlap.
    ///
    /// The value lives as long as the stream, and is dropped when the stream's work is done. So it
    /// must not hold the stream itself, nor a buffer of it: [`Scratch`](crate::Scratch) is device
    /// memory without a stream. Streams that are borrowed twice have a value each.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn attached<T: Any + Send + Sync, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let key = TypeId::of::<T>();
        let known = lock(&self.inner.attached).get(&key).cloned();
        if let Some(found) = known.and_then(|value| value.downcast().ok()) {
            return Ok(found);
        }
        // Not under the lock, as this may do anything. Of two made at once, one is used.
        let made = Arc::new(make()?);
        let mut attached = lock(&self.inner.attached);
        let value = attached.entry(key).or_insert_with(|| made.clone()).clone();
        drop(attached);
        Ok(value.downcast().unwrap_or(made))
    }

    /// The capture's value of type `T` on this stream, made by `make` if it has none. A capture may
    /// fork onto several streams, which run side by side, so each has its own.
    ///
    /// For a capture of [`Graph`](crate::Graph) the value lives as long as the graph. If somebody
    /// else began the capture, it lives as long as the context, or for good if it holds a handle of
    /// it. A value is best made of [`Scratch`](crate::Scratch) or of
    /// [`permanent_zeroed`](Context::permanent_zeroed) memory, which captures do not notice.
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

    /// Frees what was dropped during a capture, if that is over.
    pub(crate) fn flush(&self) {
        if lock(&self.inner.orphans).is_empty() {
            return;
        }
        let _current = self.context().enter_to_release();
        let _held = self.hold();
        if let Ok(Status::Free) = self.status() {
            self.free_orphans();
        }
    }

    /// Waits until everything queued so far is done, without the bookkeeping of
    /// [`Stream::synchronize`] and whatever captures others have under way.
    pub(crate) fn wait_for_end(&self) -> Result<()> {
        let _current = self.context().enter_to_release();
        self.refuse_capture("waiting for the stream")?;
        self.inner.wait()
    }

    /// Notes that a capture is about to begin here.
    pub(crate) fn expect_capture(&self) {
        self.inner.maybe_captured.store(true, Ordering::Release);
    }

    /// Frees memory in the stream's order; what is dropped while the stream is in a capture, by any
    /// thread, is freed when that is over.
    pub(crate) fn give_back(&self, memory: Freed) {
        let context = self.context();
        let _current = context.enter_to_release();
        let _held = self.hold();
        match self.status() {
            Ok(Status::Free) => {
                self.free_orphans();
                self.inner.free(memory);
            }
            other => {
                context.defer(other.map(drop));
                lock(&self.inner.orphans).push(memory);
            }
        }
    }

    /// Frees what was dropped during a capture that is over. The context is current.
    pub(crate) fn free_orphans(&self) {
        let orphans = std::mem::take(&mut *lock(&self.inner.orphans));
        for memory in orphans {
            self.inner.free(memory);
        }
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

/// What launches on a stream need, once for several of them; see [`Stream::launching`].
pub struct Launching<'a> {
    stream: &'a Stream,
    capture: Option<CaptureId>,
    // Fields are dropped in this order: the context is left last.
    _held: Held<'a>,
    _current: Current<'a>,
}

impl Launching<'_> {
    /// The stream.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// The capture that the stream is in, while this lives.
    #[must_use]
    pub fn capture(&self) -> Option<CaptureId> {
        self.capture
    }
}

impl fmt::Debug for Launching<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launching({:?}, {:?})", self.stream, self.capture)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?} of {:?})", self.raw().0, self.context())
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        self.is_same(other)
    }
}

impl Eq for Stream {}

/// What [`Stream::status`] does, in words.
const ASKING: &str = "asking which capture the stream is in";

impl Inner {
    /// Frees memory of a stream that is in no capture; its context is current.
    fn free(&self, memory: Freed) {
        let context = &self.context;
        // Where work is out of order, memory that cannot be waited for is left alone.
        let freed = context.is_in_order().and_then(|()| match memory.pooled {
            true => self.free_in_order(memory.pointer),
            false => self.free_after_wait(memory.pointer),
        });
        context.defer(freed);
    }

    fn free_in_order(&self, pointer: CUdeviceptr) -> Result<()> {
        // Without a guard it would break a capture that somebody has under way in global mode.
        let relaxed = self.context.relaxed();
        // SAFETY: memory of the context's pool, freed once, here. Work that this crate queued
        // elsewhere was ordered before this stream by events.
        let freed = unsafe {
            call!(
                &self.context,
                "freeing device memory",
                mem_free_async(pointer, self.raw)
            )
        };
        self.context.defer(relaxed.map(drop));
        freed
    }

    fn free_after_wait(&self, pointer: CUdeviceptr) -> Result<()> {
        // A kernel may still use the memory, and cuMemFree does not promise to wait. If neither
        // stream nor context can be waited for, the memory is left alone.
        self.wait()?;
        self.context.free_now(pointer);
        Ok(())
    }

    /// Waits for the stream, whatever captures others have under way, and if that fails in some
    /// other way. The context is current.
    fn wait(&self) -> Result<()> {
        let relaxed = self.context.relaxed();
        let wait = || {
            // SAFETY: the stream is live and its context current.
            unsafe {
                call!(
                    &self.context,
                    "waiting for the end of the stream's work",
                    stream_synchronize(self.raw)
                )
            }
        };
        // What fails the first time may be an error of earlier work. The context comes last, as
        // waiting for it breaks what captures there are.
        let done = wait().or_else(|_| wait()).or_else(|_| self.context.drain());
        self.context.defer(relaxed.map(drop));
        done
    }

    /// Whether the driver need not be asked: an owned stream that nothing has taken into a capture.
    fn is_surely_free(&self) -> bool {
        matches!(self.holder, Holder::Us)
            && !self.maybe_captured.load(Ordering::Acquire)
            && !self.context.captures().active()
    }

    /// Whether the stream is in a capture, or nobody can tell. The context is current.
    fn is_captured(&self) -> bool {
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
        // What fails the first time may be an error of earlier work.
        !self.is_surely_free() && ask().or_else(|_| ask()).unwrap_or(true)
    }

    /// Gives back what the stream still has. The context is current.
    fn give_up_contents(&mut self) {
        let orphans = std::mem::take(&mut *lock(&self.orphans));
        let attached = std::mem::take(&mut *lock(&self.attached));
        if orphans.is_empty() && attached.is_empty() {
            return;
        }
        if self.is_captured() {
            // Somebody else's capture outlasts us. What is left waits for the context.
            for memory in orphans {
                self.context.retire(Retired::Memory(memory.pointer));
            }
            self.retire(attached);
            return;
        }
        for memory in orphans {
            self.free(memory);
        }
        if !attached.is_empty() && self.wait().is_err() {
            self.retire(attached);
        }
    }

    fn retire(&self, attached: HashMap<TypeId, Owner>) {
        if !attached.is_empty() {
            let _value: Box<dyn Any + Send + Sync> = Box::new(attached);
            self.context.retire(Retired::Value { _value });
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let empty = lock(&self.orphans).is_empty() && lock(&self.attached).is_empty();
        let owned = matches!(self.holder, Holder::Us);
        if empty && !owned {
            return;
        }
        let context = self.context.clone();
        let _current = context.enter_to_release();
        self.give_up_contents();
        if owned {
            // SAFETY: this was the last user of a stream created here. Work still queued on it is
            // finished by the driver before the stream's resources go.
            let result =
                unsafe { call!(&context, "destroying a stream", stream_destroy(self.raw)) };
            context.defer(result);
        }
    }
}
