//! Attention over several devices as C describes it, and its memory.

use std::ffi::c_void;

use attention::Layout;
use attention::spec::{Call, Operand};
use warptile_distributed::{Scheme, Sharding};

use crate::attention_desc::{AttentionDesc, call};
use crate::error::{Failure, Result};
use crate::host::memory;
use crate::ranks::list;
use crate::structs::{Versioned, count, read};

/// Each rank has one chunk of the rows, in order: balanced without a mask.
pub const WARPTILE_SHARDING_CONTIGUOUS: u32 = 0;
/// There are twice as many chunks as ranks, and rank r has chunk r and chunk 2 ranks - 1 - r: balanced under a causal mask.
pub const WARPTILE_SHARDING_ZIGZAG: u32 = 1;
/// The rows are those of packed documents. Long ones are dealt out in zigzag, short ones stay whole; no query sees another document.
pub const WARPTILE_SHARDING_DOCUMENTS: u32 = 2;
/// Each half of the rows is dealt out in zigzag: the work of all ranks ends closer together than by one zigzag.
pub const WARPTILE_SHARDING_TWO_ZIGZAGS: u32 = 3;

/// Each rank fetches the keys that its queries see.
pub const WARPTILE_SCHEME_GATHER: u32 = 0;
/// Each rank gets all rows of some heads: for at least as many query heads as ranks.
pub const WARPTILE_SCHEME_HEADS: u32 = 1;
/// By heads among the ranks of a host, which fetch the keys of other hosts: each row goes to a host once. Ranks that follow each other are on
/// one of `hosts` hosts, the same number on each.
pub const WARPTILE_SCHEME_HYBRID: u32 = 2;

/// Attention of a sequence, or of packed documents, to itself, over several devices. Fill the struct with zeros, then set `size` and
/// `attention`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ShardedDesc {
    /// `sizeof(warptile_sharded_desc)`.
    pub size: usize,
    /// The whole computation: q, k and v are [1, all rows, heads, head size], with zeros for strides. Masks, scale, softcap, sinks,
    /// dropout, ALiBi, want_lse, split_keys and kernel are taken; `unchecked` does not count.
    pub attention: *const AttentionDesc,
    /// WARPTILE_SHARDING_CONTIGUOUS, and so on.
    pub sharding: u32,
    /// WARPTILE_SCHEME_GATHER, and so on.
    pub scheme: u32,
    /// Documents, for WARPTILE_SHARDING_DOCUMENTS.
    pub documents: i64,
    /// Where each document begins among the rows, and where the last one ends: documents + 1 numbers in host memory.
    pub document_offsets: *const i64,
    /// How many hosts there are, for WARPTILE_SCHEME_HYBRID.
    pub hosts: usize,
}

// SAFETY: numbers and raw pointers, the size first, without padding.
unsafe impl Versioned for ShardedDesc {
    const LEAST: usize = std::mem::offset_of!(ShardedDesc, documents);
}

/// The memory of a call over several devices. Tensors are lists of addresses, one for each rank of this process, in its device's memory:
/// its rows, as warptile_sharded_rows counts them, stored without gaps as [heads, rows, head size].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ShardedMemory {
    /// `sizeof(warptile_sharded_memory)`.
    pub size: usize,
    /// How many addresses each list has: the ranks of this process.
    pub ranks: usize,
    /// Queries.
    pub q: *const *const c_void,
    /// Keys.
    pub k: *const *const c_void,
    /// Values.
    pub v: *const *const c_void,
    /// Receives the output, unless this is a backward pass.
    pub out: *const *mut c_void,
    /// For a backward pass: the gradient of the output.
    pub d_out: *const *const c_void,
    /// Receives the gradient of the queries, if given.
    pub dq: *const *mut c_void,
    /// Receives the gradient of the keys, if given.
    pub dk: *const *mut c_void,
    /// Receives the gradient of the values, if given.
    pub dv: *const *mut c_void,
    /// Receives the gradients of the sinks, if given: one number for each query head, in the memory of rank 0. Only its process has them.
    pub d_sinks: *mut f32,
    /// ALiBi slopes, in host memory.
    pub alibi_slopes: *const f32,
    /// Sinks, in host memory.
    pub sinks: *const f32,
    /// The state of dropout, in host memory.
    pub dropout_state: *const i32,
}

// SAFETY: as above.
unsafe impl Versioned for ShardedMemory {
    const LEAST: usize = std::mem::offset_of!(ShardedMemory, d_out);
}

// These are lists of tensors, a tensor for each rank.
memory!(ShardedMemory {
    Q: q,
    K: k,
    V: v,
    Out: out,
    DOut: d_out,
    DQ: dq,
    DK: dk,
    DV: dv,
    DSinks: d_sinks,
    Slopes: alibi_slopes,
    Sinks: sinks,
    DropoutState: dropout_state,
});

