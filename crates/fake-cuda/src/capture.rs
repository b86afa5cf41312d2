//! Captures: who began them, which streams they forked onto, and what they forbid to whom.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_uint;
use std::thread::ThreadId;

use warptile_cuda_sys::*;

use crate::argument::Out;
use crate::queue::{Op, not_ordered};
use crate::state::State;
use crate::stream::{Key, StreamKind};

/// How many operations of each stream of a capture something comes after.
pub(crate) type Clock = HashMap<Key, u64>;

/// A capture under way.
pub(crate) struct Capture {
    /// The handle of the graph that it makes.
    graph: usize,
    origin: Key,
    mode: CUstreamCaptureMode,
    thread: ThreadId,
    /// The captured operations, each with its stream and its number there.
    ops: Vec<(Key, u64, Op)>,
    /// For each stream in the capture, what its next operation comes after.
    clocks: HashMap<Key, Clock>,
    /// Something was asked that a capture forbids.
    pub(crate) invalid: bool,
}

thread_local! {
    /// Which captures this thread minds with calls that may disturb them.
    static MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CUstreamCaptureMode::GLOBAL) };
}

impl State {
    /// Returns true if a graph is that of a capture under way.
    pub(crate) fn is_being_captured(&self, graph: usize) -> bool {
        self.captures.values().any(|capture| capture.graph == graph)
    }

    /// Breaks a capture.
    pub(crate) fn invalidate(&mut self, capture: usize) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.invalid = true;
        }
    }

    /// Breaks the captures of a context in any mode; returns true if there were any.
    pub(crate) fn break_captures(&mut self, context: CUcontext) -> bool {
        let of_context: Vec<usize> = self
            .streams
            .values()
            .filter(|stream| stream.context == context)
            .filter_map(|stream| stream.capture)
            .collect();
        for &capture in &of_context {
            self.invalidate(capture);
        }
        !of_context.is_empty()
    }

    /// Returns true if the stream is in a capture.
    pub(crate) fn is_capturing(&self, stream: Key) -> bool {
        self.streams
            .get(&stream)
            .is_some_and(|stream| stream.capture.is_some())
    }

    /// A call that the driver calls potentially unsafe: it breaks the captures that this thread
    /// minds, as `cuThreadExchangeStreamCaptureMode` documents. Which calls these are was seen on an
    /// H200 with driver 580.159.
    pub(crate) fn disturb_captures(&mut self) -> Result<(), CUresult> {
        let here = std::thread::current().id();
        let mode = MODE.get();
        let mut disturbed = false;
        for capture in self.captures.values_mut() {
            let minded = match mode {
                CUstreamCaptureMode::RELAXED => false,
                _ if capture.thread == here => capture.mode != CUstreamCaptureMode::RELAXED,
                CUstreamCaptureMode::GLOBAL => capture.mode == CUstreamCaptureMode::GLOBAL,
                _ => false,
            };
            if minded {
                capture.invalid = true;
                disturbed = true;
            }
        }
        match disturbed {
            true => Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED),
            false => Ok(()),
        }
    }

    /// Adds an operation of a stream to the capture that the stream is in.
    pub(crate) fn capture_op(&mut self, capture: usize, stream: Key, op: Op) -> CUresult {
        let Some(capture) = self.captures.get_mut(&capture) else {
            return CUresult::ERROR_ILLEGAL_STATE;
        };
        if capture.invalid {
            return CUresult::ERROR_STREAM_CAPTURE_INVALIDATED;
        }
        let clock = capture.clocks.entry(stream).or_default();
        let unordered = capture.ops.iter().any(|(on, number, earlier)| {
            earlier.is_again(&op) && clock.get(on).is_none_or(|known| known < number)
        });
        let number = clock.entry(stream).or_default();
        *number += 1;
        let what = unordered.then(|| not_ordered(&op, &op));
        capture.ops.push((stream, *number, op));
        if let Some(what) = what {
            self.violation(what);
        }
        CUresult::SUCCESS
    }

    /// The clock that an event recorded now on a stream of a capture stands for.
    pub(crate) fn captured_point(&self, capture: usize, stream: Key) -> Clock {
        self.captures
            .get(&capture)
            .and_then(|capture| capture.clocks.get(&stream))
            .cloned()
            .unwrap_or_default()
    }

    /// Has a stream wait for an event recorded in a capture: takes it into that capture.
    pub(crate) fn wait_for_captured(
        &mut self,
        stream: Key,
        capture: usize,
        point: &Clock,
    ) -> CUresult {
        let Some(queue) = self.streams.get_mut(&stream) else {
            return self.bad_handle("a stream");
        };
        match queue.capture {
            _ if !self.captures.contains_key(&capture) => return CUresult::ERROR_CAPTURED_EVENT,
            Some(own) if own != capture => {
                self.invalidate(own);
                self.invalidate(capture);
                return CUresult::ERROR_STREAM_CAPTURE_MERGE;
            }
            _ if queue.kind == StreamKind::Legacy => {
                self.invalidate(capture);
                return CUresult::ERROR_STREAM_CAPTURE_IMPLICIT;
            }
            _ => queue.capture = Some(capture),
        }
        if let Some(capture) = self.captures.get_mut(&capture) {
            let clock = capture.clocks.entry(stream).or_default();
            for (&of, &count) in point {
                let known = clock.entry(of).or_default();
                *known = count.max(*known);
            }
        }
        CUresult::SUCCESS
    }

    /// The state of the capture that a stream is in; the legacy stream cannot tell while a stream
    /// that it would wait for is in one.
    fn capture_status(
        &mut self,
        on: Key,
    ) -> Result<(CUstreamCaptureStatus, Option<usize>), CUresult> {
        let Some(stream) = self.streams.get(&on) else {
            return Err(self.bad_handle("a stream"));
        };
        let in_the_way = |other: &crate::stream::Stream| {
            other.blocking && other.context == stream.context && other.capture.is_some()
        };
        if stream.kind == StreamKind::Legacy && self.streams.values().any(in_the_way) {
            return Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let id = stream.capture;
        Ok(match id.and_then(|id| self.captures.get(&id)) {
            None => (CUstreamCaptureStatus::NONE, None),
            Some(capture) if capture.invalid => (CUstreamCaptureStatus::INVALIDATED, None),
            Some(_) => (CUstreamCaptureStatus::ACTIVE, id),
        })
    }
}

