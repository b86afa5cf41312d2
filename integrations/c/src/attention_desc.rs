//! Attention as C describes it, its memory, and the call that a description says.

use std::ffi::{c_char, c_void};

use attention::spec::{AlibiShape, BlockLists, Call, Operand, Scoring, TableLayout};
use attention::{Diagonal, ElementType, Mask, Splits};

use crate::error::{Failure, Result};
use crate::host::{Lists, expect_within, memory};
use crate::structs::{
    Layout, Versioned, bound, count, flag, other_element, reserved, sequences, types, unknown,
    without_effect,
};

/// A query sees every key.
pub const WARPTILE_MASK_NONE: u32 = 0;
/// A query sees no key after the one on the diagonal.
pub const WARPTILE_MASK_CAUSAL: u32 = 1;
/// A query sees window_left keys before and window_right keys after the one on the diagonal. A negative number means no limit.
pub const WARPTILE_MASK_WINDOW: u32 = 2;

/// The last query is aligned with the last key.
pub const WARPTILE_DIAGONAL_BOTTOM_RIGHT: u32 = 0;
/// The first query is aligned with the first key.
pub const WARPTILE_DIAGONAL_TOP_LEFT: u32 = 1;
/// The first query is aligned with key diagonal_offset, which may be negative.
pub const WARPTILE_DIAGONAL_AT: u32 = 2;

/// No slopes.
pub const WARPTILE_ALIBI_NONE: u32 = 0;
/// One slope for each query head.
pub const WARPTILE_ALIBI_PER_HEAD: u32 = 1;
/// One slope for each batch entry and query head, heads contiguous.
pub const WARPTILE_ALIBI_PER_BATCH_HEAD: u32 = 2;

