//! Captures and graphs: lists of operations.

use warptile_cuda_sys::*;

use crate::argument::Out;
use crate::queue::Op;
use crate::state::State;
use crate::stream;

/// A capture under way.
pub(crate) struct Capture {
    origin: usize,
    pub(crate) ops: Vec<Op>,
    /// Something was asked that a capture forbids.
    pub(crate) invalid: bool,
}

impl State {
    /// Whether captures are under way, which are broken by this.
    pub(crate) fn break_captures(&mut self) -> bool {
        for capture in self.captures.values_mut() {
            capture.invalid = true;
        }
        !self.captures.is_empty()
    }

    /// Whether the stream is in a capture.
    pub(crate) fn is_capturing(&self, stream: usize) -> bool {
        self.streams
            .get(&stream)
            .is_some_and(|stream| stream.capture.is_some())
    }
}

pub(crate) fn stream_begin_capture(
    state: &mut State,
    on: CUstream,
    _mode: CUstreamCaptureMode,
) -> CUresult {
    let id = state.new_id();
    let origin = stream::id(on);
    let Some(stream) = state.streams.get_mut(&origin) else {
        return state.bad_handle("a stream");
    };
    if stream.capture.is_some() {
        return CUresult::ERROR_ILLEGAL_STATE;
    }
    stream.capture = Some(id);
    state.captures.insert(
        id,
        Capture {
            origin,
            ops: Vec::new(),
            invalid: false,
        },
    );
    CUresult::SUCCESS
}

pub(crate) fn stream_end_capture(state: &mut State, on: CUstream, graph: Out<CUgraph>) -> CUresult {
    graph.set(CUgraph::NULL);
    let origin = stream::id(on);
    let Some(id) = state.streams.get(&origin).and_then(|stream| stream.capture) else {
        return CUresult::ERROR_ILLEGAL_STATE;
    };
    let Some(capture) = state.captures.remove(&id) else {
        return CUresult::ERROR_ILLEGAL_STATE;
    };
    for stream in state.streams.values_mut() {
        if stream.capture == Some(id) {
            stream.capture = None;
        }
    }
    if capture.invalid {
        return CUresult::ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if capture.origin != origin {
        return CUresult::ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    // A caller that is told of an error has no graph to destroy.
    if state.failing {
        return CUresult::SUCCESS;
    }
    let id = state.new_id();
    state.graphs.insert(id, capture.ops);
    graph.set(CUgraph(std::ptr::without_provenance_mut(id)));
    CUresult::SUCCESS
}

pub(crate) fn stream_is_capturing(
    state: &mut State,
    on: CUstream,
    status: Out<CUstreamCaptureStatus>,
) -> CUresult {
    let Some(stream) = state.streams.get(&stream::id(on)) else {
        return state.bad_handle("a stream");
    };
    let capture = stream.capture.and_then(|id| state.captures.get(&id));
    status.set(match capture {
        None => CUstreamCaptureStatus::NONE,
        Some(capture) if capture.invalid => CUstreamCaptureStatus::INVALIDATED,
        Some(_) => CUstreamCaptureStatus::ACTIVE,
    });
    CUresult::SUCCESS
}

pub(crate) fn graph_instantiate_with_flags(
    state: &mut State,
    exec: Out<CUgraphExec>,
    graph: CUgraph,
    _flags: u64,
) -> CUresult {
    let Some(ops) = state.graphs.get(&graph.0.addr()).cloned() else {
        return state.bad_handle("a graph");
    };
    let id = state.new_id();
    state.execs.insert(id, ops);
    exec.set(CUgraphExec(std::ptr::without_provenance_mut(id)));
    CUresult::SUCCESS
}

pub(crate) fn graph_launch(state: &mut State, exec: CUgraphExec, on: CUstream) -> CUresult {
    let Some(ops) = state.execs.get(&exec.0.addr()).cloned() else {
        return state.bad_handle("an executable graph");
    };
    for op in ops {
        let code = state.push(stream::id(on), op);
        if code != CUresult::SUCCESS {
            return code;
        }
    }
    CUresult::SUCCESS
}

pub(crate) fn graph_exec_destroy(state: &mut State, exec: CUgraphExec) -> CUresult {
    match state.execs.remove(&exec.0.addr()) {
        Some(_) => CUresult::SUCCESS,
        None => state.bad_handle("an executable graph"),
    }
}

pub(crate) fn graph_destroy(state: &mut State, graph: CUgraph) -> CUresult {
    match state.graphs.remove(&graph.0.addr()) {
        Some(_) => CUresult::SUCCESS,
        None => state.bad_handle("a graph"),
    }
}
