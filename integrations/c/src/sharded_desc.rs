//! Attention over several devices as C describes it.

use attention::spec::Operand;
use warptile_distributed::{Scheme, Sharding as Rows};

use crate::attention_desc::AttentionDesc;
use crate::error::{Failure, Result};
use crate::ranks::{Described, list};
use crate::structs::{Versioned, count, read, unknown};

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
    /// The whole computation: q, k and v are [1, all rows, heads, head size], with zeros for strides. What is not for several
    /// devices is refused by its name; `unchecked` does not count.
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

/// A description that was read.
#[derive(Debug)]
pub(crate) struct Sharding {
    pub(crate) of: Described,
    pub(crate) rows: Rows,
    pub(crate) scheme: Scheme,
}

/// # Safety
/// As for warptile_sharded_prepare.
pub(crate) unsafe fn sharding(desc: *const ShardedDesc) -> Result<Sharding> {
    // SAFETY: the caller's promise.
    let desc = unsafe { read("desc", desc) }?;
    // SAFETY: the caller's promise.
    let of = unsafe { Described::of(&read("attention", desc.attention)?) }?;
    let rows = of.call.q().shape[1];
    for operand in [Operand::Q, Operand::K, Operand::V] {
        let [batch, found, ..] = of.layout(operand).shape;
        let name = operand.name();
        if batch != 1 {
            let rule = format!("is {batch}, but must be 1 over several devices");
            return Err(Failure::of(format!("{name}.shape[0]"), rule));
        }
        if found != rows {
            let rule = format!("is {found}, but q has {rows} rows, which attend to themselves");
            return Err(Failure::of(format!("{name}.shape[1]"), rule));
        }
    }
    let documents = count("documents", desc.documents)?;
    let rows = match desc.sharding {
        WARPTILE_SHARDING_DOCUMENTS => {
            let offsets = documents.saturating_add(1);
            // SAFETY: the caller's promise.
            let offsets = unsafe { list("document_offsets", desc.document_offsets, offsets) }?;
            let offset =
                |(at, &offset): (usize, &i64)| count(&format!("document_offsets[{at}]"), offset);
            Rows::Documents(
                { offsets.iter().enumerate() }
                    .map(offset)
                    .collect::<Result<_>>()?,
            )
        }
        _ if documents != 0 || !desc.document_offsets.is_null() => {
            let rule = "is given, but sharding is not WARPTILE_SHARDING_DOCUMENTS";
            return Err(Failure::of("documents", rule));
        }
        WARPTILE_SHARDING_CONTIGUOUS => Rows::Contiguous,
        WARPTILE_SHARDING_ZIGZAG => Rows::Zigzag,
        WARPTILE_SHARDING_TWO_ZIGZAGS => Rows::Zigzags(2),
        other => return unknown("sharding", other, "WARPTILE_SHARDING"),
    };
    let scheme = match desc.scheme {
        WARPTILE_SCHEME_GATHER => Scheme::Gather,
        WARPTILE_SCHEME_HEADS => Scheme::Heads,
        WARPTILE_SCHEME_HYBRID => Scheme::Hybrid { hosts: desc.hosts },
        other => return unknown("scheme", other, "WARPTILE_SCHEME"),
    };
    if desc.hosts != 0 && desc.scheme != WARPTILE_SCHEME_HYBRID {
        let rule = "is given, but scheme is not WARPTILE_SCHEME_HYBRID";
        return Err(Failure::of("hosts", rule));
    }
    Ok(Sharding { of, rows, scheme })
}
