//! New keys and values, written into a cache.

use std::ffi::c_void;

use attention::cpu::raw;
use attention::gpu::Prepared;
use attention::spec::Append as Checked;

use crate::append_desc::{AppendDesc, AppendMemory, rotation, write};
use crate::error::{Result, guarded};
use crate::host::parts;
use crate::machine::{OnGpu, no_stream};
use crate::structs::{check_pointer, flag, free, give, handle, read};

/// A write that was checked and prepared for a device. It never changes: any number of threads may use it at the same time.
#[derive(Debug)]
pub struct Append {
    /// The lists of a write on the CPU are read at each run, so it is described again. Its `rotary_frequencies` are null.
    desc: AppendDesc,
    append: Checked,
    /// `None` on the CPU.
    on: Option<OnGpu<Prepared<Checked>>>,
}

/// Checks a write and prepares it for a device, as warptile_attention_prepare does. The handle is freed with warptile_append_free.
///
/// # Safety
/// `desc` is null, which is an error, or valid for reading `desc->size` bytes; frequencies are as many as it says. `append` is null, which
/// is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_append_prepare(
    device: i32,
    desc: *const AppendDesc,
    append: *mut *mut Append,
) -> i32 {
    guarded(|| {
        check_pointer("append", append, align_of::<*mut Append>())?;
        // SAFETY: the caller's promise.
        let mut desc = unsafe { read("desc", desc) }?;
        // SAFETY: the caller's promise.
        let rotary = unsafe { rotation(&desc) }?;
        // They live no longer than this call.
        desc.rotary_frequencies = std::ptr::null();
        // SAFETY: lists are absent.
        let checked = unsafe { write(&desc, rotary.as_ref(), None) }?;
        let unchecked = flag("unchecked", desc.unchecked)?;
        let on = OnGpu::load(device, unchecked, |gpu| gpu.prepare_append(checked.types()))?;
        let made = Append {
            desc,
            append: checked,
            on,
        };
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { give(append, made) };
        Ok(())
    })
}

/// Writes the rows. Streams, captures and the CPU work as with warptile_attention_run. Nothing outside of the cache is ever written,
/// even if numbers on a device are invalid.
///
/// # Safety
/// As warptile_attention_run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_append_run(
    append: *const Append,
    memory: *const AppendMemory,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let append = unsafe { handle("append", append) }?;
        // SAFETY: the caller's promise.
        let memory = unsafe { read("memory", memory) }?;
        let Some(on) = &append.on else {
            no_stream(stream)?;
            // SAFETY: the caller's promise.
            return unsafe { run_on_cpu(append, &memory) };
        };
        // SAFETY: the caller's promise.
        unsafe { on.run(stream, &append.append, &memory, 0) }
    })
}

/// Frees a handle, as warptile_attention_free does.
///
/// # Safety
/// `append` is null, or a handle that was not freed and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_append_free(append: *mut Append) {
    // SAFETY: the caller's promise.
    unsafe { free(append) };
}

/// # Safety
/// As [`warptile_append_run`] on the CPU.
unsafe fn run_on_cpu(append: &Append, memory: &AppendMemory) -> Result<()> {
    // SAFETY: the caller's promise. The write has its own copies of the lists.
    let append = unsafe { write(&append.desc, append.append.rotary(), Some(memory)) }?;
    let parts = parts(memory, append.memory(), |operand| append.type_of(operand))?;
    // SAFETY: the caller's promise.
    Ok(unsafe { raw::append(&append, &parts) }?)
}
