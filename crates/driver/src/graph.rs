//! Work captured once and launched many times.

use std::fmt;
use std::sync::{Arc, Mutex};

use warptile_cuda_sys::{CUgraph, CUgraphExec, CUstreamCaptureMode};

use crate::capture::Kept;
use crate::context::{Context, lock};
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::stream::Stream;

/// Work captured from a stream. Launching it costs one call, whatever it holds.
///
/// A graph keeps alive what the captured work needs: buffers that were copied or filled, buffers
/// and modules dropped during the capture, the modules of launched kernels, and what callers name
/// with [`Stream::keep_for_graph`].
pub struct Graph {
    context: Context,
    exec: CUgraphExec,
    /// Names of the kernels in the graph, joined, for naming suspects.
    kernels: Arc<str>,
    kept: Kept,
    /// The stream of the latest launch. Launches of one graph follow one another, whatever streams
    /// they are on, so whatever comes after the latest comes after all.
    latest: Mutex<Option<Stream>>,
}

impl Graph {
    /// Captures what `work` queues on `stream`, instead of running it.
    ///
    /// Within `work`, waiting, allocating and copying from or to the host are errors; nothing runs
    /// until [`Graph::launch`]. Whatever `work` does, error and panic included, the capture ends.
    ///
    /// # Errors
    /// The error of `work`, or [`DriverError`] turned into its type.
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
            context: context.clone(),
            exec,
            kernels: kept.kernels.join(", ").into(),
            kept,
            latest: Mutex::default(),
        })
    }

    /// Queues the captured work on a stream of the same context; doesn't wait. A launch begins
    /// after the graph's previous launch has ended, whatever stream that was on.
    ///
    /// Kernels in the graph run under the promises made to
    /// [`Kernel::launch`](crate::Kernel::launch), which cover every launch of the graph.
    ///
    /// # Errors
    /// [`DriverError::OtherContext`], or what the driver reports.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        if !self.context.is(stream.context()) {
            return Err(DriverError::OtherContext {
                operation: "launching a graph",
            });
        }
        let _current = self.context.enter()?;
        // Held across the call, so that `latest` is the latest also among threads.
        let mut latest = lock(&self.latest);
        // SAFETY: graph and stream are live and of the current context; what the captured work uses
        // is kept alive by `self` or promised by whoever launched kernels in the capture.
        unsafe {
            call!(
                stream,
                format!("launching a graph ({})", self.kernels),
                graph_launch(self.exec, stream.raw())
            )
        }?;
        if !self.kernels.is_empty() {
            stream
                .context()
                .launches()
                .note(stream.raw(), &self.kernels);
        }
        *latest = Some(stream.clone());
        Ok(())
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({})", self.kernels)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _current = self.context.enter_to_release();
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
        if let Some(latest) = lock(&self.latest).take() {
            // Memory is freed in the order of the stream it belongs to, so that stream must come
            // after the last launch.
            for stream in &self.kept.streams {
                self.context.defer(stream.come_after(&latest));
            }
        }
    }
}

/// A capture under way; ends when dropped.
struct Capture<'a> {
    stream: &'a Stream,
    kept: Option<Arc<Mutex<Kept>>>,
}

impl<'a> Capture<'a> {
    fn begin(stream: &'a Stream) -> Result<Capture<'a>> {
        let _current = stream.context().enter()?;
        // Thread-local: what other threads do meanwhile cannot break this capture.
        // SAFETY: the stream is live and its context current.
        unsafe {
            call!(
                stream,
                "beginning a capture",
                stream_begin_capture(stream.raw(), CUstreamCaptureMode::THREAD_LOCAL)
            )
        }?;
        Ok(Capture {
            stream,
            kept: Some(stream.context().captures().begin()),
        })
    }

    fn end(mut self) -> (Result<RawGraph<'a>>, Kept) {
        self.finish()
    }

    fn finish(&mut self) -> (Result<RawGraph<'a>>, Kept) {
        let Some(kept) = self.kept.take() else {
            return (
                Err(DriverError::Capturing {
                    operation: "ending a capture twice",
                }),
                Kept::default(),
            );
        };
        let stream = self.stream;
        let mut raw = CUgraph::NULL;
        let _current = stream.context().enter_to_release();
        // SAFETY: `raw` outlives the call; the stream is live, its context current, and its capture
        // was begun on this thread: a `Capture` never leaves `Graph::capture`.
        let ended = unsafe {
            call!(
                stream,
                "ending a capture",
                stream_end_capture(stream.raw(), &mut raw)
            )
        };
        let kept = stream.context().captures().end(&kept);
        (ended.map(|()| RawGraph { stream, raw }), kept)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.kept.is_some() {
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
