//! Why which kernel.

use std::ffi::c_char;

use attention::plan::{Choice, DeviceProfile, Plan};
use attention::spec::Problem;

use crate::attention_desc::{AttentionDesc, call};
use crate::error::{Result, guarded};
use crate::machine::Machine;
use crate::structs::{check_pointer, choice, name, read};

/// Says which kernel would compute a description on a device, and why no other: some lines of text. Computes and loads nothing. `device`
/// is as for warptile_attention_prepare. If `gpu` is not null, it names a GPU that need not be there, such as "h200", "rtx4090" or "8.6",
/// in place of `device`.
///
/// Writes at most `capacity` bytes, the last one a NUL, and to `needed` the bytes that the whole text takes with its NUL.
/// `text` may be null if `capacity` is 0, and `needed` may be null.
///
/// # Safety
/// `desc` as for warptile_attention_prepare; `gpu` is null or ends with a NUL; `text` is valid for writing `capacity` bytes, `needed` for writing, unless they are null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_explain(
    device: i32,
    gpu: *const c_char,
    desc: *const AttentionDesc,
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    let explain = || {
        // SAFETY: the caller's promise.
        let desc = unsafe { read("desc", desc) }?;
        // SAFETY: the caller's promise; lists are absent.
        let (call, choice) = unsafe { (call(&desc, None)?, choice(desc.kernel)?) };
        // SAFETY: the caller's promise.
        let gpu = unsafe { name("gpu", gpu) }?;
        Ok(plan(device, gpu.as_deref(), call.problem(), &choice)?.explain())
    };
    // SAFETY: the caller's promise.
    unsafe { write(text, capacity, needed, explain) }
}

/// Writes a text as warptile_explain does.
///
/// # Safety
/// `text` is valid for writing `capacity` bytes, `needed` for writing, unless they are null.
pub(crate) unsafe fn write(
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
    words: impl FnOnce() -> Result<String>,
) -> i32 {
    guarded(|| {
        if capacity != 0 {
            check_pointer("text", text, 1)?;
        }
        if !needed.is_null() {
            check_pointer("needed", needed, align_of::<usize>())?;
        }
        let words = words()?.replace('\0', "");
        // SAFETY: not null where something is written, aligned, and valid by the caller's promise; `written` is below `capacity`.
        unsafe {
            if let Some(room) = capacity.checked_sub(1) {
                let written = fitting(&words, room);
                std::ptr::copy_nonoverlapping(words.as_ptr(), text.cast::<u8>(), written);
                text.add(written).write(0);
            }
            if !needed.is_null() {
                needed.write(words.len() + 1);
            }
        }
        Ok(())
    })
}

pub(crate) fn plan(
    device: i32,
    gpu: Option<&str>,
    problem: Problem,
    choice: &Choice,
) -> Result<Plan> {
    if let Some(gpu) = gpu {
        return Ok(Plan::gpu(problem, &DeviceProfile::named(gpu)?, choice)?);
    }
    match Machine::of(device)? {
        Machine::Cpu => {
            choice.check_on_cpu()?;
            Ok(Plan::cpu(problem))
        }
        Machine::Gpu(gpu) => Ok(gpu.plan(problem, choice)?),
    }
}

/// The most bytes of a text, up to `room`, that do not end within a character.
fn fitting(text: &str, room: usize) -> usize {
    (0..=room.min(text.len()))
        .rev()
        .find(|&len| text.is_char_boundary(len))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_character_is_cut() {
        assert_eq!(
            [0, 1, 2, 3, 9].map(|room| super::fitting("aµb", room)),
            [0, 1, 1, 3, 4]
        );
    }
}
