//! A foreign stream and the workspace for launches on it.

use std::marker::PhantomData;

use warptile_driver::sys::CUstream;
use warptile_driver::{Context, DevicePointer};

use crate::error::{Error, Result};
use crate::gpu::bindings::{Addresses, place};
use crate::gpu::operation::Operation;
use crate::gpu::{Gpu, Prepared};
use crate::plan::Scratch;

/// A raw stream of one thread, with the workspace of the launches that it runs one after the other.
///
/// It does not leave its thread, because the handle `CU_STREAM_PER_THREAD` (2) is another stream on each: a session for it
/// belongs to one thread as well. Make one session per thread and stream, before any capture begins; launches in a capture take
/// a session of their own, which no eager launch uses.
///
/// The workspace is freed with the device's context, which the session keeps: a graph that captured a launch may be replayed after
/// the session is gone, as long as something else keeps the context.
#[derive(Debug)]
pub struct Session {
    context: Context,
    stream: CUstream,
    workspace: DevicePointer,
    workspace_bytes: usize,
    /// Not `Send`.
    on_this_thread: PhantomData<*const ()>,
}

impl Session {
    /// A session for `stream`, with a workspace for every plan of attention that splits keys evenly. The workspace is allocated outside any
    /// capture that is under way, and this waits for it. Plans of gradients need [`with_scratch`](Session::with_scratch).
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn new(gpu: &Gpu, stream: CUstream) -> Result<Self> {
        Self::with_scratch(gpu, stream, Scratch::of_any_plan(gpu.profile()))
    }

    /// As [`Session::new`], for plans that need no more than this: the largest of their [`scratch`](crate::plan::Plan::scratch).
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn with_scratch(gpu: &Gpu, stream: CUstream, scratch: Scratch) -> Result<Self> {
        Ok(Session {
            context: gpu.context().clone(),
            stream,
            workspace: gpu.context().permanent_zeroed(scratch.bytes)?,
            workspace_bytes: scratch.bytes,
            on_this_thread: PhantomData,
        })
    }

    /// The stream.
    pub fn stream(&self) -> CUstream {
        self.stream
    }

    /// Submits a call to the stream.
    ///
    /// # Errors
    /// As [`Prepared::launch_raw`]; [`Error::SessionTooSmall`]; [`Error::DeviceMismatch`] if the session is of a different device than the
    /// kernels.
    ///
    /// # Safety
    /// As [`Prepared::launch_raw`], except for the workspace: no two graphs, and no graph and an eager launch, use the same
    /// session.
    pub unsafe fn launch<'a, O: Operation>(
        &self,
        prepared: &Prepared<O>,
        call: &O,
        addresses: impl Into<Addresses<'a>>,
    ) -> Result<()> {
        if !prepared.context().is_same(&self.context) {
            return Err(Error::DeviceMismatch {
                argument: "session",
                expected: place(prepared.context()),
                found: place(&self.context),
            });
        }
        let needed = prepared.scratch().bytes;
        if needed > self.workspace_bytes {
            return Err(Error::SessionTooSmall {
                needed,
                available: self.workspace_bytes,
            });
        }
        // SAFETY: the caller's promise; the workspace is of the context, large enough for the plan, zeroed, and this session's own.
        unsafe { prepared.launch_raw(self.stream, call, addresses, self.workspace) }
    }
}
