//! What a description of a cache write says, as a write.

use attention::{Append, ElementType, Layout as Strided, Pairing, Rotary};

use crate::append_desc::{
    AppendDesc, AppendMemory, WARPTILE_POSITIONS_I32, WARPTILE_POSITIONS_I64,
    WARPTILE_POSITIONS_NONE, WARPTILE_ROTARY_HALF_SPLIT, WARPTILE_ROTARY_INTERLEAVED,
    WARPTILE_ROTARY_NONE,
};
use crate::error::{Failure, Result};
use crate::host::{List, Part, expect_within, list};
use crate::structs::{bound, count, element, flag, quantization, sequences};

/// The write that a description says, with the rotation that [`rotation`] has read. On the CPU its lists are those of `memory`; without
/// `memory` they are on a device, or not known yet.
///
/// # Safety
/// Each list of `memory` is null or points to as many numbers as the description says, which nobody writes meanwhile.
pub(crate) unsafe fn write(
    desc: &AppendDesc,
    rotary: Option<&Rotary>,
    memory: Option<&AppendMemory>,
) -> Result<Append> {
    let element = element(desc.element)?;
    let k = desc.k.required("k")?;
    let v = desc.v.required("v")?;
    let is_packed = flag("packed", desc.packed)?;
    let sequences = sequences(desc.sequences, ("packed", is_packed), ("k", k.batch()))?;
    let longest = bound("longest", desc.longest, is_packed, "packed is 0")?;
    let k_pages = desc.k_pages.required("k_pages")?;
    let v_pages = desc.v_pages.required("v_pages")?;
    let mut builder = Append::builder(element, [&k, &v], [&k_pages, &v_pages]);
    builder = builder.quantized(quantization(
        desc.cache_element,
        [desc.k_scales, desc.v_scales],
    )?);
    if let Some(rotary) = rotary {
        builder = builder.rotary(rotary.clone());
    }
    builder = match (desc.q.given("q")?, desc.q_out.given("q_out")?) {
        (Some(q), out) => builder.queries(q, out),
        (None, None) => builder,
        (None, Some(_)) => return Err(Failure::of("q_out", "is given, but q is not")),
    };

    let [batch, rows, ..] = k.shape;
    let tokens = batch.saturating_mul(rows);
    // SAFETY: the caller's promise, of every list.
    let list_i32 = |name, wanted, of: fn(&AppendMemory) -> *const i32, len| unsafe {
        list(name, wanted, memory.map(of), len)
    };
    // SAFETY: likewise.
    let list_i64 = |name, wanted, of: fn(&AppendMemory) -> *const i64, len| unsafe {
        list(name, wanted, memory.map(of), len)
    };
    let to_slots = flag("slots", desc.slots)?;
    builder = match list_i64("slots", to_slots, |m| m.slots, tokens)? {
        None => builder,
        Some(List::OnHost(slots)) => builder.slots(slots),
        Some(List::OnDevice) => builder.device_slots(),
    };
    builder = match list_i32("key_lengths", !to_slots, |m| m.key_lengths, sequences)? {
        None => builder,
        Some(List::OnHost(lengths)) => builder.key_lengths(lengths),
        Some(List::OnDevice) => builder.device_key_lengths(sequences),
    };
    let columns = count("table_columns", desc.table_columns)?;
    let entries = sequences.saturating_mul(columns);
    builder = match list_i32("block_table", columns != 0, |m| m.block_table, entries)? {
        None => builder,
        Some(List::OnHost(table)) => builder.block_table(table, columns),
        Some(List::OnDevice) => builder.device_block_table(columns),
    };
    let ends = sequences.saturating_add(1);
    let (mut known_offsets, mut known_lengths): (&[i32], Option<&[i32]>) = (&[], None);
    builder = match list_i32("row_offsets", is_packed, |m| m.row_offsets, ends)? {
        None => builder,
        Some(List::OnHost(offsets)) => {
            known_offsets = offsets;
            builder.packed(offsets)
        }
        Some(List::OnDevice) => builder.device_packed(sequences, longest.unwrap_or(k.rows())),
    };
    let some_rows = flag("row_lengths", desc.row_lengths)?;
    builder = match list_i32("row_lengths", some_rows, |m| m.row_lengths, sequences)? {
        None => builder,
        Some(List::OnHost(lengths)) => {
            known_lengths = Some(lengths);
            builder.row_lengths(lengths)
        }
        Some(List::OnDevice) => builder.device_row_lengths(sequences),
    };
    let narrowed: Vec<i32>;
    builder = match desc.positions {
        WARPTILE_POSITIONS_NONE | WARPTILE_POSITIONS_I32 => {
            let given = desc.positions == WARPTILE_POSITIONS_I32;
            match list_i32("positions", given, |m| m.positions.cast(), tokens)? {
                None => builder,
                Some(List::OnHost(positions)) => builder.positions(positions),
                Some(List::OnDevice) => builder.device_positions(false),
            }
        }
        WARPTILE_POSITIONS_I64 => {
            match list_i64("positions", true, |m| m.positions.cast(), tokens)? {
                Some(List::OnHost(wide)) => {
                    // Beyond the last position all are the same.
                    let (least, most) = (i64::from(i32::MIN), i64::from(i32::MAX));
                    let narrow = |&position: &i64| position.clamp(least, most) as i32;
                    narrowed = wide.iter().map(narrow).collect();
                    builder.positions(&narrowed)
                }
                _ => builder.device_positions(true),
            }
        }
        other => {
            return Err(Failure::of(
                "positions",
                format!("is {other}, which is none of WARPTILE_POSITIONS_..."),
            ));
        }
    };
    let append = builder.build()?;
    // A device has been told the bound, and its lengths are not known here. What is, the builder has found to be 0 or more.
    let rows = known_offsets.windows(2).enumerate().map(|(index, ends)| {
        let rows = ends[1] - ends[0];
        known_lengths.map_or(rows, |lengths| rows.min(lengths[index])) as usize
    });
    expect_within("longest", longest, "new rows", rows)?;
    Ok(append)
}

