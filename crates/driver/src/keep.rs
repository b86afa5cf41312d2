//! Values that graphs of others keep: the driver tells when the last of them is over, and its launches with it.

use std::any::Any;
use std::ffi::c_void;

use warptile_cuda_sys::{
    CU_GRAPH_USER_OBJECT_MOVE, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CUgraph, CUuserObject,
};

use crate::context::Context;
use crate::driver::call;
use crate::error::Result;

/// The pointee of the pointer given to the driver, which has to be a thin one.
type Value = Box<dyn Any + Send>;

/// Drops a value that [`Context::keep_with_graph`] gave away.
///
/// # Safety
/// `value` is from there, and was not dropped before.
unsafe extern "system" fn drop_value(value: *mut c_void) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(value.cast::<Value>()) });
}

impl Context {
    /// Has a graph of somebody else's keep a value, such as the graph that a stream is being captured into
    /// (`cuStreamGetCaptureInfo` tells it). The value is dropped when that graph is gone, and those that it was instantiated,
    /// cloned or added to, and when their launches have ended. Breaks no capture.
    ///
    /// A thread of the driver's drops it.
    ///
    /// # Errors
    /// The driver's error; the value has been dropped then.
    ///
    /// # Safety
    /// - `graph` is a graph of this driver's, and no other thread uses it meanwhile.
    /// - Dropping the value calls no function of CUDA, and waits for no thread that may be calling one.
    pub unsafe fn keep_with_graph(&self, graph: CUgraph, value: Box<dyn Any + Send>) -> Result<()> {
        let operation = "having a graph keep something";
        let mut object = CUuserObject::NULL;
        let pointer: *mut Value = Box::into_raw(Box::new(value));
        // SAFETY: `object` outlives the call; the driver hands the pointer to `drop_value` once, if this succeeds.
        let created = unsafe {
            call!(
                self,
                operation,
                user_object_create(
                    &mut object,
                    pointer.cast(),
                    drop_value,
                    1,
                    CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
                )
            )
        };
        if created.is_err() {
            // SAFETY: made above, and not shared.
            unsafe { drop_value(pointer.cast()) };
            return created;
        }
        // SAFETY: the graph is the caller's promise, and the one reference becomes its own.
        let kept = unsafe {
            call!(
                self,
                operation,
                graph_retain_user_object(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE)
            )
        };
        if kept.is_err() {
            // SAFETY: the reference is still ours. The driver drops the value.
            let released = unsafe { call!(self, operation, user_object_release(object, 1)) };
            return kept.and(released);
        }
        Ok(())
    }
}
