//! Attention: the handle that a description is prepared to, and its runs.

use std::ffi::c_void;

use attention::gpu::Prepared;
use attention::{
    Call, Element, ElementType, KeyView, Layout as Checked, Operands, QuantizedType, View, ViewMut,
    forward_cpu,
};
use half::{bf16, f16};

use crate::attention_call::{call, choice};
use crate::attention_desc::{AttentionDesc, AttentionMemory};
use crate::error::{Failure, Result, guarded};
use crate::host::{Part, Place, check_apart, list_on_host, scale_places, scales_on_host};
use crate::machine::{OnGpu, no_stream};
use crate::structs::{address, check_pointer, flag, read};

/// A description that was checked and prepared for a device. It never changes: any number of threads may use it at the same time.
#[derive(Debug)]
pub struct Attention {
    /// The lists of a call on the CPU are read at each run, so the call is built anew. Its `kernel` is null.
    desc: AttentionDesc,
    call: Call,
    /// `None` on the CPU.
    on: Option<OnGpu<Prepared>>,
}

/// Checks a description and prepares it for a device: plans, and loads the kernel if nobody has yet, which may take long. Gives a handle,
/// to be freed with warptile_attention_free.
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
        let choice = unsafe { choice(&desc) }?;
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
        let made = Box::into_raw(Box::new(Attention { desc, call, on }));
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { attention.write(made) };
        Ok(())
    })
}

/// Bytes of device memory that every launch of the handle needs beside its tensors; 0 on the CPU and for many kernels.
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
/// default stream. It allocates, copies, waits for and loads nothing, so it may be part of anybody's capture; a replay reads lengths,
/// offsets and tables anew. On the CPU: `stream` is null, and the result is there on return, computed by as many threads as there are
/// cores.
///
/// Lists that a GPU reads are not checked: the kernels clamp what they find. On the CPU they are.
///
/// # Safety
/// - `attention` is null, which is an error, or a handle that was not freed. `memory` is null, which is an error, or valid for reading
///   `memory->size` bytes.
/// - Each address reaches as far as the description says. It stays valid until the work, and every replay of a graph that captured
///   it, has ended. Meanwhile nobody writes what is read, or touches what is written; on the CPU, gaps between the rows of `out` count
///   as written.
/// - On a GPU, `stream` is a live stream. The kernels of a handle stay after it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_attention_run(
    attention: *const Attention,
    memory: *const AttentionMemory,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let attention =
            unsafe { attention.as_ref() }.ok_or_else(|| Failure::of("attention", "is null"))?;
        // SAFETY: the caller's promise.
        let memory = unsafe { read("memory", memory) }?;
        let Some(on) = &attention.on else {
            no_stream(stream)?;
            if !memory.workspace.is_null() || memory.workspace_bytes != 0 {
                return Err(Failure::of("workspace", "is given, but the CPU needs none"));
            }
            let run = match attention.call.element() {
                ElementType::F16 => run_on_cpu::<f16>,
                ElementType::Bf16 => run_on_cpu::<bf16>,
                _ => run_on_cpu::<f32>,
            };
            // SAFETY: the caller's promise.
            return unsafe { run(&attention.desc, &memory) };
        };
        let needed = on.prepared.plan().scratch().bytes;
        if memory.workspace_bytes < needed {
            return Err(Failure::of(
                "workspace_bytes",
                format!(
                    "is {}, but {needed} are needed: ask warptile_attention_workspace",
                    memory.workspace_bytes
                ),
            ));
        }
        let addresses = memory.addresses();
        let workspace = address(memory.workspace);
        let all = addresses.named().into_iter();
        on.launch(stream, all.chain([("workspace", workspace)]), |stream| {
            // SAFETY: the context is current and the stream is of it: `launch` has seen to it, or the caller has. The rest is the caller's
            // promise; the workspace is large enough for the plan. Kernels and GPU stay for ever.
            unsafe {
                on.prepared
                    .launch_raw(stream, &attention.call, &addresses, workspace)
            }
        })
    })
}

/// Frees a handle. Work that it has submitted goes on, and graphs that captured it may be replayed.
///
/// # Safety
/// `attention` is null, or a handle that was not freed and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_attention_free(attention: *mut Attention) {
    if attention.is_null() {
        return;
    }
    guarded(|| {
        // SAFETY: made by `warptile_attention_prepare`, and freed once by the caller's promise.
        drop(unsafe { Box::from_raw(attention) });
        Ok(())
    });
}

