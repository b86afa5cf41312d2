//! Streams, the default ones included.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicUsize, Ordering};

use warptile_cuda_sys::*;

use crate::argument::Out;
use crate::queue::Op;
use crate::state::State;

/// The key of a stream: its handle's number, except for default streams: every context has one for all threads and
/// one for each thread.
pub(crate) type Key = usize;

pub(crate) struct Stream {
    pub(crate) context: CUcontext,
    /// The queued operations, each with its place among all operations ever queued.
    pub(crate) ops: VecDeque<(u64, Op)>,
    /// The capture the stream is in.
    pub(crate) capture: Option<usize>,
    /// True if the legacy default stream waits for it, and it for that.
    pub(crate) blocking: bool,
    pub(crate) kind: StreamKind,
    /// Its handle is none any more; what is queued still runs.
    pub(crate) destroyed: bool,
}

/// Where a stream comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Somebody created it and destroys it.
    Created,
    /// The context's legacy default stream.
    Legacy,
    /// A thread's default stream in the context.
    OfThread,
}

thread_local! {
    /// The calling thread's number, from 1.
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(1);
    THREAD.with(|number| {
        if number.get() == 0 {
            number.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// The stream that a handle names on this thread; a key of no stream if no context is current.
pub(crate) fn key_of(state: &mut State, stream: CUstream) -> Key {
    let (thread, kind) = match stream {
        CUstream::NULL | CUstream::LEGACY => (0, StreamKind::Legacy),
        CUstream::PER_THREAD => (thread_number(), StreamKind::OfThread),
        CUstream(handle) => {
            let key = handle.addr();
            let destroyed = |stream: &Stream| stream.destroyed;
            return if state.streams.get(&key).is_some_and(destroyed) {
                0
            } else {
                key
            };
        }
    };
    let context = crate::device::current_context();
    if context.is_null() {
        return 0;
    }
    if let Some(&key) = state.default_streams.get(&(context, thread)) {
        return key;
    }
    let key = state.new_id();
    state.default_streams.insert((context, thread), key);
    state.streams.insert(key, Stream::new(context, true, kind));
    key
}

impl Stream {
    fn new(context: CUcontext, blocking: bool, kind: StreamKind) -> Stream {
        Stream {
            context,
            ops: VecDeque::new(),
            capture: None,
            blocking,
            kind,
            destroyed: false,
        }
    }
}

pub(crate) fn stream_create_with_priority(
    state: &mut State,
    stream: Out<CUstream>,
    flags: c_uint,
    _priority: c_int,
) -> CUresult {
    let context = match state.current() {
        Ok(context) => context,
        Err(code) => return code,
    };
    let id = state.new_id();
    let blocking = flags & CU_STREAM_NON_BLOCKING == 0;
    let created = Stream::new(context, blocking, StreamKind::Created);
    state.streams.insert(id, created);
    stream.set(CUstream(std::ptr::without_provenance_mut(id)));
    CUresult::SUCCESS
}

pub(crate) fn stream_destroy(state: &mut State, stream: Key) -> CUresult {
    let Some(queue) = state.streams.get_mut(&stream) else {
        return state.bad_handle("a stream");
    };
    // Work still queued stays so: the real driver finishes it in the background, some time or other.
    queue.destroyed = true;
    if let Some(id) = queue.capture {
        state.violation("a stream was destroyed within a capture".into());
        state.invalidate(id);
    }
    CUresult::SUCCESS
}

/// Waiting for a stream in a capture breaks the capture.
fn waitable(state: &mut State, stream: Key) -> Result<(), CUresult> {
    match state.streams.get(&stream).map(|stream| stream.capture) {
        Some(None) => Ok(()),
        Some(Some(capture)) => {
            state.invalidate(capture);
            Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Err(state.bad_handle("a stream")),
    }
}

pub(crate) fn stream_query(state: &mut State, stream: Key) -> CUresult {
    if let Err(code) = waitable(state, stream).and_then(|()| state.disturb_captures()) {
        return code;
    }
    let idle = state
        .streams
        .get(&stream)
        .is_some_and(|stream| stream.ops.is_empty());
    state.step(stream);
    match state.lost {
        Some(code) => code,
        None if idle => CUresult::SUCCESS,
        None => CUresult::ERROR_NOT_READY,
    }
}

pub(crate) fn stream_synchronize(state: &mut State, stream: Key) -> CUresult {
    if let Err(code) = waitable(state, stream).and_then(|()| state.disturb_captures()) {
        return code;
    }
    state.run(stream, None);
    state.trim_pools();
    state.lost.unwrap_or(CUresult::SUCCESS)
}

pub(crate) fn stream_get_ctx(state: &mut State, stream: Key, context: Out<CUcontext>) -> CUresult {
    match state.streams.get(&stream) {
        Some(stream) => {
            context.set(stream.context);
            CUresult::SUCCESS
        }
        None => state.bad_handle("a stream"),
    }
}

/// Documented nowhere, but seen on an H200 with driver 580.159: asked of a stream in a capture, it fails and breaks
/// the capture, in every mode.
pub(crate) fn stream_get_id(state: &mut State, stream: Key, id: Out<u64>) -> CUresult {
    match waitable(state, stream) {
        Ok(()) => {
            id.set(stream as u64);
            CUresult::SUCCESS
        }
        Err(code) => code,
    }
}