pub(crate) fn stream_begin_capture(
    state: &mut State,
    origin: Key,
    mode: CUstreamCaptureMode,
) -> CUresult {
    let (id, graph) = (state.new_id(), state.new_id());
    let Some(stream) = state.streams.get_mut(&origin) else {
        return state.bad_handle("a stream");
    };
    if stream.kind == StreamKind::Legacy {
        return CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if stream.capture.is_some() {
        return CUresult::ERROR_ILLEGAL_STATE;
    }
    stream.capture = Some(id);
    let capture = Capture {
        graph,
        origin,
        mode,
        thread: std::thread::current().id(),
        ops: Vec::new(),
        clocks: HashMap::new(),
        invalid: false,
    };
    state.captures.insert(id, capture);
    CUresult::SUCCESS
}

pub(crate) fn stream_end_capture(state: &mut State, on: Key, graph: Out<CUgraph>) -> CUresult {
    graph.set(CUgraph::NULL);
    let Some(id) = state.streams.get(&on).and_then(|stream| stream.capture) else {
        return CUresult::ERROR_ILLEGAL_STATE;
    };
    let Some(capture) = state.captures.get(&id) else {
        return CUresult::ERROR_ILLEGAL_STATE;
    };
    if capture.mode != CUstreamCaptureMode::RELAXED && capture.thread != std::thread::current().id()
    {
        return CUresult::ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    if capture.origin != on {
        state.invalidate(id);
        return CUresult::ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    let Some(capture) = state.captures.remove(&id) else {
        return CUresult::ERROR_ILLEGAL_STATE;
    };
    for stream in state.streams.values_mut() {
        if stream.capture == Some(id) {
            stream.capture = None;
        }
    }
    if capture.invalid {
        state.let_go_of(capture.graph);
        return CUresult::ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    let at = |clock: Option<&Clock>, of: Key| {
        let count = clock.and_then(|clock| clock.get(&of));
        count.copied().unwrap_or(0)
    };
    let joined = |(&stream, clock): (&Key, &Clock)| {
        at(Some(clock), stream) == at(capture.clocks.get(&on), stream)
    };
    if !capture.clocks.iter().all(joined) {
        state.let_go_of(capture.graph);
        return CUresult::ERROR_STREAM_CAPTURE_UNJOINED;
    }
    // A caller that is told of an error has no graph to destroy.
    if state.failing {
        state.let_go_of(capture.graph);
        return CUresult::SUCCESS;
    }
    let ops = capture.ops.into_iter().map(|(_, _, op)| op).collect();
    state.graphs.insert(capture.graph, ops);
    graph.set(CUgraph(std::ptr::without_provenance_mut(capture.graph)));
    CUresult::SUCCESS
}

pub(crate) fn stream_is_capturing(
    state: &mut State,
    on: Key,
    status: Out<CUstreamCaptureStatus>,
) -> CUresult {
    match state.capture_status(on) {
        Ok((found, _)) => {
            status.set(found);
            CUresult::SUCCESS
        }
        Err(code) => code,
    }
}

pub(crate) fn stream_get_capture_info(
    state: &mut State,
    on: Key,
    status: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    _dependencies: Out<*const CUgraphNode>,
    _num_dependencies: Out<usize>,
) -> CUresult {
    match state.capture_status(on) {
        Ok((found, capture)) => {
            status.set(found);
            if let Some(capture) = capture {
                id.set(capture as u64);
                if let Some(under_way) = state.captures.get(&capture) {
                    graph.set(CUgraph(std::ptr::without_provenance_mut(under_way.graph)));
                }
            }
            CUresult::SUCCESS
        }
        Err(code) => code,
    }
}

pub(crate) fn thread_exchange_stream_capture_mode(
    _state: &mut State,
    mode: Out<CUstreamCaptureMode>,
) -> CUresult {
    match mode.read(1).first() {
        Some(&new) if new.name().is_some() => {
            mode.set(MODE.replace(new));
            CUresult::SUCCESS
        }
        _ => CUresult::ERROR_INVALID_VALUE,
    }
}

pub(crate) fn stream_wait_event(
    state: &mut State,
    stream: Key,
    event: CUevent,
    _flags: c_uint,
) -> CUresult {
    let event = event.0.addr();
    let Some(recorded) = state.events.get(&event).filter(|event| !event.destroyed) else {
        return state.bad_handle("an event");
    };
    let (sequence, on) = (recorded.sequence, recorded.stream);
    if let Some((capture, point)) = recorded.capture.clone() {
        return state.wait_for_captured(stream, capture, &point);
    }
    if sequence == 0 {
        return CUresult::SUCCESS;
    }
    match state.streams.get(&stream).and_then(|queue| queue.capture) {
        Some(capture) => {
            // A graph cannot wait for what is outside of it.
            state.invalidate(capture);
            CUresult::ERROR_STREAM_CAPTURE_ISOLATION
        }
        None => state.push(
            stream,
            Op::Wait {
                event,
                sequence,
                on,
            },
        ),
    }
}
