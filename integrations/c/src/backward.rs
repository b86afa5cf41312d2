//! Gradients: the handle that a description is prepared to, and its runs.

use std::ffi::c_void;

use attention::cpu::raw;
use attention::gpu::Prepared;
use attention::spec::Backward as Description;

use crate::attention_desc::{AttentionDesc, call};
use crate::backward_desc::{BackwardDesc, BackwardMemory, Together, backward};
use crate::error::{Result, guarded};
use crate::host::parts;
use crate::machine::{OnGpu, Workspace, no_stream};
use crate::structs::{check_pointer, choice, flag, free, give, handle, read};

/// Gradients that were checked and prepared for a device. They never change: any number of threads may use them at the same time.
#[derive(Debug)]
pub struct Backward {
    /// As in a handle of attention: the lists of a call on the CPU are read at each run. Its pointers are null.
    desc: BackwardDesc,
    of: AttentionDesc,
    description: Description,
    /// `None` on the CPU.
    on: Option<OnGpu<Prepared<Description>>>,
}

/// Checks a description of gradients and prepares it for a device, as warptile_attention_prepare does. The handle is freed with
/// warptile_backward_free.
///
/// # Safety
/// `desc` is null, which is an error, or valid for reading `desc->size` bytes; likewise `desc->attention`; `desc->kernel` is null or ends
/// with a NUL. `backward` is null, which is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_backward_prepare(
    device: i32,
    desc: *const BackwardDesc,
    backward: *mut *mut Backward,
) -> i32 {
    guarded(|| {
        check_pointer("backward", backward, align_of::<*mut Backward>())?;
        // SAFETY: the caller's promise.
        let mut desc = unsafe { read("desc", desc) }?;
        // SAFETY: the caller's promise.
        let mut of = unsafe { read("attention", desc.attention) }?;
        // SAFETY: there are no lists.
        let description = crate::backward_desc::backward(&desc, unsafe { call(&of, None) }?)?;
        // SAFETY: the caller's promise.
        let choice = unsafe { choice(desc.kernel) }?;
        // The pointers live no longer than this call.
        (desc.attention, desc.kernel) = (std::ptr::null(), std::ptr::null());
        of.kernel = std::ptr::null();
        let on = OnGpu::load(device, flag("unchecked", desc.unchecked)?, |gpu| {
            gpu.prepare_for(&description, &choice)
        })?;
        if on.is_none() {
            choice.check_on_cpu()?;
        }
        let made = Backward {
            desc,
            of,
            description,
            on,
        };
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { give(backward, made) };
        Ok(())
    })
}

/// Bytes of device memory that every launch of the handle needs in addition to its tensors; 0 on the CPU.
///
/// # Safety
/// `backward` is null, which gives 0, or a handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_backward_workspace(backward: *const Backward) -> usize {
    // SAFETY: the caller's promise.
    let on = unsafe { backward.as_ref() }.and_then(|backward| backward.on.as_ref());
    on.map_or(0, |on| on.prepared.scratch().bytes)
}

/// Computes the gradients. Streams, captures and the CPU work as with warptile_attention_run. The same inputs give the same bits.
///
/// # Safety
/// As warptile_attention_run, for the memory of the computation, too: its output and lse are inputs here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_backward_run(
    backward: *const Backward,
    memory: *const BackwardMemory,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let backward = unsafe { handle("backward", backward) }?;
        // SAFETY: the caller's promise.
        let memory = unsafe { Together::of(read("memory", memory)?) }?;
        let workspace = Workspace::new(memory.own.workspace, memory.own.workspace_bytes);
        let Some(on) = &backward.on else {
            no_stream(stream)?;
            workspace.expect_none()?;
            // SAFETY: the caller's promise.
            return unsafe { run_on_cpu(backward, &memory) };
        };
        let workspace =
            workspace.of_at_least(on.prepared.scratch().bytes, "warptile_backward_workspace")?;
        // SAFETY: the caller's promise; the workspace is large enough.
        unsafe { on.run(stream, &backward.description, &memory, workspace) }
    })
}

/// Frees a handle, as warptile_attention_free does.
///
/// # Safety
/// As warptile_attention_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_backward_free(backward: *mut Backward) {
    // SAFETY: the caller's promise.
    unsafe { free(backward) };
}

/// # Safety
/// As [`warptile_backward_run`] on the CPU.
unsafe fn run_on_cpu(handle: &Backward, memory: &Together) -> Result<()> {
    // SAFETY: the caller's promise. The call has its own copies of the lists.
    let call = unsafe { call(&handle.of, Some(&memory.attention)) }?;
    let description = backward(&handle.desc, call)?;
    let parts = parts(memory, description.memory(), |operand| {
        match operand.gradient_of() {
            Some(_) => Some(description.type_of(operand)),
            None => description.call().type_of(operand),
        }
    })?;
    // SAFETY: the caller's promise.
    Ok(unsafe { raw::backward(&description, &parts) }?)
}
