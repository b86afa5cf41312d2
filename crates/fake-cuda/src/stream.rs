//! Streams.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};

use warptile_cuda_sys::*;

use crate::argument::Out;
use crate::queue::Op;
use crate::state::State;

pub(crate) struct Stream {
    pub(crate) context: CUcontext,
    pub(crate) ops: VecDeque<Op>,
    /// The capture the stream is in.
    pub(crate) capture: Option<usize>,
}

/// The handle's number.
pub(crate) fn id(stream: CUstream) -> usize {
    stream.0.addr()
}

pub(crate) fn stream_create_with_priority(
    state: &mut State,
    stream: Out<CUstream>,
    _flags: c_uint,
    _priority: c_int,
) -> CUresult {
    let context = match state.current() {
        Ok(context) => context,
        Err(code) => return code,
    };
    let id = state.new_id();
    state.streams.insert(
        id,
        Stream {
            context,
            ops: VecDeque::new(),
            capture: None,
        },
    );
    stream.set(CUstream(std::ptr::without_provenance_mut(id)));
    CUresult::SUCCESS
}

pub(crate) fn stream_destroy(state: &mut State, stream: CUstream) -> CUresult {
    // Work still queued is finished, as the real driver does in the background.
    state.run(id(stream), None);
    match state.streams.remove(&id(stream)) {
        Some(_) => CUresult::SUCCESS,
        None => state.bad_handle("a stream"),
    }
}

/// Waiting for a stream in a capture breaks the capture.
fn waitable(state: &mut State, stream: CUstream) -> Result<(), CUresult> {
    match state.streams.get(&id(stream)).map(|stream| stream.capture) {
        Some(None) => Ok(()),
        Some(Some(capture)) => {
            if let Some(capture) = state.captures.get_mut(&capture) {
                capture.invalid = true;
            }
            Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Err(state.bad_handle("a stream")),
    }
}

pub(crate) fn stream_query(state: &mut State, stream: CUstream) -> CUresult {
    if let Err(code) = waitable(state, stream) {
        return code;
    }
    let idle = state
        .streams
        .get(&id(stream))
        .is_some_and(|stream| stream.ops.is_empty());
    state.step(id(stream));
    match state.lost {
        Some(code) => code,
        None if idle => CUresult::SUCCESS,
        None => CUresult::ERROR_NOT_READY,
    }
}

pub(crate) fn stream_synchronize(state: &mut State, stream: CUstream) -> CUresult {
    if let Err(code) = waitable(state, stream) {
        return code;
    }
    state.run(id(stream), None);
    state.trim_pools();
    state.lost.unwrap_or(CUresult::SUCCESS)
}

pub(crate) fn stream_get_ctx(
    state: &mut State,
    stream: CUstream,
    context: Out<CUcontext>,
) -> CUresult {
    match state.streams.get(&id(stream)) {
        Some(stream) => {
            context.set(stream.context);
            CUresult::SUCCESS
        }
        None => state.bad_handle("a stream"),
    }
}

pub(crate) fn stream_wait_event(
    state: &mut State,
    stream: CUstream,
    event: CUevent,
    _flags: c_uint,
) -> CUresult {
    let event = event.0.addr();
    let Some(recorded) = state.events.get(&event).filter(|event| !event.destroyed) else {
        return state.bad_handle("an event");
    };
    let (sequence, capture) = (recorded.sequence, recorded.capture);
    let Some(queue) = state.streams.get_mut(&id(stream)) else {
        return state.bad_handle("a stream");
    };
    // Waiting for a captured event takes the waiting stream into the capture.
    if capture.is_some() {
        queue.capture = capture;
        return CUresult::SUCCESS;
    }
    if sequence == 0 {
        return CUresult::SUCCESS;
    }
    state.push(id(stream), Op::Wait { event, sequence })
}
