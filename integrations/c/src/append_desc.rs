//! Cache writes as C describes them, their memory, and the write that a description says.

use std::ffi::c_void;

use attention::spec::{Append, Numbers, Operand, Pairing, Rotary, Slots};
use attention::{ElementType, Layout as Strided};

use crate::error::{Failure, Result};
use crate::host::{Lists, elements, expect_within, memory};
use crate::structs::{
    Layout, Versioned, bound, count, element_of, flag, sequences, types, unknown, without_effect,
};

/// Keys are copied as they are.
pub const WARPTILE_ROTARY_NONE: u32 = 0;
/// Elements 2i and 2i + 1 of a head are turned together: GPT-J and the original paper.
pub const WARPTILE_ROTARY_INTERLEAVED: u32 = 1;
/// Elements i and i + rotary_size / 2 are turned together: GPT-NeoX, Llama and Qwen as Hugging Face stores them.
pub const WARPTILE_ROTARY_HALF_SPLIT: u32 = 2;

/// A row's place in its sequence is its position.
pub const WARPTILE_POSITIONS_NONE: u32 = 0;
/// Positions are given as int32_t.
pub const WARPTILE_POSITIONS_I32: u32 = 1;
/// Positions are given as int64_t.
pub const WARPTILE_POSITIONS_I64: u32 = 2;

/// Base of computed angles if `rotary_base` is 0.
const DEFAULT_BASE: f64 = 10_000.0;

/// New keys and values that are written into a cache, rotated on the way. Fill the struct with zeros, then set `size`, `element`, `k`,
/// `v`, `k_pages` and `v_pages`: zero is the default of all other fields. A field that would have no effect is refused, such as
/// `rotary_frequencies` with tables, unless it has its default.
///
/// A cache is pages: [pages, rows of a page, heads, head size] with any strides, so heads may come before rows, and keys and values may be
/// interleaved. A dense cache is one page for each sequence. Rows go after the key_lengths[b] rows that sequence b has, into the pages that
/// row b of the block table names (without a table: page b), or with `slots` row i goes to row slots[i] of all pages. What has no place goes
/// nowhere: slots such as -1, numbers of pages that do not exist, and rows beyond the last column. On the CPU the values of a cache in one
/// tensor come after its keys.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AppendDesc {
    /// `sizeof(warptile_append_desc)`.
    pub size: usize,
    /// Element type of all tensors; `cache_element` may be another.
    pub element: u32,
    /// WARPTILE_ROTARY_NONE, and so on.
    pub rotary: u32,
    /// New keys: batch, rows, heads, head size.
    pub k: Layout,
    /// New values.
    pub v: Layout,
    /// The cache's keys: pages, rows of a page, heads, head size.
    pub k_pages: Layout,
    /// The cache's values.
    pub v_pages: Layout,
    /// Queries to be rotated, too: of the batch and rows of k. Not given: none.
    pub q: Layout,
    /// Where rotated queries go. Not given: where they are.
    pub q_out: Layout,
    /// 1: rows go to slots. 0: after key_lengths.
    pub slots: u32,
    /// 1: the rows of the sequences lie one after the other in k, v and q, whose batch extent is 1, and row_offsets says where.
    pub packed: u32,
    /// 1: row_lengths says how many new rows of each sequence exist.
    pub row_lengths: u32,
    /// WARPTILE_POSITIONS_NONE, and so on: by what rows are rotated.
    pub positions: u32,
    /// Sequences of packed rows. Else 0, or the batch extent of k.
    pub sequences: i64,
    /// No sequence has more new rows. 0: as many as k has. Only with packed. A GPU leaves out what is beyond; the CPU refuses it.
    pub longest: i64,
    /// Columns of the block table, which is contiguous. 0: no table.
    pub table_columns: i64,
    /// Elements of a head that are turned: even, at most 256 and the head size.
    pub rotary_size: u32,
    /// Element type of tables of cosines and sines: WARPTILE_F32, or that of the tensors. 0: angles are computed.
    pub tables: u32,
    /// Positions that the tables have. One beyond them is refused if it is known on the host; on a device it counts as the last.
    pub table_positions: i64,
    /// Elements from one position of the tables to the next. 0: rotary_size / 2.
    pub table_stride: i64,
    /// Computed angles: pair i is turned by position * base^(-2i / rotary_size). 0: 10000. The default, 0 or 10000, is allowed
    /// without computed angles.
    pub rotary_base: f64,
    /// Computed angles: pair i is turned by position * frequencies[i], in radians. rotary_size / 2 numbers in host memory, read by
    /// warptile_append_prepare. Null: by rotary_base.
    pub rotary_frequencies: *const f64,
    /// As in warptile_attention_desc.
    pub unchecked: u32,
    /// Element type of the cache: 0, for that of `element`, or WARPTILE_E4M3, with any `element`.
    pub cache_element: u32,
    /// With WARPTILE_E4M3: how many numbers k_scale has, 1 or one for each key/value head. 0: 1.
    pub k_scales: u32,
    /// With WARPTILE_E4M3: how many numbers v_scale has, 1 or one for each key/value head. 0: 1.
    pub v_scales: u32,
}

