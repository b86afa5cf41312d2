//! Graphs: lists of operations, and their launches.

use warptile_cuda_sys::*;

use crate::argument::Out;
use crate::event::Event;
use crate::queue::Op;
use crate::state::State;
use crate::stream::Key;

/// A graph ready to launch.
pub(crate) struct Exec {
    ops: Vec<Op>,
    /// Recorded after each launch: the next one waits for it, whatever stream it is on.
    ended: usize,
}

pub(crate) fn graph_instantiate_with_flags(
    state: &mut State,
    exec: Out<CUgraphExec>,
    graph: CUgraph,
    _flags: u64,
) -> CUresult {
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    let Some(ops) = state.graphs.get(&graph.0.addr()).cloned() else {
        return state.bad_handle("a graph");
    };
    let context = match state.current() {
        Ok(context) => context,
        Err(code) => return code,
    };
    let (id, ended) = (state.new_id(), state.new_id());
    state.events.insert(ended, Event::internal(context));
    state.execs.insert(id, Exec { ops, ended });
    exec.set(CUgraphExec(std::ptr::without_provenance_mut(id)));
    CUresult::SUCCESS
}

pub(crate) fn graph_launch(state: &mut State, exec: CUgraphExec, on: Key) -> CUresult {
    let Some(launched) = state.execs.get(&exec.0.addr()) else {
        return state.bad_handle("an executable graph");
    };
    let (mut ops, ended) = (launched.ops.clone(), launched.ended);
    // In a capture the graph becomes part of another one.
    if !state.is_capturing(on)
        && let Some(event) = state.events.get_mut(&ended)
    {
        // One launch of a graph after the other: the hardware has one set of its nodes.
        let wait = Op::Wait {
            event: ended,
            sequence: event.sequence,
            on: event.stream,
        };
        event.sequence += 1;
        event.stream = on;
        let record = Op::Record {
            event: ended,
            sequence: event.sequence,
        };
        ops.insert(0, wait);
        ops.push(record);
    }
    for op in ops {
        let code = state.push(on, op);
        if code != CUresult::SUCCESS {
            return code;
        }
    }
    CUresult::SUCCESS
}

pub(crate) fn graph_exec_destroy(state: &mut State, exec: CUgraphExec) -> CUresult {
    if let Err(code) = state.disturb_captures() {
        return code;
    }
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
