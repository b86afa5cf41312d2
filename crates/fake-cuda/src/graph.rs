//! Graphs: lists of operations, and their launches.

use warptile_cuda_sys::*;

use crate::argument::{In, Out};
use crate::control::FakeLaunch;
use crate::event::Event;
use crate::module::launch_op;
use crate::queue::Op;
use crate::state::State;
use crate::stream::Key;

/// A graph ready to launch.
pub(crate) struct Exec {
    ops: Vec<Op>,
    /// Recorded after each launch: the next one waits for it, on any stream.
    ended: usize,
}

pub(crate) fn graph_create(
    state: &mut State,
    graph: Out<CUgraph>,
    _flags: std::ffi::c_uint,
) -> CUresult {
    let id = state.new_id();
    state.graphs.insert(id, Vec::new());
    graph.set(CUgraph(std::ptr::without_provenance_mut(id)));
    CUresult::SUCCESS
}

/// A node is known by its place in its graph, counted from 1, as null is none.
pub(crate) fn graph_add_kernel_node(
    state: &mut State,
    node: Out<CUgraphNode>,
    graph: CUgraph,
    _after: In<CUgraphNode>,
    _after_count: usize,
    params: In<CUkernelNodeParams>,
) -> CUresult {
    let op = match kernel_node(state, &params) {
        Ok(op) => op,
        Err(code) => return code,
    };
    let Some(ops) = state.graphs.get_mut(&graph.0.addr()) else {
        return state.bad_handle("a graph");
    };
    ops.push(op);
    node.set(CUgraphNode(std::ptr::without_provenance_mut(ops.len())));
    CUresult::SUCCESS
}

pub(crate) fn graph_exec_kernel_node_set_params(
    state: &mut State,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: In<CUkernelNodeParams>,
) -> CUresult {
    let op = match kernel_node(state, &params) {
        Ok(op) => op,
        Err(code) => return code,
    };
    let Some(exec) = state.execs.get_mut(&exec.0.addr()) else {
        return state.bad_handle("an executable graph");
    };
    match exec.ops.get_mut(node.0.addr().wrapping_sub(1)) {
        Some(known) => *known = op,
        None => return state.bad_handle("a node"),
    }
    CUresult::SUCCESS
}

/// The launch of a node.
fn kernel_node(state: &mut State, params: &In<CUkernelNodeParams>) -> Result<Op, CUresult> {
    let node = params.first();
    let launch = FakeLaunch::new(node.grid_dim, node.block_dim, node.shared_mem_bytes);
    // SAFETY: the caller passes a pointer to each parameter of the kernel.
    let params = unsafe { Out::new(node.kernel_params) };
    launch_op(state, node.function, launch, &params)
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
    state.keep_as(graph.0.addr(), id);
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
    let Some(destroyed) = state.execs.remove(&exec.0.addr()) else {
        return state.bad_handle("an executable graph");
    };
    // The values it kept are released after its last launch.
    match state.events.get(&destroyed.ended) {
        Some(event) if event.done < event.sequence => {
            let (on, kept) = (event.stream, state.kept.remove(&exec.0.addr()));
            state.push(on, Op::LetGo(kept.unwrap_or_default()))
        }
        _ => {
            state.let_go_of(exec.0.addr());
            CUresult::SUCCESS
        }
    }
}

pub(crate) fn graph_destroy(state: &mut State, graph: CUgraph) -> CUresult {
    match state.graphs.remove(&graph.0.addr()) {
        Some(_) => {
            state.let_go_of(graph.0.addr());
            CUresult::SUCCESS
        }
        None => state.bad_handle("a graph"),
    }
}
