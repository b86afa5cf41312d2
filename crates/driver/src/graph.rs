//! Work captured once and launched many times.

use std::fmt;
use std::sync::{Arc, Mutex};

use warptile_cuda_sys::{CUgraph, CUgraphExec, CUstreamCaptureMode};

use crate::capture::{CaptureId, Kept};
use crate::context::{Context, Retired, lock};
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::event::Event;
use crate::gate::Gate;
use crate::stream::Stream;

/// Work captured from a stream. Launching it costs one call of the driver. If the buffers it keeps belong to other streams, it costs
/// three more and five for each of these; and four for each stream that a graph it shares with another one was last launched on.
///
/// A graph keeps alive what the captured work needs: buffers that were copied or filled, the modules
/// of launched kernels, and what callers name with [`Stream::keep_in`]. A buffer that is dropped
/// during the capture without being named is freed as if there were none.
pub struct Graph {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    context: Context,
    exec: CUgraphExec,
    /// Names of the kernels in the graph, joined, for naming suspects.
    kernels: Arc<str>,
    kept: Kept,
    /// The latest launch, alone or as part of another graph. Launches of one graph follow one another, on any
    /// streams, so work after the latest is after all of them.
    latest: Mutex<Option<Latest>>,
}

/// A launch outside of captures.
struct Latest {
    stream: Stream,
    /// The graph that was launched: the one that this is noted for, or one that contains it.
    exec: CUgraphExec,
}

impl Graph {
    /// Captures what `work` queues on `stream`, instead of running it.
    ///
    /// Within `work`, waiting, allocating and copying from or to the host are errors; nothing runs
    /// until [`Graph::launch`]. Whatever `work` does, error and panic included, the capture ends.
    ///
    /// # Errors
    /// The error of `work`, or [`DriverError`] turned into its type: [`DriverError::Held`] where this
    /// thread holds streams.
    pub fn capture<E: From<DriverError>>(
        stream: &Stream,
        work: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Graph, E> {
        let capture = Capture::begin(stream)?;
        work(stream)?;
        let (graph, kept) = capture.end();
        Ok(Graph::instantiate(stream, graph?, kept)?)
    }

    fn instantiate(stream: &Stream, graph: RawGraph<'_>, kept: Kept) -> Result<Graph> {
        let context = stream.context();
        let _current = context.enter()?;
        // As it is, this breaks the captures that the thread minds.
        let _relaxed = context.relaxed()?;
        let mut exec = CUgraphExec::NULL;
        // SAFETY: `exec` outlives the call; the graph is live and its context current.
        unsafe {
            call!(
                stream,
                "instantiating a captured graph",
                graph_instantiate_with_flags(&mut exec, graph.raw, 0)
            )
        }?;
        Ok(Graph {
            inner: Arc::new(Inner {
                context: context.clone(),
                exec,
                kernels: kept.kernels.join(", ").into(),
                kept,
                latest: Mutex::default(),
            }),
        })
    }

    /// Queues the captured work on a stream of the same context; doesn't wait. A launch begins after the graph's
    /// previous launch has ended, on any stream, and after what is queued so far on the streams of the buffers that
    /// the graph keeps, which then wait for it.
    ///
    /// On a stream that is being captured the graph becomes part of the other graph, which keeps it. Launches of one
    /// graph follow one another there, too: within one capture on any branches, and those of the other graph with
    /// those of this one. If other code began the capture, the launches of its graph are not seen, and the caller
    /// orders them with other launches of this one.
    ///
    /// Kernels in the graph run under the promises made to
    /// [`Kernel::launch`](crate::Kernel::launch), which cover every launch of the graph.
    ///
    /// # Errors
    /// [`DriverError::OtherContext`], [`DriverError::Capturing`] if a stream to be ordered with (that
    /// of a buffer, or of the previous launch) is in a capture, or what the driver reports. An error in
    /// ordering the streams after the launch is reported, too: the graph is running then.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let inner = &self.inner;
        if !inner.context.is_same(stream.context()) {
            return Err(DriverError::OtherContext {
                operation: "launching a graph",
            });
        }
        let _current = inner.context.enter()?;
        let _held = stream.hold();
        match stream.capture()? {
            Some(outer) => inner.launch_in(outer, stream),
            None => inner.launch_on(stream),
        }
    }
}