/// Description of a computation, `softmax(scale * q kT) v`, and its options. Fill the struct with zeros, then set `size`, `element`, `q`,
/// `k` and `v`: zero is the default of all other fields. A field that would have no effect is refused, such as `window_left` with
/// WARPTILE_MASK_CAUSAL, unless it has its default.
///
/// For each batch entry and head, with the key/value head `h / (heads / kv_heads)`: `score = scale * q.k`, then
/// `softcap * tanh(score / softcap)`, then `- slope * distance` from the aligned key, then `+ bias`, then the masks. A query that sees no
/// key gives 0, and -infinity for its lse, or its sink. Head sizes are multiples of 8 from 8 to 512.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AttentionDesc {
    /// `sizeof(warptile_attention_desc)`.
    pub size: usize,
    /// Element type of q, k, v and out, and of k, v and bias unless they have their own: WARPTILE_F16, WARPTILE_BF16 or WARPTILE_F32.
    pub element: u32,
    /// WARPTILE_MASK_NONE, and so on.
    pub mask: u32,
    /// Queries.
    pub q: Layout,
    /// Keys. Their heads must divide those of q. With a block table: pages, rows of a page, heads, head size.
    pub k: Layout,
    /// Values, of the shape of k except for the head size, which may differ, such as 128 with 192.
    pub v: Layout,
    /// Output, of the shape of q but with the head size of v. Not given: dense, in the order in which q is stored.
    pub out: Layout,
    /// Added to the scores: batch, queries, heads, keys, each 1 for all. Not given: none. Four zeros for strides mean a bias without gaps
    /// here, too: for one number that counts for all scores, pass extents of 1 instead.
    pub bias: Layout,
    /// Hides keys where its byte is 0; shape and strides as those of bias. Not given: none.
    pub key_mask: Layout,
    /// Keys before the diagonal that a query sees, for WARPTILE_MASK_WINDOW.
    pub window_left: i64,
    /// Keys after the diagonal that a query sees, for WARPTILE_MASK_WINDOW.
    pub window_right: i64,
    /// Where the mask's diagonal runs: WARPTILE_DIAGONAL_BOTTOM_RIGHT, and so on. Allowed without a mask, where it hides nothing.
    pub diagonal: u32,
    /// The key aligned with the first query, for WARPTILE_DIAGONAL_AT.
    pub diagonal_offset: i32,
    /// Factor of the scores, if `scale_given` is 1; else it is 1 / sqrt(head size).
    pub scale: f32,
    /// 0 or 1.
    pub scale_given: u32,
    /// Bounds the scores: `softcap * tanh(score / softcap)`. 0: no bound.
    pub softcap: f32,
    /// WARPTILE_ALIBI_NONE, and so on.
    pub alibi: u32,
    /// 1: every query head has a sink, a logit that joins the denominator of its rows.
    pub sinks: u32,
    /// 1: the log-sum-exp of every row is written, too.
    pub want_lse: u32,
    /// 1: the queries of the sequences lie one after the other in a q whose batch extent is 1, and query_offsets says where.
    pub packed_queries: u32,
    /// 1: likewise of keys and values, and key_offsets.
    pub packed_keys: u32,
    /// 1: query_lengths says how many queries of each sequence exist.
    pub query_lengths: u32,
    /// 1: key_lengths says how many keys of each sequence exist.
    pub key_lengths: u32,
    /// Sequences of packed queries. Else 0, or the batch extent of q.
    pub sequences: i64,
    /// No sequence has more queries. 0: as many as q has rows. Only with packed_queries. A bound near to the truth lets a GPU do less;
    /// it cuts off what is longer, and the CPU refuses it.
    pub longest_query: i64,
    /// No sequence has more keys. 0: as many as there can be. Only with packed_keys or key_lengths. As longest_query for what is longer.
    pub longest_key: i64,
    /// Columns of the block table: the most pages of a sequence. 0: k and v are not in pages.
    pub table_columns: i64,
    /// Entries from one row of the block table to the next. 0: as many as there are columns.
    pub table_stride: i64,
    /// Cuts keys at every multiple of this number, a power of two from 256 on, so that a sequence's bits are the same in every batch.
    /// 0: where it is fastest.
    pub split_keys: u32,
    /// 1: on a GPU q, k, v, out, bias and key_mask may start at any address that is a multiple of their elements' size. 0: they start at
    /// multiples of 16 bytes, which more kernels take. The CPU takes both.
    pub unaligned_addresses: u32,
    /// Name of the kernel or kernel family to be used on a GPU. Null: the fastest.
    pub kernel: *const c_char,
    /// 1: warptile_attention_run makes the launch and nothing else: one call of the driver for each step of the plan, and one more for each
    /// tensor that a step reads through a tensor map. The caller sees to it that the device's primary context is current on the thread, that the stream is of
    /// it, and that all addresses are of memory that the device can use. 0: it looks, and makes the context current for the time of the call.
    pub unchecked: u32,
    /// Element type of k and v: 0, for that of `element`, or WARPTILE_E4M3, with any `element`.
    pub cache_element: u32,
    /// With WARPTILE_E4M3: how many numbers k_scale has, 1 or one for each key/value head. 0: 1.
    pub k_scales: u32,
    /// With WARPTILE_E4M3: how many numbers v_scale has, 1 or one for each key/value head. 0: 1.
    pub v_scales: u32,
    /// Probability of dropping a weight, from 0 to below 1, rounded to a multiple of 2^-16. Weights that are kept are divided by 1 - dropout;
    /// dropout_state says which are. 0: none.
    pub dropout: f64,
    /// Queries of a block, 64 or 128: each block of queries sees the blocks of keys that block_offsets and block_indices list, and of these
    /// what the mask shows. 0: no lists.
    pub block_queries: u32,
    /// Keys of a block, 64 or 128.
    pub block_keys: u32,
    /// 1: each sequence has lists of its own.
    pub blocks_per_batch: u32,
    /// 1: each query head has lists of its own. Those of a sequence's heads follow each other.
    pub blocks_per_head: u32,
    /// How many numbers block_offsets has: one for each row of each list, and one more.
    pub block_offset_count: i64,
    /// How many numbers block_indices has.
    pub block_index_count: i64,
    /// Element type of bias: 0, for that of `element`, or WARPTILE_F32, which has no gradients unless `element` is it.
    pub bias_element: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers and raw pointers, the size first, without padding.