// SAFETY: numbers and raw pointers, the size first, without padding.
unsafe impl Versioned for AppendDesc {
    const LEAST: usize = std::mem::offset_of!(AppendDesc, q);
}

/// The memory of one write: on a GPU addresses of device memory, on the CPU pointers. Null is "not given": exactly what the description
/// asks for must be given.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AppendMemory {
    /// `sizeof(warptile_append_memory)`.
    pub size: usize,
    /// New keys.
    pub k: *const c_void,
    /// New values.
    pub v: *const c_void,
    /// The cache's keys.
    pub k_pages: *mut c_void,
    /// The cache's values.
    pub v_pages: *mut c_void,
    /// Queries. Written unless the description has q_out.
    pub q: *mut c_void,
    /// Receives rotated queries.
    pub q_out: *mut c_void,
    /// For each row of k, counted through the batch, its row among all rows of all pages.
    pub slots: *const i64,
    /// For each sequence the numbers of its pages, in order.
    pub block_table: *const i32,
    /// Where each sequence begins among the rows of k, and where the last one ends: sequences + 1 numbers.
    pub row_offsets: *const i32,
    /// New rows of each sequence.
    pub row_lengths: *const i32,
    /// Rows that the cache has of each sequence before the write, which leaves these numbers alone.
    pub key_lengths: *const i32,
    /// Position of each row of k, of the size that the description says.
    pub positions: *const c_void,
    /// Cosines, [positions, rotary_size / 2].
    pub cos: *const c_void,
    /// Sines.
    pub sin: *const c_void,
    /// Scales of the keys: finite, above 0. Keys are divided by them before they go into a cache in e4m3, as the nearest numbers, at most
    /// 448. A GPU reads the scales when the work runs, and does not check them.
    pub k_scale: *const f32,
    /// Scales of the values.
    pub v_scale: *const f32,
}

// SAFETY: as above.
unsafe impl Versioned for AppendMemory {
    const LEAST: usize = std::mem::offset_of!(AppendMemory, q);
}

memory!(AppendMemory: k, v, k_pages, v_pages, q, q_out, slots, block_table, row_offsets, row_lengths, key_lengths, positions, cos, sin,
    k_scale, v_scale);

/// The write that a description says, with the rotation that [`rotation`] has read. On the CPU its lists are those of `memory`; without
/// `memory` they are on a device, or not known yet.
///
/// # Safety
/// Each list of `memory` is null or points to as many numbers as the description says. They are not written meanwhile.
pub(crate) unsafe fn write(
    desc: &AppendDesc,
    rotary: Option<&Rotary>,
    memory: Option<&AppendMemory>,
) -> Result<Append> {
    let k = desc.k.required("k")?;
    let v = desc.v.required("v")?;
    let is_packed = flag("packed", desc.packed)?;
    let sequences = sequences(desc.sequences, ("packed", is_packed), ("k", k.batch()))?;
    let longest = bound("longest", desc.longest, is_packed, "packed is 0")?;
    let k_pages = desc.k_pages.required("k_pages")?;
    let v_pages = desc.v_pages.required("v_pages")?;
    let (types, scale_counts) = types(
        desc.element,
        desc.cache_element,
        [desc.k_scales, desc.v_scales],
    )?;
    let columns = count("table_columns", desc.table_columns)?;
    let mut builder = Append::builder(types, [&k, &v], [&k_pages, &v_pages])
        .scale_counts(scale_counts)
        .columns(columns);
    if let Some(rotary) = rotary {
        builder = builder.rotary(rotary.clone());
    }
    let (q, q_out) = (desc.q.given("q")?, desc.q_out.given("q_out")?);
    without_effect("q_out", q.is_none() && q_out.is_some(), "q is not")?;
    if let Some(q) = q {
        builder = builder.queries(q, q_out);
    }

    let lists = Lists {
        memory,
        sequences,
        entries: sequences.saturating_mul(columns),
        new_rows: k.batch().saturating_mul(k.rows()),
        blocks: [0; 2],
    };
    let to_slots = flag("slots", desc.slots)?;
    // SAFETY: the caller's promise, of every list.
    builder = match unsafe { lists.get(Operand::NewSlots, to_slots) }? {
        Numbers::None => builder,
        Numbers::Host(slots) => builder.slots(slots),
        Numbers::Device(_) => builder.device_slots(),
    };
    // None for positions of 64 bits.
    let narrow_positions = match desc.positions {
        WARPTILE_POSITIONS_NONE => Some(false),
        WARPTILE_POSITIONS_I32 => Some(true),
        WARPTILE_POSITIONS_I64 => None,
        other => return unknown("positions", other, "WARPTILE_POSITIONS"),
    };
    let row_lengths = flag("row_lengths", desc.row_lengths)?;
    let wanted = [
        (Operand::KeyLengths, Some(!to_slots)),
        (Operand::BlockTable, Some(columns != 0)),
        (Operand::RowOffsets, Some(is_packed)),
        (Operand::RowLengths, Some(row_lengths)),
        (Operand::Positions, narrow_positions),
    ];
    let mut given = Slots::from_fn(|_| Numbers::None);
    for (operand, wanted) in wanted {
        let Some(wanted) = wanted else { continue };
        // SAFETY: the caller's promise.
        given[operand] = unsafe { lists.get(operand, wanted) }?;
        builder = builder.numbers(operand, given[operand]);
    }
    let narrowed: Vec<i32>;
    if narrow_positions.is_none() {
        // SAFETY: the caller's promise.
        builder = match unsafe { lists.get::<i64>(Operand::Positions, true) }? {
            Numbers::Host(wide) => {
                // Beyond the last position all are the same.
                let (least, most) = (i64::from(i32::MIN), i64::from(i32::MAX));
                let narrow = |&position: &i64| position.clamp(least, most) as i32;
                narrowed = wide.iter().map(narrow).collect();
                builder.positions(&narrowed)
            }
            _ => builder.device_positions(true),
        };
    }
    // A device is told the bound, and its lengths are not known here. Those that are, the builder finds to be 0 or more.
    if memory.is_none() && is_packed {
        builder = builder.device_packed(sequences, longest.unwrap_or(k.rows()));
    }
    let append = builder.build()?;
    let offsets = given[Operand::RowOffsets].on_host().unwrap_or_default();
    let lengths = given[Operand::RowLengths].on_host();
    let rows = offsets.windows(2).enumerate().map(|(index, ends)| {
        let rows = ends[1] - ends[0];
        lengths.map_or(rows, |lengths| rows.min(lengths[index])) as usize
    });
    expect_within("longest", longest, "new rows", rows)?;
    Ok(append)
}