impl Inner {
    /// This graph and all graphs in it, by address: two graphs may share some, and lock them in this
    /// order.
    fn parts(self: &Arc<Self>) -> Vec<&Arc<Inner>> {
        let mut parts: Vec<_> = self.kept.graphs.values().map(|(graph, _)| graph).collect();
        parts.push(self);
        parts.sort_unstable_by_key(|part| Arc::as_ptr(part).addr());
        parts
    }

    /// Makes the graph part of a capture.
    fn launch_in(self: &Arc<Self>, outer: CaptureId, stream: &Stream) -> Result<()> {
        let (captures, parts) = (self.context.captures(), self.parts());
        // Held across all of this, as another thread may launch the graph on another branch.
        let _turns: Vec<_> = parts.iter().map(|part| lock(&part.latest)).collect();
        let mut earlier = captures.with(outer, |kept| {
            kept.keep(self.clone());
            for home in &self.kept.homes {
                kept.come_home(home);
            }
            for kernel in &self.kept.kernels {
                kept.name_kernel(kernel);
            }
            let known = |part: &&Arc<Inner>| kept.graphs.get(&Arc::as_ptr(part).addr());
            let known = parts.iter().filter_map(known);
            known.map(|(_, end)| end.clone()).collect::<Vec<_>>()
        });
        earlier.dedup_by_key(|event| Arc::as_ptr(event));
        for event in &earlier {
            stream.wait(event)?;
        }
        let end = Arc::new(Event::new(&self.context)?);
        self.queue(stream)?;
        stream.record(&end)?;
        captures.with(outer, |kept| {
            for part in parts {
                let place = Arc::as_ptr(part).addr();
                kept.graphs.insert(place, (part.clone(), end.clone()));
            }
        });
        Ok(())
    }

    /// Launches the graph on a stream outside of captures.
    fn launch_on(self: &Arc<Self>, stream: &Stream) -> Result<()> {
        stream.order_after(&self.kept.homes)?;
        // Held across the call, so that `latest` is the latest also among threads.
        let parts = self.parts();
        let mut turns: Vec<_> = parts.iter().map(|part| lock(&part.latest)).collect();
        // The driver orders launches of one executable graph, but not of two that share a part.
        let others = turns.iter().flat_map(|latest| latest.as_ref());
        let others = others.filter(|latest| latest.exec != self.exec);
        stream.order_after(others.map(|latest| &latest.stream))?;
        let launched = self.queue(stream);
        if launched.is_ok() {
            stream.note_launch();
            for latest in &mut turns {
                **latest = Some(Latest {
                    stream: stream.clone(),
                    exec: self.exec,
                });
            }
            if !self.kernels.is_empty() {
                let mut launches = self.context.launches();
                launches.note(stream.raw(), &self.kernels);
            }
        }
        drop(turns);
        launched.and(stream.order_before(&self.kept.homes))
    }