unsafe impl Versioned for AttentionDesc {
    const LEAST: usize = std::mem::offset_of!(AttentionDesc, out);
}

/// The memory of one call: on a GPU addresses of device memory, on the CPU pointers. Null is "not given": exactly what the description
/// asks for must be given.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AttentionMemory {
    /// `sizeof(warptile_attention_memory)`.
    pub size: usize,
    /// Queries.
    pub q: *const c_void,
    /// Keys.
    pub k: *const c_void,
    /// Values.
    pub v: *const c_void,
    /// Receives the output. Gaps between its rows, and rows that no sequence has, are left alone.
    pub out: *mut c_void,
    /// Receives the log-sum-exp, natural: [batch, heads, length] without gaps, or [heads, rows] for packed queries.
    pub lse: *mut f32,
    /// Where each sequence begins among the rows of q, and where the last one ends: sequences + 1 numbers.
    pub query_offsets: *const i32,
    /// Where each sequence begins among the rows of k and v, and where the last one ends: sequences + 1 numbers.
    pub key_offsets: *const i32,
    /// Queries of each sequence.
    pub query_lengths: *const i32,
    /// Keys of each sequence.
    pub key_lengths: *const i32,
    /// For each sequence the numbers of its pages, in order.
    pub block_table: *const i32,
    /// ALiBi slopes.
    pub alibi_slopes: *const f32,
    /// Sinks, one for each query head; minus infinity for a head without one.
    pub sinks: *const f32,
    /// The bias, of the tensors' element type or `bias_element`.
    pub bias: *const c_void,
    /// The key mask; 0 hides. Values of hidden keys count 0 times, so they must be finite: 0 times NaN is NaN.
    pub key_mask: *const u8,
    /// Device memory of warptile_attention_workspace bytes, at a multiple of 256. Fill it with zeros once, before its first use: every
    /// launch leaves zeros where they count. No two launches that may run at the same time share one; a captured graph has one of its
    /// own. Null if no bytes are needed.
    pub workspace: *mut c_void,
    /// Bytes there.
    pub workspace_bytes: usize,
    /// Scales by which keys in e4m3 are multiplied: finite, above 0. A GPU reads them when the work runs, and does not check them.
    pub k_scale: *const f32,
    /// Scales by which values in e4m3 are multiplied: finite, above 0.
    pub v_scale: *const f32,
    /// Eight words: the seed and the offset of dropout's random numbers, each with the low half first, and the numbers of the first sequence,
    /// head, query and key. Those of query and key are multiples of 32.
    pub dropout_state: *const i32,
    /// Where each row of the lists of blocks begins in block_indices, and where the last one ends. A row belongs to a block of queries.
    pub block_offsets: *const i32,
    /// Numbers of blocks of keys, ascending in each row. One below 0 ends its row.
    pub block_indices: *const i32,
}

// SAFETY: as above.
unsafe impl Versioned for AttentionMemory {
    const LEAST: usize = std::mem::offset_of!(AttentionMemory, lse);
}

memory!(AttentionMemory: q, k, v, out, lse, query_offsets, key_offsets, query_lengths, key_lengths, block_table, alibi_slopes, sinks,
    bias, key_mask, k_scale, v_scale, dropout_state, block_offsets, block_indices);

