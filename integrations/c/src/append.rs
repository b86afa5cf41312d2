//! New keys and values, written into a cache.

use std::ffi::c_void;

use attention::gpu::PreparedAppend;
use attention::{
    Append as Checked, AppendOperands, CacheMut, CacheOperand, Element, ElementType,
    Layout as Strided, QueriesMut, Tables, append_cpu,
};
use half::{bf16, f16};

use crate::append_call::{rotation, tables, write};
use crate::append_desc::{AppendDesc, AppendMemory};
use crate::error::{Failure, Result, guarded};
use crate::host::{Part, Place, check_apart, scale_places, scales_on_host};
use crate::machine::{OnGpu, no_stream};
use crate::structs::{check_pointer, flag, read};

/// A write that was checked and prepared for a device. It never changes: any number of threads may use it at the same time.
#[derive(Debug)]
pub struct Append {
    /// The lists of a write on the CPU are read at each run, so it is described anew. Its `rotary_frequencies` are null.
    desc: AppendDesc,
    append: Checked,
    /// `None` on the CPU.
    on: Option<OnGpu<PreparedAppend>>,
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
        // SAFETY: there are no lists.
        let checked = unsafe { write(&desc, rotary.as_ref(), None) }?;
        let unchecked = flag("unchecked", desc.unchecked)?;
        let on = OnGpu::load(device, unchecked, |gpu| {
            gpu.prepare_append(checked.element(), checked.quantized_type())
        })?;
        let made = Box::into_raw(Box::new(Append {
            desc,
            append: checked,
            on,
        }));
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { append.write(made) };
        Ok(())
    })
}

/// Writes: streams, captures and the CPU as with warptile_attention_run. Nothing outside of the cache is ever written, whatever the
/// numbers on a device are.
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
        let append = unsafe { append.as_ref() }.ok_or_else(|| Failure::of("append", "is null"))?;
        // SAFETY: the caller's promise.
        let memory = unsafe { read("memory", memory) }?;
        let Some(on) = &append.on else {
            no_stream(stream)?;
            let run = match append.append.element() {
                ElementType::F16 => run_on_cpu::<f16>,
                ElementType::Bf16 => run_on_cpu::<bf16>,
                _ => run_on_cpu::<f32>,
            };
            // SAFETY: the caller's promise.
            return unsafe { run(append, &memory) };
        };
        let addresses = memory.addresses();
        on.launch(stream, addresses.named(), |stream| {
            // SAFETY: as in `warptile_attention_run`.
            unsafe { on.prepared.launch_raw(stream, &append.append, &addresses) }
        })
    })
}

/// Frees a handle, as warptile_attention_free does.
///
/// # Safety
/// `append` is null, or a handle that was not freed and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_append_free(append: *mut Append) {
    if append.is_null() {
        return;
    }
    guarded(|| {
        // SAFETY: made by `warptile_append_prepare`, and freed once by the caller's promise.
        drop(unsafe { Box::from_raw(append) });
        Ok(())
    });
}

/// Elements at a pointer, if the description has a layout for them; the pointer is null exactly if not.
fn optional<T>(
    name: &'static str,
    pointer: *const c_void,
    layout: Option<&Strided>,
) -> Result<Option<Part<T>>> {
    match layout {
        Some(layout) => Part::tensor(name, pointer.cast(), layout).map(Some),
        None if pointer.is_null() => Ok(None),
        None => Err(Failure::of(
            name,
            "is given, but the call was built without it",
        )),
    }
}

/// # Safety
/// As [`warptile_append_run`] on the CPU.
unsafe fn run_on_cpu<T: Element>(append: &Append, memory: &AppendMemory) -> Result<()> {
    let Append { desc, append, .. } = append;
    // SAFETY: the caller's promise.
    unsafe {
        let append = write(desc, append.rotary(), Some(memory))?;
        let scales = scales_on_host(append.quantized(), [memory.k_scale, memory.v_scale])?;
        let of_scales = scale_places(scales)?;
        match append.quantized_type().zip(scales) {
            None => write_on_cpu::<T, T>(desc, &append, memory, of_scales, CacheOperand::Same),
            Some((element, scales)) => {
                write_on_cpu::<T, u8>(desc, &append, memory, of_scales, |cache| {
                    CacheOperand::Quantized(cache, element, scales)
                })
            }
        }
    }
}

