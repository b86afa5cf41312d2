//! Other users of the same driver: raw handles and no type of this crate.

use std::sync::Arc;

use warptile_driver::sys::{
    CU_STREAM_NON_BLOCKING, CUgraph, CUgraphExec, CUresult, CUstream, CUstreamCaptureMode,
};
use warptile_driver::{Context, Stream};

pub(crate) const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::GLOBAL,
    CUstreamCaptureMode::THREAD_LOCAL,
    CUstreamCaptureMode::RELAXED,
];

/// A stream of somebody else's, which is captured, launched on and destroyed without being told to
/// this crate.
pub(crate) struct Foreign {
    context: Context,
    pub(crate) raw: CUstream,
}

impl Foreign {
    pub(crate) fn new(context: &Context) -> Arc<Foreign> {
        let _current = context.enter().unwrap();
        let mut raw = CUstream::NULL;
        let create = context.driver().api().stream_create_with_priority;
        // SAFETY: `raw` outlives the call.
        let code = unsafe { create(&mut raw, CU_STREAM_NON_BLOCKING, 0) };
        assert_eq!(code, CUresult::SUCCESS);
        Arc::new(Foreign {
            context: context.clone(),
            raw,
        })
    }

    pub(crate) fn borrowed(self: &Arc<Foreign>) -> Stream {
        // SAFETY: the owner keeps the stream.
        unsafe { Stream::borrow(&self.context, self.raw, self.clone()) }.unwrap()
    }

    pub(crate) fn begin(&self, mode: CUstreamCaptureMode) {
        let begin = self.context.driver().api().stream_begin_capture;
        // SAFETY: the stream is alive.
        assert_eq!(unsafe { begin(self.raw, mode) }, CUresult::SUCCESS);
    }

    /// Ends the capture; what became of it.
    pub(crate) fn end(&self) -> Result<ForeignGraph, CUresult> {
        let _current = self.context.enter().unwrap();
        let api = self.context.driver().api();
        let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
        // SAFETY: all outlive the calls, and the handles are the driver's.
        unsafe {
            match (api.stream_end_capture)(self.raw, &mut graph) {
                CUresult::SUCCESS => {}
                code => return Err(code),
            }
            let code = (api.graph_instantiate_with_flags)(&mut exec, graph, 0);
            assert_eq!(code, CUresult::SUCCESS);
            assert_eq!((api.graph_destroy)(graph), CUresult::SUCCESS);
        }
        Ok(ForeignGraph {
            context: self.context.clone(),
            exec,
        })
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _current = self.context.enter();
        // SAFETY: created by `new`.
        unsafe { (self.context.driver().api().stream_destroy)(self.raw) };
    }
}

/// A graph of somebody else's.
pub(crate) struct ForeignGraph {
    context: Context,
    exec: CUgraphExec,
}

impl ForeignGraph {
    pub(crate) fn launch(&self, stream: &Foreign) {
        let launch = self.context.driver().api().graph_launch;
        // SAFETY: both are alive; what the graph uses is the test's concern.
        assert_eq!(unsafe { launch(self.exec, stream.raw) }, CUresult::SUCCESS);
    }
}

impl Drop for ForeignGraph {
    fn drop(&mut self) {
        // SAFETY: instantiated by `end`.
        unsafe { (self.context.driver().api().graph_exec_destroy)(self.exec) };
    }
}