/// The call that a description says. On the CPU its lists are those of `memory`; without `memory` they are on a device, or not known yet.
///
/// # Safety
/// Each list of `memory` is null or points to as many numbers as the description says. They are not written meanwhile.
pub(crate) unsafe fn call(desc: &AttentionDesc, memory: Option<&AttentionMemory>) -> Result<Call> {
    let q = desc.q.required("q")?;
    let k = desc.k.required("k")?;
    let v = desc.v.required("v")?;
    let packed_queries = flag("packed_queries", desc.packed_queries)?;
    let packed_keys = flag("packed_keys", desc.packed_keys)?;
    let key_lengths = flag("key_lengths", desc.key_lengths)?;
    let packed = ("packed_queries", packed_queries);
    let sequences = sequences(desc.sequences, packed, ("q", q.batch()))?;
    let longest_query = bound(
        "longest_query",
        desc.longest_query,
        packed_queries,
        "packed_queries is 0",
    )?;
    let longest_key = bound(
        "longest_key",
        desc.longest_key,
        packed_keys || key_lengths,
        "packed_keys and key_lengths are 0",
    )?;
    let table = table(desc, sequences)?;

    let (types, scale_counts) = types(
        desc.element,
        desc.cache_element,
        [desc.k_scales, desc.v_scales],
    )?;
    let mut builder = Call::builder(&q, &k, &v, types)
        .scoring(scoring(desc)?)
        .splits(match desc.split_keys {
            0 => Splits::Even,
            keys => Splits::EveryKeys(keys),
        })
        .want_lse(flag("want_lse", desc.want_lse)?)
        .count(Operand::KScale, scale_counts[0])
        .count(Operand::VScale, scale_counts[1]);
    for (operand, layout) in [
        (Operand::Out, desc.out),
        (Operand::Bias, desc.bias),
        (Operand::KeyMask, desc.key_mask),
    ] {
        if let Some(layout) = layout.given(operand.name())? {
            builder = builder.layout(operand, layout);
        }
    }
    reserved(desc.reserved)?;
    let of_bias = other_element("bias_element", desc.bias_element, &[ElementType::F32])?;
    if let Some(element) = of_bias {
        let has_bias = desc.bias.given("bias")?.is_some();
        without_effect("bias_element", !has_bias, "bias is not")?;
        builder = builder.bias_type(element);
    }
    builder = builder.aligned_addresses(!flag("unaligned_addresses", desc.unaligned_addresses)?);
    if let Some(table) = table {
        builder = builder.table_layout(table);
    }
    let blocks = block_lists(desc)?;
    if let Some((lists, _)) = blocks {
        builder = builder.block_lists(lists);
    }
    let lists = Lists {
        memory,
        sequences,
        entries: table.map_or(0, |table| table.elements().reach()),
        new_rows: 0,
        blocks: blocks.map_or([0; 2], |(_, counts)| counts),
    };
    let query_lengths = flag("query_lengths", desc.query_lengths)?;
    for (operand, wanted) in [
        (Operand::QueryOffsets, packed_queries),
        (Operand::KeyOffsets, packed_keys),
        (Operand::QueryLengths, query_lengths),
        (Operand::KeyLengths, key_lengths),
        (Operand::BlockTable, table.is_some()),
        (Operand::DropoutState, desc.dropout != 0.0),
        (Operand::BlockOffsets, blocks.is_some()),
        (Operand::BlockIndices, blocks.is_some()),
    ] {
        // SAFETY: the caller's promise.
        let numbers = unsafe { lists.get(operand, wanted) }?;
        if numbers.is_given() {
            builder = builder.numbers(operand, numbers);
        }
    }
    // A device is told the bounds, and its lengths are not known here.
    if memory.is_none() {
        builder = builder
            .longest_queries(longest_query.unwrap_or(usize::MAX))
            .longest_keys(longest_key.unwrap_or(usize::MAX));
    }
    let call = builder.build()?;
    if memory.is_some() {
        let queries = call.sequences().map(|sequence| sequence.q_len);
        expect_within("longest_query", longest_query, "queries", queries)?;
        let keys = call.sequences().map(|sequence| sequence.k_len);
        expect_within("longest_key", longest_key, "keys", keys)?;
    }
    Ok(call)
}

