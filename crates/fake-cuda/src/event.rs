//! Events.

use std::ffi::c_uint;

use warptile_cuda_sys::*;

use crate::argument::Out;
use crate::capture::Clock;
use crate::queue::Op;
use crate::state::State;
use crate::stream::Key;

pub(crate) struct Event {
    context: CUcontext,
    timed: bool,
    /// How often it was recorded.
    pub(crate) sequence: u64,
    /// The last record that has run.
    pub(crate) done: u64,
    /// When it ran, in microseconds.
    pub(crate) time: f64,
    /// Where it was last recorded.
    pub(crate) stream: Key,
    /// The capture it was last recorded in, and the point in it.
    pub(crate) capture: Option<(usize, Clock)>,
    /// Destroyed events are still waited for by what was queued before.
    pub(crate) destroyed: bool,
}

impl Event {
    fn new(context: CUcontext, timed: bool) -> Event {
        Event {
            context,
            timed,
            sequence: 0,
            done: 0,
            time: 0.0,
            stream: 0,
            capture: None,
            destroyed: false,
        }
    }

    /// An internal event, whose handle is never handed out.
    pub(crate) fn internal(context: CUcontext) -> Event {
        Event {
            destroyed: true,
            ..Event::new(context, false)
        }
    }
}

fn live(state: &mut State, event: CUevent) -> Option<&mut Event> {
    state
        .events
        .get_mut(&event.0.addr())
        .filter(|event| !event.destroyed)
}

pub(crate) fn event_create(state: &mut State, event: Out<CUevent>, flags: c_uint) -> CUresult {
    let context = match state.current() {
        Ok(context) => context,
        Err(code) => return code,
    };
    let id = state.new_id();
    let timed = flags & CU_EVENT_DISABLE_TIMING == 0;
    state.events.insert(id, Event::new(context, timed));
    event.set(CUevent(std::ptr::without_provenance_mut(id)));
    CUresult::SUCCESS
}

pub(crate) fn event_destroy(state: &mut State, event: CUevent) -> CUresult {
    match live(state, event) {
        Some(event) => {
            event.destroyed = true;
            CUresult::SUCCESS
        }
        None => state.bad_handle("an event"),
    }
}

pub(crate) fn event_record(state: &mut State, event: CUevent, on: Key) -> CUresult {
    let Some(queue) = state.streams.get(&on) else {
        return state.bad_handle("a stream");
    };
    let context = queue.context;
    let capture = queue
        .capture
        .map(|capture| (capture, state.captured_point(capture, on)));
    let Some(recorded) = live(state, event) else {
        return state.bad_handle("an event");
    };
    if recorded.context != context {
        return CUresult::ERROR_INVALID_HANDLE;
    }
    recorded.capture = capture;
    if recorded.capture.is_some() {
        return CUresult::SUCCESS;
    }
    recorded.sequence += 1;
    recorded.stream = on;
    let sequence = recorded.sequence;
    let event = event.0.addr();
    state.push(on, Op::Record { event, sequence })
}

pub(crate) fn event_query(state: &mut State, event: CUevent) -> CUresult {
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    let Some(recorded) = live(state, event) else {
        return state.bad_handle("an event");
    };
    if recorded.capture.is_some() {
        return CUresult::ERROR_CAPTURED_EVENT;
    }
    let (pending, on) = (recorded.done < recorded.sequence, recorded.stream);
    if pending {
        state.step(on);
    }
    match state.lost {
        Some(code) => code,
        None if pending => CUresult::ERROR_NOT_READY,
        None => CUresult::SUCCESS,
    }
}

pub(crate) fn event_synchronize(state: &mut State, event: CUevent) -> CUresult {
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    let id = event.0.addr();
    let Some(recorded) = live(state, event) else {
        return state.bad_handle("an event");
    };
    if recorded.capture.is_some() {
        return CUresult::ERROR_CAPTURED_EVENT;
    }
    if recorded.done < recorded.sequence {
        let (on, sequence) = (recorded.stream, recorded.sequence);
        state.run(on, Some((id, sequence)));
    }
    state.trim_pools();
    state.lost.unwrap_or(CUresult::SUCCESS)
}

pub(crate) fn event_elapsed_time(
    state: &mut State,
    milliseconds: Out<f32>,
    start: CUevent,
    end: CUevent,
) -> CUresult {
    let mut times = [0.0; 2];
    for (time, event) in times.iter_mut().zip([start, end]) {
        let Some(event) = live(state, event) else {
            return state.bad_handle("an event");
        };
        if !event.timed || event.sequence == 0 {
            return CUresult::ERROR_INVALID_HANDLE;
        }
        if event.done < event.sequence {
            return CUresult::ERROR_NOT_READY;
        }
        *time = event.time;
    }
    milliseconds.set(((times[1] - times[0]) / 1e3) as f32);
    CUresult::SUCCESS
}
