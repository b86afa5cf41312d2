//! Streams: queues of work, owned or borrowed.

mod alone;
mod capturing;
mod release;

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use warptile_cuda_sys::{
    CU_STREAM_NON_BLOCKING, CUcontext, CUresult, CUstream, DriverApi, SYMBOLS,
};

use crate::capture::Owner;
use crate::context::{Context, lock};
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::event::Event;
use alone::Alone;

pub(crate) use capturing::Status;
pub use capturing::{Held, Launching};
pub(crate) use release::Freed;

/// A queue of work on a device. A cheap handle: clones are the same stream, which is destroyed
/// when the last of them and the last buffer that belongs to it are gone.
///
/// A `Stream` is exactly one CUDA stream, on every thread.
///
/// An owned stream that was waited for is idle until the next launch. That launch goes by a graph of
/// one kernel where the driver can, which takes less time: eight kernels of a stream have one from
/// their third such launch on. Profilers show it as a launch of a graph.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: CUstream,
    holder: Holder,
    /// True if the stream may be in a capture, as far as this crate has taken it into one. For a borrowed stream only
    /// the driver knows.
    maybe_captured: AtomicBool,
    /// See [`Stream::attached`].
    attached: Mutex<HashMap<TypeId, Owner>>,
    /// Memory that was dropped while the stream was in a capture.
    orphans: Mutex<Vec<Freed>>,
    /// See [`Stream::keep_spares`].
    keeps_spares: AtomicBool,
    /// Memory that was dropped and waits for an allocation of its size; the oldest first.
    spares: Mutex<Vec<Freed>>,
    /// True if nothing was launched since the stream was last found done.
    idle: AtomicBool,
    /// True if something was launched whose code or memory others own, outside of captures.
    launched: AtomicBool,
    /// Kernels that were launched on the idle stream, the latest last.
    alone: Mutex<Vec<Alone>>,
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

impl Stream {
    /// Creates a stream of normal priority that does not wait for the legacy default stream.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(context: &Context) -> Result<Stream> {
        Stream::with_priority(context, 0)
    }

    /// Creates a stream with a priority; smaller is more urgent, and a value outside
    /// [`Context::stream_priorities`] is moved to the nearest inside.
    ///
    /// # Errors
    /// The driver's error.
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
                keeps_spares: AtomicBool::new(false),
                spares: Mutex::default(),
                idle: AtomicBool::new(false),
                launched: AtomicBool::new(false),
                alone: Mutex::default(),
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

    /// Returns true if both are the same CUDA stream: the handle and the context.
    pub fn is_same(&self, other: &Stream) -> bool {
        self.raw() == other.raw() && self.context().is_same(other.context())
    }

    /// The context the stream belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The driver's handle, valid while this stream lives.
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
        // As it is, a wait for any stream breaks the captures that this thread minds.
        let relaxed = self.context().relaxed();
        // SAFETY: the stream is live and its context is current.
        let done = unsafe {
            call!(
                self,
                "waiting for the stream",
                stream_synchronize(self.raw())
            )
        };
        self.context().defer(relaxed.map(drop));
        if done.is_ok() {
            self.note_idle();
        }
        self.context().settle(Some(self.raw()), done)
    }

    /// Ends a copy from or to borrowed host memory, `queued` being how queueing it went: waits until the device has
    /// let go of the memory, also after errors.
    pub(crate) fn finish_copy(&self, queued: Result<()>) -> Result<()> {
        let done = self.synchronize_in_context();
        if done.is_err() {
            // There are other ways. If all fail the context is lost, and the device does no more
            // work for it.
            self.context().defer(self.inner.wait());
        }
        match queued {
            Ok(()) => done,
            Err(error) => {
                // It may be what a destructor met.
                self.context().defer(done);
                Err(error)
            }
        }
    }

    /// Returns true if everything queued so far is done; doesn't wait.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn query(&self) -> Result<bool> {
        let _current = self.context().enter()?;
        self.refuse_capture("asking whether the stream is done")?;
        let _relaxed = self.context().relaxed()?;
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
        if let Some(id) = entered {
            event.context().captures().fork(id, self);
        }
        drop(closed);
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

    /// The stream's value of type `T`, made by `make` if it has none: one for each `Stream` and type, such as the
    /// workspace of the kernels that are launched on it, which never overlap.
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

    /// Waits until everything queued so far is done, without the bookkeeping of [`Stream::synchronize`] and
    /// regardless of captures that others have under way.
    pub(crate) fn wait_for_end(&self) -> Result<()> {
        let _current = self.context().enter_to_release();
        self.refuse_capture("waiting for the stream")?;
        self.inner.wait()
    }

    /// Notes a launch of a kernel or a graph, which the end of the context may have to wait for.
    pub(crate) fn note_launch(&self) {
        // Looked at first, as an unwritten cache line stays in every core's cache.
        if !self.inner.launched.load(Ordering::Relaxed) {
            self.inner.launched.store(true, Ordering::Relaxed);
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

impl Inner {
    /// Waits for the stream, regardless of captures that others have under way, and if that fails in some other way.
    /// The context is current.
    fn wait(&self) -> Result<()> {
        // The context comes last, as waiting for it breaks what captures there are.
        self.wait_alone().or_else(|_| self.context.drain())
    }

    /// [`Inner::wait`] in no other way.
    fn wait_alone(&self) -> Result<()> {
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
        // The first failure may be an error of earlier work.
        let done = wait().or_else(|_| wait());
        self.context.defer(relaxed.map(drop));
        done
    }
}
