//! Attention: the handle that a description is prepared to, and its runs.

use std::ffi::c_void;

use attention::cpu::raw;
use attention::gpu::Prepared;
use attention::spec::Call;

use crate::attention_desc::{AttentionDesc, AttentionMemory, call};
use crate::error::{Result, guarded};
use crate::host::parts;
use crate::machine::{OnGpu, Workspace, no_stream};
use crate::structs::{check_pointer, choice, flag, free, give, handle, read};

/// A description that was checked and prepared for a device. It never changes: any number of threads may use it at the same time.
#[derive(Debug)]
pub struct Attention {
    /// The lists of a call on the CPU are read at each run, so the call is rebuilt from this. Its `kernel` is null.
    desc: AttentionDesc,
    call: Call,
    /// `None` on the CPU.
    on: Option<OnGpu<Prepared>>,
}

/// Checks a description and prepares it for a device: plans, and loads the kernel if it is not loaded yet, which may take long. Gives a
/// handle, to be freed with warptile_attention_free.
///
/// `device` is the number of a GPU, or WARPTILE_CPU. A GPU is opened the first time, in its primary context, and stays open. A
/// description like one of the last 64 is found again without planning.
///
/// Returns WARPTILE_INVALID if the description breaks a rule, WARPTILE_NO_KERNEL if no kernel of the device can do it.
///
/// # Safety
/// `desc` is null, which is an error, or valid for reading `desc->size` bytes; `desc->kernel` is null or ends with a NUL. `attention`
/// is null, which is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_attention_prepare(
    device: i32,
    desc: *const AttentionDesc,
    attention: *mut *mut Attention,
) -> i32 {
    guarded(|| {
        check_pointer("attention", attention, align_of::<*mut Attention>())?;
        // SAFETY: the caller's promise.
        let mut desc = unsafe { read("desc", desc) }?;
        // SAFETY: there are no lists.
        let call = unsafe { call(&desc, None) }?;
        // SAFETY: the caller's promise.
        let choice = unsafe { choice(desc.kernel) }?;
        // The name lives no longer than this call.
        desc.kernel = std::ptr::null();
        let unchecked = flag("unchecked", desc.unchecked)?;
        let on = OnGpu::load(device, unchecked, |gpu| {
            let prepared = gpu.prepare(call.problem(), &choice)?;
            // So that no run takes longer than the others.
            prepared.make_ready(&call)?;
            Ok(prepared)
        })?;
        if on.is_none() {
            choice.check_on_cpu()?;
        }
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { give(attention, Attention { desc, call, on }) };
        Ok(())
    })
}

/// Bytes of device memory that every launch of the handle needs in addition to its tensors; 0 on the CPU and for many kernels.
///
/// # Safety
/// `attention` is null, which gives 0, or a handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_attention_workspace(attention: *const Attention) -> usize {
    // SAFETY: the caller's promise.
    let on = unsafe { attention.as_ref() }.and_then(|attention| attention.on.as_ref());
    on.map_or(0, |on| on.prepared.plan().scratch().bytes)
}

/// Computes.
///
/// On a GPU: submits the kernel to `stream`, a CUstream or cudaStream_t of the device's primary context, and returns. Null is the legacy
/// default stream. It allocates, copies, waits for and loads nothing, so it may be part of any capture; each replay reads the current
/// lengths, offsets and tables. On the CPU `stream` is null, and the result is there on return, computed by as many threads as there
/// are cores.
///
/// Lists that a GPU reads are not checked: the kernels clamp what they find. On the CPU they are.
///
/// # Safety
/// - `attention` is null, which is an error, or a handle that was not freed. `memory` is null, which is an error, or valid for reading
///   `memory->size` bytes.
/// - Each address reaches as far as the description says. It stays valid until the work, and every replay of a graph that captured
///   it, has ended. Meanwhile nothing else writes the inputs, or reads or writes the outputs; on the CPU, gaps between the rows of `out`
///   count as written.
/// - On a GPU, `stream` is a live stream. The kernels of a handle stay after it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_attention_run(
    attention: *const Attention,
    memory: *const AttentionMemory,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let attention = unsafe { handle("attention", attention) }?;
        // SAFETY: the caller's promise.
        let memory = unsafe { read("memory", memory) }?;
        let workspace = Workspace::new(memory.workspace, memory.workspace_bytes);
        let Some(on) = &attention.on else {
            no_stream(stream)?;
            workspace.expect_none()?;
            // SAFETY: the caller's promise.
            return unsafe { run_on_cpu(&attention.desc, &memory) };
        };
        let needed = on.prepared.plan().scratch().bytes;
        let workspace = workspace.of_at_least(needed, "warptile_attention_workspace")?;
        // SAFETY: the caller's promise; the workspace is large enough.
        unsafe { on.run(stream, &attention.call, &memory, workspace) }
    })
}

/// Frees a handle. Work that it has submitted goes on, and graphs that captured it may be replayed.
///
/// # Safety
/// `attention` is null, or a handle that was not freed and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_attention_free(attention: *mut Attention) {
    // SAFETY: the caller's promise.
    unsafe { free(attention) };
}

/// # Safety
/// As [`warptile_attention_run`] on the CPU.
unsafe fn run_on_cpu(desc: &AttentionDesc, memory: &AttentionMemory) -> Result<()> {
    // SAFETY: the caller's promise. The call has its own copies of the lists.
    let call = unsafe { call(desc, Some(memory)) }?;
    let parts = parts(memory, call.memory(), |operand| call.type_of(operand))?;
    // SAFETY: the caller's promise.
    Ok(unsafe { raw::forward(&call, &parts) }?)
}