    fn queue(&self, stream: &Stream) -> Result<()> {
        // SAFETY: graph and stream are live and of the current context; what the captured work uses
        // is kept alive by `self` or promised by whoever launched kernels in the capture.
        unsafe {
            call!(
                stream,
                format!("launching a graph ({})", self.kernels),
                graph_launch(self.exec, stream.raw())
            )
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({})", self.inner.kernels)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _current = self.context.enter_to_release();
        let relaxed = self.context.relaxed();
        // SAFETY: instantiated by `Graph::instantiate`, and this was its last user. A launch that
        // still runs is finished by the driver before the graph's resources go.
        let result = unsafe {
            call!(
                &self.context,
                "destroying a graph",
                graph_exec_destroy(self.exec)
            )
        };
        self.context.defer(result);
        self.context.defer(relaxed.map(drop));
        let kept = std::mem::take(&mut self.kept);
        let Some(latest) = lock(&self.latest).take() else {
            return; // never launched: nothing uses what it kept
        };
        // Buffers are freed in the order of their streams, which wait for every launch. How
        // anything else frees what it has is not known.
        if kept.opaque && latest.stream.wait_for_end().is_err() {
            let _value = Box::new(kept);
            self.context.retire(Retired::Value { _value });
        }
    }
}

/// A capture under way; ends when dropped.
struct Capture<'a> {
    stream: &'a Stream,
    /// `None` once it has ended.
    id: Option<CaptureId>,
}

impl<'a> Capture<'a> {
    fn begin(stream: &'a Stream) -> Result<Capture<'a>> {
        const OPERATION: &str = "beginning a capture";
        let context = stream.context();
        let _current = context.enter()?;
        // No thread is between looking whether the stream is in a capture and acting on it, and no thread that looks
        // after this finds that the capture is unknown.
        let _closed = context.gate().close(OPERATION)?;
        stream.expect_capture();
        let id = context.captures().begin(|| {
            // Thread-local: what other threads do meanwhile cannot break this capture.
            // SAFETY: the stream is live and its context current.
            unsafe {
                call!(
                    stream,
                    OPERATION,
                    stream_begin_capture(stream.raw(), CUstreamCaptureMode::THREAD_LOCAL)
                )
            }?;
            let id = stream.fresh_capture();
            if id.is_err() {
                context.defer(end(stream).map(drop));
            }
            id
        })?;
        Ok(Capture {
            stream,
            id: Some(id),
        })
    }

    fn end(mut self) -> (Result<RawGraph<'a>>, Kept) {
        self.finish()
    }

    fn finish(&mut self) -> (Result<RawGraph<'a>>, Kept) {
        let (id, context) = (self.id.take(), self.stream.context());
        let captures = context.captures();
        let forked = { id.map(|id| captures.contexts(id)) }.unwrap_or_default();
        let gates = { forked.iter().chain([context]) }.map(Context::gate);
        // Whoever has learned that a stream is in the capture acts on it before it ends. If `work` has leaked a hold, nobody can wait
        // for that.
        let closed = Gate::close_all(gates.collect(), "ending a capture").ok();
        let ended = end(self.stream);
        let mut kept = { id.map(|id| captures.end(id)) }.unwrap_or_default();
        drop(closed);
        // Buffers that were dropped meanwhile and that have no keeper.
        let forked = std::mem::take(&mut kept.forked);
        for stream in forked.iter().chain([self.stream]) {
            stream.flush();
        }
        (ended, kept)
    }
}

/// Ends a capture that was begun on this thread: a `Capture` never leaves `Graph::capture`.
fn end(stream: &Stream) -> Result<RawGraph<'_>> {
    let mut raw = CUgraph::NULL;
    let _current = stream.context().enter_to_release();
    // SAFETY: `raw` outlives the call; the stream is live and its context current.
    let ended = unsafe {
        call!(
            stream,
            "ending a capture",
            stream_end_capture(stream.raw(), &mut raw)
        )
    };
    ended.map(|()| RawGraph { stream, raw })
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.id.is_some() {
            // Given up: the work's own error is already on its way to the caller.
            drop(self.finish());
        }
    }
}

/// The captured graph, needed only until it is instantiated.
struct RawGraph<'a> {
    stream: &'a Stream,
    raw: CUgraph,
}

impl Drop for RawGraph<'_> {
    fn drop(&mut self) {
        let context = self.stream.context();
        let _current = context.enter_to_release();
        // SAFETY: made by cuStreamEndCapture and destroyed once, here.
        let result = unsafe {
            call!(
                context,
                "destroying a captured graph",
                graph_destroy(self.raw)
            )
        };
        context.defer(result);
    }
}