/// A description that was read.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) call: Call,
    pub(crate) sharding: Sharding,
    pub(crate) scheme: Scheme,
}

impl Described {
    /// Heads and head size of a tensor.
    pub(crate) fn sizes(&self, operand: Operand) -> [usize; 2] {
        let heads = self.call.heads();
        match operand {
            Operand::Q | Operand::DQ => [heads.query, heads.dim],
            Operand::K | Operand::DK => [heads.key_value, heads.dim],
            Operand::V | Operand::DV => [heads.key_value, heads.value_dim],
            _ => [heads.query, heads.value_dim],
        }
    }
}

/// Operands of a call over several devices.
const TAKEN: [Operand; 8] = [
    Operand::Q,
    Operand::K,
    Operand::V,
    Operand::Out,
    Operand::Lse,
    Operand::Slopes,
    Operand::Sinks,
    Operand::DropoutState,
];

/// Also gives the description of the computation.
///
/// # Safety
/// As for warptile_sharded_prepare.
pub(crate) unsafe fn described(desc: *const ShardedDesc) -> Result<(Described, AttentionDesc)> {
    // SAFETY: the caller's promise.
    let desc = unsafe { read("desc", desc) }?;
    // SAFETY: the caller's promise.
    let of = unsafe { read("attention", desc.attention) }?;
    // SAFETY: lists are absent.
    let call = unsafe { call(&of, None) }?;
    let needed = call.memory().filter(|(_, bytes)| bytes.is_some());
    if let Some((operand, _)) = { needed }.find(|(operand, _)| !TAKEN.contains(operand)) {
        return Err(Failure::of(operand.name(), "is not for several devices"));
    }
    for operand in [Operand::Q, Operand::K, Operand::V, Operand::Out] {
        let (name, rows) = (operand.name(), call.q().shape[1]);
        let Some(layout) = call.layout(operand) else {
            continue;
        };
        let [batch, found, ..] = layout.shape;
        if batch != 1 {
            let rule = format!("is {batch}, but must be 1 over several devices");
            return Err(Failure::of(format!("{name}.shape[0]"), rule));
        }
        if found != rows {
            let rule = format!("is {found}, but q has {rows} rows, which attend to themselves");
            return Err(Failure::of(format!("{name}.shape[1]"), rule));
        }
        if *layout != Layout::bshd(layout.shape) {
            let rule = "must be zeros: each rank has its rows without gaps";
            return Err(Failure::of(format!("{name}.strides"), rule));
        }
    }
    let documents = count("documents", desc.documents)?;
    let sharding = match desc.sharding {
        WARPTILE_SHARDING_DOCUMENTS => {
            let offsets = documents.saturating_add(1);
            // SAFETY: the caller's promise.
            let offsets = unsafe { list("document_offsets", desc.document_offsets, offsets) }?;
            let offset =
                |(at, &offset): (usize, &i64)| count(&format!("document_offsets[{at}]"), offset);
            Sharding::Documents(
                { offsets.iter().enumerate() }
                    .map(offset)
                    .collect::<Result<_>>()?,
            )
        }
        _ if documents != 0 || !desc.document_offsets.is_null() => {
            let rule = "is given, but sharding is not WARPTILE_SHARDING_DOCUMENTS";
            return Err(Failure::of("documents", rule));
        }
        WARPTILE_SHARDING_CONTIGUOUS => Sharding::Contiguous,
        WARPTILE_SHARDING_ZIGZAG => Sharding::Zigzag,
        WARPTILE_SHARDING_TWO_ZIGZAGS => Sharding::Zigzags(2),
        other => {
            let rule = format!("is {other}, which is none of WARPTILE_SHARDING_...");
            return Err(Failure::of("sharding", rule));
        }
    };
    let scheme = match desc.scheme {
        WARPTILE_SCHEME_GATHER => Scheme::Gather,
        WARPTILE_SCHEME_HEADS => Scheme::Heads,
        WARPTILE_SCHEME_HYBRID => Scheme::Hybrid { hosts: desc.hosts },
        other => {
            let rule = format!("is {other}, which is none of WARPTILE_SCHEME_...");
            return Err(Failure::of("scheme", rule));
        }
    };
    if desc.hosts != 0 && desc.scheme != WARPTILE_SCHEME_HYBRID {
        let rule = "is given, but scheme is not WARPTILE_SCHEME_HYBRID";
        return Err(Failure::of("hosts", rule));
    }
    let described = Described {
        call,
        sharding,
        scheme,
    };
    Ok((described, of))
}