/// Writes into a cache of elements of type `C`. `of_scales`: where its scales are.
///
/// # Safety
/// As [`warptile_append_run`] on the CPU.
unsafe fn write_on_cpu<'a, T: Element, C: 'a>(
    desc: &AppendDesc,
    append: &Checked,
    memory: &AppendMemory,
    of_scales: [Place; 2],
    operand: impl FnOnce(CacheMut<'a, C>) -> CacheOperand<'a, T>,
) -> Result<()> {
    let k = Part::<T>::tensor("k", memory.k.cast(), append.k())?;
    let v = Part::<T>::tensor("v", memory.v.cast(), append.v())?;
    let keys = Part::<C>::tensor(
        "k_pages",
        memory.k_pages.cast_const().cast(),
        append.k_pages(),
    )?;
    let values = Part::<C>::tensor(
        "v_pages",
        memory.v_pages.cast_const().cast(),
        append.v_pages(),
    )?;
    let q = optional::<T>("q", memory.q, append.q())?;
    let q_out = optional::<T>("q_out", memory.q_out, append.q_out())?;
    // SAFETY: the caller's promise.
    let (tables, of_tables) = unsafe { angles::<T>(desc, memory) }?;

    let mut inputs = vec![k.place(), v.place()];
    inputs.extend(of_tables);
    inputs.extend(of_scales);
    // A cache may have its keys and values interleaved: one piece of memory.
    let together = keys.place().meets(&values.place());
    let mut outputs = match together {
        true => vec![keys.place().joined(&values.place())],
        false => vec![keys.place(), values.place()],
    };
    match (&q, &q_out) {
        (Some(q), Some(out)) => {
            inputs.push(q.place());
            outputs.push(out.place());
        }
        (Some(q), None) => outputs.push(q.place()),
        _ => {}
    }
    check_apart(&outputs, &inputs)?;
    // SAFETY: the caller's promise; any bits are a value of `T` and of `C`, and outputs overlap nothing but, of keys and values interleaved, each
    // other, and these become one slice.
    unsafe {
        let cache = match together {
            false => CacheMut::Apart(keys.slice_mut(), values.slice_mut()),
            true => {
                let apart = values.after(&keys)?;
                CacheMut::Together(keys.up_to_the_end_of(&values)?.slice_mut(), apart)
            }
        };
        let queries = match (q, q_out) {
            (Some(q), Some(out)) => Some(QueriesMut::Into(q.slice(), out.slice_mut())),
            (Some(q), None) => Some(QueriesMut::InPlace(q.slice_mut())),
            _ => None,
        };
        let operands = AppendOperands {
            k: k.slice(),
            v: v.slice(),
            cache: operand(cache),
            queries,
            tables,
        };
        append_cpu(append, operands)?;
    }
    Ok(())
}

/// The tables of angles and where they are, if there are some.
///
/// # Safety
/// As [`warptile_append_run`] on the CPU.
unsafe fn angles<'a, T: Element>(
    desc: &AppendDesc,
    memory: &AppendMemory,
) -> Result<(Option<Tables<'a, T>>, Vec<Place>)> {
    match &tables(desc)? {
        Some((ElementType::F32, layout)) => {
            let cos = Part::tensor("cos", memory.cos.cast(), layout)?;
            let sin = Part::tensor("sin", memory.sin.cast(), layout)?;
            // SAFETY: the caller's promise.
            let tables = unsafe { Tables::F32(cos.slice(), sin.slice()) };
            Ok((Some(tables), vec![cos.place(), sin.place()]))
        }
        Some((_, layout)) => {
            let cos = Part::tensor("cos", memory.cos.cast(), layout)?;
            let sin = Part::tensor("sin", memory.sin.cast(), layout)?;
            // SAFETY: the caller's promise; any bits are a value of `T`.
            let tables = unsafe { Tables::Elements(cos.slice(), sin.slice()) };
            Ok((Some(tables), vec![cos.place(), sin.place()]))
        }
        None => {
            optional::<u8>("cos", memory.cos, None)?;
            optional::<u8>("sin", memory.sin, None)?;
            Ok((None, Vec::new()))
        }
    }
}
