//! Things of users that graphs keep.

use std::ffi::{c_uint, c_void};

use warptile_cuda_sys::*;

use crate::argument::Out;
use crate::state::State;

/// Something that is destroyed when the last reference to it is gone.
pub(crate) struct UserObject {
    /// Exposed: a pointer would not be `Send`.
    pointer: usize,
    destroy: CUhostFn,
    references: u32,
}

impl State {
    /// Gives references back, one each.
    pub(crate) fn let_go(&mut self, objects: Vec<usize>) {
        for id in objects {
            let Some(object) = self.user_objects.get_mut(&id) else {
                continue;
            };
            object.references = object.references.saturating_sub(1);
            if object.references > 0 {
                continue;
            }
            if let Some(object) = self.user_objects.remove(&id) {
                // SAFETY: the caller of `user_object_create` said that this destroys it. It may not come back here.
                unsafe { (object.destroy)(std::ptr::with_exposed_provenance_mut(object.pointer)) };
            }
        }
    }

    /// Gives back what a graph kept.
    pub(crate) fn let_go_of(&mut self, graph: usize) {
        let kept = self.kept.remove(&graph).unwrap_or_default();
        self.let_go(kept);
    }

    /// Has one graph keep what another does.
    pub(crate) fn keep_as(&mut self, of: usize, graph: usize) {
        let kept = self.kept.get(&of).cloned().unwrap_or_default();
        for id in &kept {
            if let Some(object) = self.user_objects.get_mut(id) {
                object.references += 1;
            }
        }
        if !kept.is_empty() {
            self.kept.insert(graph, kept);
        }
    }
}

pub(crate) fn user_object_create(
    state: &mut State,
    object: Out<CUuserObject>,
    pointer: Out<c_void>,
    destroy: CUhostFn,
    references: c_uint,
    flags: c_uint,
) -> CUresult {
    if references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC {
        return CUresult::ERROR_INVALID_VALUE;
    }
    let id = state.new_id();
    let made = UserObject {
        pointer: pointer.address() as usize,
        destroy,
        references,
    };
    state.user_objects.insert(id, made);
    object.set(CUuserObject(std::ptr::without_provenance_mut(id)));
    CUresult::SUCCESS
}

pub(crate) fn user_object_release(
    state: &mut State,
    object: CUuserObject,
    references: c_uint,
) -> CUresult {
    let id = object.0.addr();
    match state.user_objects.get(&id) {
        Some(known) if known.references >= references => {
            state.let_go(vec![id; references as usize]);
            CUresult::SUCCESS
        }
        _ => state.bad_handle("a user object"),
    }
}

pub(crate) fn graph_retain_user_object(
    state: &mut State,
    graph: CUgraph,
    object: CUuserObject,
    references: c_uint,
    flags: c_uint,
) -> CUresult {
    let (graph, id) = (graph.0.addr(), object.0.addr());
    if !state.graphs.contains_key(&graph) && !state.is_being_captured(graph) {
        return state.bad_handle("a graph");
    }
    let Some(known) = state.user_objects.get_mut(&id) else {
        return state.bad_handle("a user object");
    };
    if flags != CU_GRAPH_USER_OBJECT_MOVE {
        known.references += references;
    }
    let kept = state.kept.entry(graph).or_default();
    kept.extend(std::iter::repeat_n(id, references as usize));
    CUresult::SUCCESS
}
