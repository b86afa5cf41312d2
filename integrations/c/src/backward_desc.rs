//! Gradients as C describes them, their memory, and the description that both make.

use std::ffi::{c_char, c_void};

use attention::ElementType;
use attention::spec::{Backward, Call, Operand};

use crate::attention_desc::{AttentionDesc, AttentionMemory};
use crate::error::{Failure, Result};
use crate::host::{Memory, memory};
use crate::structs::{Layout, Versioned, flag, other_element, read, reserved};

/// Description of the gradients of a computation. Fill the struct with zeros, then set `size`, `attention` and at least one of the
/// `want` fields: zero is the default of all other fields.
///
/// Pages, keys in e4m3 and head sizes above 256 have no gradients, nor have slopes. dk and dv are the sums over the query heads that share
/// a key/value head.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BackwardDesc {
    /// `sizeof(warptile_backward_desc)`.
    pub size: usize,
    /// The computation, described as for warptile_attention_prepare; its `want_lse`, `kernel` and `unchecked` do not count.
    pub attention: *const AttentionDesc,
    /// 1: the gradient of the queries is computed.
    pub want_dq: u32,
    /// 1: that of the keys.
    pub want_dk: u32,
    /// 1: that of the values.
    pub want_dv: u32,
    /// 1: that of the sinks.
    pub want_d_sinks: u32,
    /// 1: the log-sum-exp has a gradient, too, which d_lse gives.
    pub d_lse: u32,
    /// Element type of dq, dk, dv and d_bias: 0, for that of the tensors, or WARPTILE_F32. That of d_sinks is WARPTILE_F32.
    pub gradient_element: u32,
    /// 1: gradients are added to what is there. 0: they replace it.
    pub add: u32,
    /// 1: as in warptile_attention_desc.
    pub unchecked: u32,
    /// Gradient of the output, of the output's shape. Not given: stored as the output is.
    pub d_out: Layout,
    /// Gradient of q, of its shape. Not given: dense, in the order in which q is stored.
    pub dq: Layout,
    /// Gradient of k, likewise.
    pub dk: Layout,
    /// Gradient of v, likewise.
    pub dv: Layout,
    /// Name of the kernel or kernel family for the main step on a GPU. Null: the fastest.
    pub kernel: *const c_char,
    /// Gradient of the bias, of its shape, but with the extent 1 where the bias is repeated. Not given: dense, in the order in which the
    /// bias is stored.
    pub d_bias: Layout,
    /// 1: the gradient of the bias is computed.
    pub want_d_bias: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers and raw pointers, the size first, without padding.
unsafe impl Versioned for BackwardDesc {
    const LEAST: usize = std::mem::offset_of!(BackwardDesc, d_lse);
}

/// The memory of gradients: on a GPU addresses of device memory, on the CPU pointers. Null is "not given": exactly what the description
/// asks for must be given.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BackwardMemory {
    /// `sizeof(warptile_backward_memory)`.
    pub size: usize,
    /// The memory of the computation, whose `out` and `lse` are read here: both must be given. Its workspace does not count.
    pub attention: *const AttentionMemory,
    /// Gradient of the output.
    pub d_out: *const c_void,
    /// Gradient of the log-sum-exp, stored as that is.
    pub d_lse: *const f32,
    /// Receives the gradient of q. Gaps between rows, and rows that no sequence has, are left alone in all gradients.
    pub dq: *mut c_void,
    /// Receives the gradient of k.
    pub dk: *mut c_void,
    /// Receives the gradient of v.
    pub dv: *mut c_void,
    /// Receives the gradient of the sinks, one number for each query head.
    pub d_sinks: *mut f32,
    /// Device memory of warptile_backward_workspace bytes, at a multiple of 256, as in warptile_attention_memory: zeros before its first
    /// use, and not shared by launches that may run at the same time. Null if no bytes are needed.
    pub workspace: *mut c_void,
    /// Bytes there.
    pub workspace_bytes: usize,
    /// Receives the gradient of the bias.
    pub d_bias: *mut c_void,
}

// SAFETY: as above.
unsafe impl Versioned for BackwardMemory {
    const LEAST: usize = std::mem::offset_of!(BackwardMemory, d_lse);
}

memory!(BackwardMemory: d_out, d_lse, dq, dk, dv, d_bias, d_sinks);

/// The memory of gradients and of their computation.
pub(crate) struct Together {
    pub(crate) attention: AttentionMemory,
    pub(crate) own: BackwardMemory,
}

impl Together {
    /// # Safety
    /// As for [`read`], of the memory of the computation.
    pub(crate) unsafe fn of(own: BackwardMemory) -> Result<Self> {
        // SAFETY: the caller's promise.
        let attention = unsafe { read("attention", own.attention) }?;
        Ok(Together { attention, own })
    }
}

impl Memory for Together {
    fn pointer(&self, operand: Operand) -> *mut u8 {
        let own = self.own.pointer(operand);
        match own.is_null() {
            true => self.attention.pointer(operand),
            false => own,
        }
    }
}

/// The gradients that are wanted of a call.
pub(crate) fn backward(desc: &BackwardDesc, call: Call) -> Result<Backward> {
    let mut builder = Backward::builder(call)
        .d_lse(flag("d_lse", desc.d_lse)?)
        .adds(flag("add", desc.add)?);
    if let Some(layout) = desc.d_out.given("d_out")? {
        builder = builder.layout(Operand::DOut, layout);
    }
    reserved(desc.reserved)?;
    let mut any = false;
    for operand in Operand::GRADIENTS {
        let (wanted, layout) = desc.of(operand);
        let (name, argument) = (operand.name(), format!("want_{}", operand.name()));
        let wanted = flag(&argument, wanted)?;
        any |= wanted;
        builder = builder.want(operand, wanted);
        match (
            layout.map_or(Ok(None), |layout| layout.given(name))?,
            wanted,
        ) {
            (Some(layout), true) => builder = builder.layout(operand, layout),
            (Some(_), false) => {
                return Err(Failure::of(name, format!("is given, but {argument} is 0")));
            }
            (None, _) => {}
        }
    }
    if !any {
        return Err(Failure::of(
            "desc",
            "asks for no gradient: one of its want fields must be 1",
        ));
    }
    let element = desc.gradient_element;
    if let Some(element) = other_element("gradient_element", element, &[ElementType::F32])? {
        builder = builder.gradient_type(element);
    }
    Ok(builder.build()?)
}

impl BackwardDesc {
    /// A gradient's `want` field, and its layout if it has one.
    fn of(&self, operand: Operand) -> (u32, Option<Layout>) {
        match operand {
            Operand::DQ => (self.want_dq, Some(self.dq)),
            Operand::DK => (self.want_dk, Some(self.dk)),
            Operand::DV => (self.want_dv, Some(self.dv)),
            Operand::DBias => (self.want_d_bias, Some(self.d_bias)),
            Operand::DSinks => (self.want_d_sinks, None),
            _ => (0, None),
        }
    }
}