/// The tables of cosines and sines: their element type and layout.
fn tables(desc: &AppendDesc) -> Result<Option<(ElementType, Strided)>> {
    let (positions, stride) = (desc.table_positions, desc.table_stride);
    if desc.tables == 0 {
        without_effect("table_positions", positions != 0, "tables is 0")?;
        without_effect("table_stride", stride != 0, "tables is 0")?;
        return Ok(None);
    }
    let Some(of_table) = element_of(desc.tables, ElementType::of_queries()) else {
        return Err(Failure::of(
            "tables",
            format!("is {}, which is no element type", desc.tables),
        ));
    };
    let size = desc.rotary_size as usize;
    let pairs = size / 2;
    let positions = count("table_positions", positions)?;
    let stride = match count("table_stride", stride)? {
        0 => pairs,
        stride => stride,
    };
    // An odd size has no table.
    if !size.is_multiple_of(2) {
        return Err(attention::spec::Invalid::RotarySize { size }.into());
    }
    let layout = Strided::new([1, positions, 1, pairs], [0, stride, 0, 1]);
    Ok(Some((of_table, layout)))
}

/// The rotation.
///
/// # Safety
/// Frequencies are null, or as many as the description says.
pub(crate) unsafe fn rotation(desc: &AppendDesc) -> Result<Option<Rotary>> {
    let base = match desc.rotary_base {
        0.0 => DEFAULT_BASE,
        base => base,
    };
    let (other_base, frequencies) = (base != DEFAULT_BASE, desc.rotary_frequencies);
    let pairing = match desc.rotary {
        WARPTILE_ROTARY_NONE => {
            for (argument, is_given) in [
                ("rotary_size", desc.rotary_size != 0),
                ("tables", desc.tables != 0),
                ("table_positions", desc.table_positions != 0),
                ("table_stride", desc.table_stride != 0),
                ("rotary_base", other_base),
                ("rotary_frequencies", !frequencies.is_null()),
            ] {
                without_effect(argument, is_given, "rotary is WARPTILE_ROTARY_NONE")?;
            }
            return Ok(None);
        }
        WARPTILE_ROTARY_INTERLEAVED => Pairing::Interleaved,
        WARPTILE_ROTARY_HALF_SPLIT => Pairing::HalfSplit,
        other => return unknown("rotary", other, "WARPTILE_ROTARY"),
    };
    if let Some((of_table, layout)) = tables(desc)? {
        without_effect("rotary_base", other_base, "tables are, too")?;
        let why = "tables are, too";
        without_effect("rotary_frequencies", !frequencies.is_null(), why)?;
        return Ok(Some(Rotary::with_tables(of_table, layout, pairing)?));
    }
    let size = desc.rotary_size as usize;
    if frequencies.is_null() {
        return Ok(Some(Rotary::computed(size, base, pairing)?));
    }
    without_effect("rotary_base", other_base, "rotary_frequencies are, too")?;
    // Before that many are read.
    Rotary::computed(size, DEFAULT_BASE, pairing)?;
    let frequencies = elements("rotary_frequencies", frequencies, size / 2)?;
    // SAFETY: the caller's promise.
    let frequencies = unsafe { frequencies.slice() };
    Ok(Some(Rotary::with_frequencies(frequencies, pairing)?))
}