fn scoring(desc: &AttentionDesc) -> Result<Scoring> {
    let side = |argument, keys: i64| match u32::try_from(keys) {
        Ok(keys) => Ok(Some(keys)),
        Err(_) if keys < 0 => Ok(None),
        Err(_) => Err(Failure::of(
            argument,
            format!("is {keys}; the limit is {}", u32::MAX),
        )),
    };
    let mask = match desc.mask {
        WARPTILE_MASK_NONE => Mask::none(),
        WARPTILE_MASK_CAUSAL => Mask::causal(),
        WARPTILE_MASK_WINDOW => Mask::window(
            side("window_left", desc.window_left)?,
            side("window_right", desc.window_right)?,
        ),
        other => return unknown("mask", other, "WARPTILE_MASK"),
    };
    for (argument, keys) in [
        ("window_left", desc.window_left),
        ("window_right", desc.window_right),
    ] {
        let has_window = desc.mask == WARPTILE_MASK_WINDOW;
        let why = "mask is not WARPTILE_MASK_WINDOW";
        without_effect(argument, keys > 0 && !has_window, why)?;
    }
    let diagonal = match desc.diagonal {
        WARPTILE_DIAGONAL_BOTTOM_RIGHT => Diagonal::BottomRight,
        WARPTILE_DIAGONAL_TOP_LEFT => Diagonal::TopLeft,
        WARPTILE_DIAGONAL_AT => Diagonal::At(desc.diagonal_offset),
        other => return unknown("diagonal", other, "WARPTILE_DIAGONAL"),
    };
    let has_offset = desc.diagonal == WARPTILE_DIAGONAL_AT;
    without_effect(
        "diagonal_offset",
        desc.diagonal_offset != 0 && !has_offset,
        "diagonal is not WARPTILE_DIAGONAL_AT",
    )?;
    let mask = match mask.hides_nothing() {
        true => mask,
        false => mask.diagonal(diagonal),
    };
    let mut scoring = Scoring::new().mask(mask);
    scoring.scale = flag("scale_given", desc.scale_given)?.then_some(desc.scale);
    let is_dropped = desc.scale != 0.0 && scoring.scale.is_none();
    without_effect("scale", is_dropped, "scale_given is 0")?;
    scoring.softcap = (desc.softcap != 0.0).then_some(desc.softcap);
    if !(0.0..1.0).contains(&desc.dropout) {
        let rule = "but must be a probability from 0 to below 1";
        return Err(Failure::of(
            "dropout",
            format!("is {}, {rule}", desc.dropout),
        ));
    }
    // The nearest f32 may be 1.
    let dropout = (desc.dropout as f32).min(1_f32.next_down());
    scoring.dropout = (desc.dropout != 0.0).then_some(dropout);
    scoring.alibi = match desc.alibi {
        WARPTILE_ALIBI_NONE => None,
        WARPTILE_ALIBI_PER_HEAD => Some(AlibiShape::PerHead),
        WARPTILE_ALIBI_PER_BATCH_HEAD => Some(AlibiShape::PerBatchHead),
        other => return unknown("alibi", other, "WARPTILE_ALIBI"),
    };
    Ok(match flag("sinks", desc.sinks)? {
        true => scoring.with(Operand::Sinks),
        false => scoring,
    })
}

/// How blocks are listed, and how many offsets and indices there are.
fn block_lists(desc: &AttentionDesc) -> Result<Option<(BlockLists, [usize; 2])>> {
    let counts = [
        count("block_offset_count", desc.block_offset_count)?,
        count("block_index_count", desc.block_index_count)?,
    ];
    let mut lists = BlockLists::new(desc.block_queries, desc.block_keys);
    if flag("blocks_per_batch", desc.blocks_per_batch)? {
        lists = lists.per_batch();
    }
    if flag("blocks_per_head", desc.blocks_per_head)? {
        lists = lists.per_head();
    }
    if desc.block_queries != 0 {
        return Ok(Some((lists, counts)));
    }
    match lists == BlockLists::new(0, 0) && counts == [0; 2] {
        true => Ok(None),
        false => Err(Failure::of(
            "block_queries",
            "is 0, but other fields of lists of blocks are given",
        )),
    }
}

fn table(desc: &AttentionDesc, sequences: usize) -> Result<Option<TableLayout>> {
    let columns = count("table_columns", desc.table_columns)?;
    let stride = count("table_stride", desc.table_stride)?;
    without_effect(
        "table_stride",
        stride != 0 && columns == 0,
        "table_columns is 0",
    )?;
    Ok(match (columns, stride) {
        (0, _) => None,
        (_, 0) => Some(TableLayout::from([sequences, columns])),
        (_, stride) => Some(TableLayout::new([sequences, columns], stride)),
    })
}
