//! What a description of attention says, as a call.

use attention::{AlibiShape, Align, Call, Choice, Mask, Scoring, Splits, TableLayout};

use crate::attention_desc::{
    AttentionDesc, AttentionMemory, WARPTILE_ALIBI_NONE, WARPTILE_ALIBI_PER_BATCH_HEAD,
    WARPTILE_ALIBI_PER_HEAD, WARPTILE_MASK_CAUSAL, WARPTILE_MASK_CAUSAL_TOP_LEFT,
    WARPTILE_MASK_NONE, WARPTILE_MASK_WINDOW,
};
use crate::error::{Failure, Result};
use crate::host::{List, expect_within, list};
use crate::structs::{bound, count, element, flag, name, quantization, sequences};

/// The call that a description says. On the CPU its lists are those of `memory`; without `memory` they are on a device, or not known yet.
///
/// # Safety
/// Each list of `memory` is null or points to as many numbers as the description says, which nobody writes meanwhile.
pub(crate) unsafe fn call(desc: &AttentionDesc, memory: Option<&AttentionMemory>) -> Result<Call> {
    let q = desc.q.required("q")?;
    let k = desc.k.required("k")?;
    let v = desc.v.required("v")?;
    let packed_queries = flag("packed_queries", desc.packed_queries)?;
    let packed_keys = flag("packed_keys", desc.packed_keys)?;
    let has_key_lengths = flag("key_lengths", desc.key_lengths)?;
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
        packed_keys || has_key_lengths,
        "packed_keys and key_lengths are 0",
    )?;
    let table = table(desc, sequences)?;

    let mut builder = Call::builder(&q, &k, &v, element(desc.element)?)
        .scoring(scoring(desc)?)
        .splits(match desc.split_keys {
            0 => Splits::Even,
            keys => Splits::EveryKeys(keys),
        })
        .want_lse(flag("want_lse", desc.want_lse)?);
    builder = builder.quantized(quantization(
        desc.cache_element,
        [desc.k_scales, desc.v_scales],
    )?);
    if let Some(out) = desc.out.given("out")? {
        builder = builder.out(out);
    }
    if let Some(bias) = desc.bias.given("bias")? {
        builder = builder.bias(bias);
    }
    if let Some(key_mask) = desc.key_mask.given("key_mask")? {
        builder = builder.key_mask(key_mask);
    }
    if flag("unaligned_addresses", desc.unaligned_addresses)? {
        builder = builder.unaligned_addresses();
    }

    // SAFETY: the caller's promise, of every list.
    let list = |name, wanted, of: fn(&AttentionMemory) -> *const i32, len| unsafe {
        list(name, wanted, memory.map(of), len)
    };
    let ends = sequences.saturating_add(1);
    builder = match list("query_offsets", packed_queries, |m| m.query_offsets, ends)? {
        None => builder,
        Some(List::OnHost(offsets)) => builder.packed_queries(offsets),
        Some(List::OnDevice) => {
            builder.device_query_offsets(sequences, longest_query.unwrap_or(q.rows()))
        }
    };
    builder = match list("key_offsets", packed_keys, |m| m.key_offsets, ends)? {
        None => builder,
        Some(List::OnHost(offsets)) => builder.packed_keys(offsets),
        Some(List::OnDevice) => {
            builder.device_key_offsets(sequences, longest_key.unwrap_or(k.rows()))
        }
    };
    let has_query_lengths = flag("query_lengths", desc.query_lengths)?;
    builder = match list(
        "query_lengths",
        has_query_lengths,
        |m| m.query_lengths,
        sequences,
    )? {
        None => builder,
        Some(List::OnHost(lengths)) => builder.query_lengths(lengths),
        Some(List::OnDevice) => builder.device_query_lengths(sequences),
    };
    builder = match list("key_lengths", has_key_lengths, |m| m.key_lengths, sequences)? {
        None => builder,
        Some(List::OnHost(lengths)) => builder.key_lengths(lengths),
        Some(List::OnDevice) => {
            let builder = builder.device_key_lengths(sequences);
            match longest_key {
                Some(longest) => builder.longest_keys(longest),
                None => builder,
            }
        }
    };
    let entries = table.map_or(0, |table| {
        let [sequences, columns] = table.shape;
        let rows = sequences.saturating_sub(1);
        rows.saturating_mul(table.row_stride)
            .saturating_add(columns)
    });
    let entries = list("block_table", table.is_some(), |m| m.block_table, entries)?;
    builder = match (entries, table) {
        (Some(List::OnHost(entries)), Some(table)) => builder.block_table(entries, table),
        (Some(List::OnDevice), Some(table)) => builder.device_block_table(table),
        _ => builder,
    };
    let call = builder.build()?;
    // A device has been told the bounds, and its lengths are not known here.
    if memory.is_some() {
        let queries = call.sequences().map(|sequence| sequence.q_len);
        expect_within("longest_query", longest_query, "queries", queries)?;
        let keys = call.sequences().map(|sequence| sequence.k_len);
        expect_within("longest_key", longest_key, "keys", keys)?;
    }
    Ok(call)
}

/// The kernels that a description allows on a GPU.
///
/// # Safety
/// `desc.kernel` is null or ends with a NUL.
pub(crate) unsafe fn choice(desc: &AttentionDesc) -> Result<Choice> {
    // SAFETY: the caller's promise.
    Ok(match unsafe { name("kernel", desc.kernel) }? {
        Some(name) => name.parse::<Choice>()?,
        None => Choice::Best,
    })
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
        WARPTILE_MASK_NONE => Mask::None,
        WARPTILE_MASK_CAUSAL => Mask::causal(),
        WARPTILE_MASK_CAUSAL_TOP_LEFT => Mask::Causal {
            align: Align::TopLeft,
        },
        WARPTILE_MASK_WINDOW => Mask::window(
            side("window_left", desc.window_left)?,
            side("window_right", desc.window_right)?,
        ),
        other => {
            return Err(Failure::of(
                "mask",
                format!("is {other}, which is none of WARPTILE_MASK_..."),
            ));
        }
    };
    let mut scoring = Scoring::new().mask(mask);
    scoring.scale = flag("scale_given", desc.scale_given)?.then_some(desc.scale);
    scoring.softcap = (desc.softcap != 0.0).then_some(desc.softcap);
    scoring.alibi = match desc.alibi {
        WARPTILE_ALIBI_NONE => None,
        WARPTILE_ALIBI_PER_HEAD => Some(AlibiShape::PerHead),
        WARPTILE_ALIBI_PER_BATCH_HEAD => Some(AlibiShape::PerBatchHead),
        other => {
            return Err(Failure::of(
                "alibi",
                format!("is {other}, which is none of WARPTILE_ALIBI_..."),
            ));
        }
    };
    scoring.sinks = flag("sinks", desc.sinks)?;
    scoring.bias = desc.bias.given("bias")?.is_some();
    scoring.key_mask = desc.key_mask.given("key_mask")?.is_some();
    Ok(scoring)
}

fn table(desc: &AttentionDesc, sequences: usize) -> Result<Option<TableLayout>> {
    let columns = count("table_columns", desc.table_columns)?;
    let stride = count("table_stride", desc.table_stride)?;
    match (columns, stride) {
        (0, 0) => Ok(None),
        (0, _) => Err(Failure::of(
            "table_stride",
            "is given, but table_columns is 0",
        )),
        (_, 0) => Ok(Some(TableLayout::from([sequences, columns]))),
        (_, stride) => Ok(Some(TableLayout::new([sequences, columns], stride))),
    }
}