/// # Safety
/// As [`warptile_attention_run`] on the CPU.
unsafe fn run_on_cpu<T: Element>(desc: &AttentionDesc, memory: &AttentionMemory) -> Result<()> {
    // SAFETY: the caller's promise.
    let call = unsafe { call(desc, Some(memory)) }?;
    let q = Part::<T>::tensor("q", memory.q.cast(), call.q())?;
    // SAFETY: the caller's promise.
    let scales = unsafe { scales_on_host(call.quantized(), [memory.k_scale, memory.v_scale]) }?;
    let quantized = call.quantized_type();
    let k = KeyPart::<T>::tensor("k", memory.k, call.k(), quantized)?;
    let v = KeyPart::<T>::tensor("v", memory.v, call.v(), quantized)?;
    let out = Part::<T>::tensor("out", memory.out.cast_const().cast(), call.out())?;
    let scoring = call.scoring();
    let slopes = scoring.slope_count(call.batch(), call.heads().query);
    let score_tensor = |layout: Option<&Checked>| layout.map_or(Some(0), Checked::required_len);
    let too_large = |name| Failure::of(name, "is larger than memory");
    let bias_len = score_tensor(call.bias()).ok_or_else(|| too_large("bias"))?;
    let mask_len = score_tensor(call.key_mask()).ok_or_else(|| too_large("key_mask"))?;
    let mut operands = match scales {
        None => Operands::none(),
        Some([k_scale, v_scale]) => Operands::none().scales(k_scale, v_scale),
    };
    // SAFETY: the caller's promise.
    unsafe {
        operands.slopes = list_on_host(
            "alibi_slopes",
            scoring.alibi.is_some(),
            memory.alibi_slopes,
            slopes,
        )?;
        operands.sinks = list_on_host("sinks", scoring.sinks, memory.sinks, call.heads().query)?;
        operands.bias = list_on_host("bias", scoring.bias, memory.bias.cast::<T>(), bias_len)?;
        operands.key_mask = list_on_host("key_mask", scoring.key_mask, memory.key_mask, mask_len)?;
    }
    if !call.wants_lse() && !memory.lse.is_null() {
        return Err(Failure::of("lse", "is given, but want_lse is 0"));
    }
    let lse_len = if call.wants_lse() { call.lse_len() } else { 0 };
    let lse = Part::of("lse", memory.lse.cast_const(), lse_len)?;
    let beside = |name, pointer: *const u8, bytes| Part::of(name, pointer, bytes);
    let [k_scale, v_scale] = scale_places(scales)?;
    let inputs = [
        q.place(),
        k.place(),
        v.place(),
        k_scale,
        v_scale,
        beside("bias", memory.bias.cast(), bias_len * size_of::<T>())?.place(),
        beside("key_mask", memory.key_mask, mask_len)?.place(),
        beside("alibi_slopes", memory.alibi_slopes.cast(), 4 * slopes)?.place(),
        beside(
            "sinks",
            memory.sinks.cast(),
            if scoring.sinks {
                4 * call.heads().query
            } else {
                0
            },
        )?
        .place(),
    ];
    check_apart(&[out.place(), lse.place()], &inputs)?;
    // SAFETY: the caller's promise; any bits are a value of `T`, and outputs overlap nothing. The call has its own copies of the
    // lists.
    unsafe {
        let (q, k, v) = (q.slice(), k.view(call.k()), v.view(call.v()));
        let lse = call.wants_lse().then(|| lse.slice_mut());
        forward_cpu(
            &call,
            View::new(q, *call.q()),
            k,
            v,
            &operands,
            ViewMut::new(out.slice_mut(), *call.out()),
            lse,
        )?;
    }
    Ok(())
}

/// Keys or values on the CPU.
enum KeyPart<T> {
    Same(Part<T>),
    /// The bits of numbers of this type.
    Quantized(Part<u8>, QuantizedType),
}

impl<T: Element> KeyPart<T> {
    fn tensor(
        name: &'static str,
        start: *const c_void,
        layout: &Checked,
        quantized: Option<QuantizedType>,
    ) -> Result<Self> {
        Ok(match quantized {
            None => KeyPart::Same(Part::tensor(name, start.cast(), layout)?),
            Some(element) => KeyPart::Quantized(Part::tensor(name, start.cast(), layout)?, element),
        })
    }

    fn place(&self) -> Place {
        match self {
            KeyPart::Same(part) => part.place(),
            KeyPart::Quantized(part, _) => part.place(),
        }
    }

    /// # Safety
    /// As [`Part::slice`].
    unsafe fn view<'a>(&self, layout: &Checked) -> KeyView<'a, T> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                KeyPart::Same(part) => View::new(part.slice(), *layout).into(),
                KeyPart::Quantized(part, element) => {
                    KeyView::Quantized(View::new(part.slice(), *layout), *element)
                }
            }
        }
    }
}