/// The tables of cosines and sines: their element type and layout.
pub(crate) fn tables(desc: &AppendDesc) -> Result<Option<(ElementType, Strided)>> {
    if desc.rotary == WARPTILE_ROTARY_NONE || desc.tables == 0 {
        return Ok(None);
    }
    let of_table = element(desc.tables).map_err(|_| {
        Failure::of(
            "tables",
            format!("is {}, which is no element type", desc.tables),
        )
    })?;
    let size = desc.rotary_size as usize;
    let pairs = size / 2;
    let positions = count("table_positions", desc.table_positions)?;
    let stride = match count("table_stride", desc.table_stride)? {
        0 => pairs,
        stride => stride,
    };
    // An odd size has no table.
    if !size.is_multiple_of(2) {
        return Err(attention::Error::RotarySize { size }.into());
    }
    let layout = Strided::new([1, positions, 1, pairs], [0, stride, 0, 1]);
    Ok(Some((of_table, layout)))
}

/// The rotation.
///
/// # Safety
/// Frequencies are null, or as many as the description says.
pub(crate) unsafe fn rotation(desc: &AppendDesc) -> Result<Option<Rotary>> {
    let pairing = match desc.rotary {
        WARPTILE_ROTARY_NONE => return Ok(None),
        WARPTILE_ROTARY_INTERLEAVED => Pairing::Interleaved,
        WARPTILE_ROTARY_HALF_SPLIT => Pairing::HalfSplit,
        other => {
            return Err(Failure::of(
                "rotary",
                format!("is {other}, which is none of WARPTILE_ROTARY_..."),
            ));
        }
    };
    if let Some((of_table, layout)) = tables(desc)? {
        return Ok(Some(Rotary::with_tables(of_table, layout, pairing)?));
    }
    let size = desc.rotary_size as usize;
    if desc.rotary_frequencies.is_null() {
        let base = match desc.rotary_base {
            0.0 => 10_000.0,
            base => base,
        };
        return Ok(Some(Rotary::computed(size, base, pairing)?));
    }
    // Before that many are read.
    Rotary::computed(size, 10_000.0, pairing)?;
    let frequencies = Part::of("rotary_frequencies", desc.rotary_frequencies, size / 2)?;
    // SAFETY: the caller's promise.
    let frequencies = unsafe { frequencies.slice() };
    Ok(Some(Rotary::with_frequencies(frequencies, pairing)?))
}
