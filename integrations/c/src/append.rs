//! New keys and values, written into a cache.

use std::ffi::c_void;

use attention::gpu::{AppendAddresses, PreparedAppend};
use attention::{
    Append as Checked, AppendBuilder, AppendOperands, CacheMut, Element, ElementType,
    Layout as Strided, Pairing, QueriesMut, Rotary, Tables, append_cpu,
};
use half::{bf16, f16};

use crate::error::{Failure, Result, guarded};
use crate::forward::list_on_host;
use crate::host::{Part, Place, check_apart};
use crate::machine::{OnGpu, no_stream};
use crate::structs::{Layout, Versioned, address, check_pointer, count, element, flag, read};

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

/// New keys and values that are written into a cache, rotated on the way. Fill the struct with zeros, then set `size`, `element`, `k`,
/// `v`, `k_pages` and `v_pages`: zero is the default of all other fields.
///
/// A cache is pages: [pages, rows of a page, heads, head size] with any strides, so heads may come before rows, and keys and values may be
/// interleaved. A dense cache is one page for each sequence. Rows go after the key_lengths[b] rows that sequence b has, into the pages that
/// row b of the block table names (without a table: page b), or with `slots` row i goes to row slots[i] of all pages. What has no place goes
/// nowhere: slots such as -1, numbers of pages that do not exist, and rows beyond the last column.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AppendDesc {
    /// `sizeof(warptile_append_desc)`.
    pub size: usize,
    /// Element type of all tensors.
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
    /// No sequence has more new rows. 0: as many as k has. Only with packed.
    pub longest: i64,
    /// Columns of the block table, whose rows lie one after the other. 0: there is no table.
    pub table_columns: i64,
    /// Elements of a head that are turned: even, at most 256 and the head size.
    pub rotary_size: u32,
    /// Element type of tables of cosines and sines: WARPTILE_F32, or that of the tensors. 0: angles are computed.
    pub tables: u32,
    /// Positions that the tables have.
    pub table_positions: i64,
    /// Elements from one position of the tables to the next. 0: rotary_size / 2.
    pub table_stride: i64,
    /// Computed angles: pair i is turned by position * base^(-2i / rotary_size). 0: 10000.
    pub rotary_base: f64,
    /// Computed angles: pair i is turned by position * frequencies[i], in radians. rotary_size / 2 numbers in host memory, read by
    /// warptile_append_prepare. Null: by rotary_base.
    pub rotary_frequencies: *const f64,
    /// As in warptile_attention_desc.
    pub unchecked: u32,
    /// 0.
    pub reserved: u32,
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
    /// Of each row of k, counted through the batch, its row among all rows of all pages.
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
}

// SAFETY: as above.
unsafe impl Versioned for AppendMemory {
    const LEAST: usize = std::mem::offset_of!(AppendMemory, q);
}

/// A write that was checked and prepared for a device. It never changes: any number of threads may use it at the same time.
#[derive(Debug)]
pub struct Append {
    /// The lists of a write on the CPU are read at each run, so it is described anew.
    description: Description,
    append: Checked,
    /// `None` on the CPU.
    on: Option<OnGpu<PreparedAppend>>,
}

#[derive(Debug)]
struct Description {
    element: ElementType,
    new: [Strided; 2],
    pages: [Strided; 2],
    q: Option<Strided>,
    q_out: Option<Strided>,
    slots: bool,
    packed: bool,
    row_lengths: bool,
    /// Whether positions have 64 bits, if there are any.
    positions: Option<bool>,
    sequences: usize,
    longest: Option<usize>,
    columns: usize,
    rotary: Option<Rotary>,
    tables: Option<OfTables>,
    unchecked: bool,
}

/// The lists of a write on the CPU.
#[derive(Debug, Default)]
struct Lists<'a> {
    slots: Option<&'a [i64]>,
    block_table: Option<&'a [i32]>,
    row_offsets: Option<&'a [i32]>,
    row_lengths: Option<&'a [i32]>,
    key_lengths: Option<&'a [i32]>,
    positions: Option<Vec<i32>>,
}

impl Description {
    /// # Safety
    /// `desc` is null or points to as many bytes as its size says; frequencies as that says.
    unsafe fn read(desc: *const AppendDesc) -> Result<Self> {
        // SAFETY: the caller's promise.
        let desc = unsafe { read("desc", desc) }?;
        if desc.reserved != 0 {
            return Err(Failure::of("reserved", "must be 0"));
        }
        let element_type = element(desc.element)?;
        let k = desc.k.required("k")?;
        let packed = flag("packed", desc.packed)?;
        let sequences = match (packed, count("sequences", desc.sequences)?) {
            (true, given) => given,
            (false, given) if given == 0 || given == k.batch() => k.batch(),
            (false, given) => {
                return Err(Failure::of(
                    "sequences",
                    format!("is {given}, but k has batch {} and packed is 0", k.batch()),
                ));
            }
        };
        let longest = match count("longest", desc.longest)? {
            0 => None,
            _ if !packed => return Err(Failure::of("longest", "is given, but packed is 0")),
            longest => Some(longest),
        };
        // SAFETY: the caller's promise.
        let (rotary, tables) = unsafe { rotation(&desc) }?;
        Ok(Description {
            element: element_type,
            new: [k, desc.v.required("v")?],
            pages: [
                desc.k_pages.required("k_pages")?,
                desc.v_pages.required("v_pages")?,
            ],
            q: desc.q.given("q")?,
            q_out: desc.q_out.given("q_out")?,
            slots: flag("slots", desc.slots)?,
            packed,
            row_lengths: flag("row_lengths", desc.row_lengths)?,
            positions: match desc.positions {
                WARPTILE_POSITIONS_NONE => None,
                WARPTILE_POSITIONS_I32 => Some(false),
                WARPTILE_POSITIONS_I64 => Some(true),
                other => {
                    return Err(Failure::of(
                        "positions",
                        format!("is {other}, which is none of WARPTILE_POSITIONS_..."),
                    ));
                }
            },
            sequences,
            longest,
            columns: count("table_columns", desc.table_columns)?,
            rotary,
            tables,
            unchecked: flag("unchecked", desc.unchecked)?,
        })
    }

    /// What does not depend on where the lists are.
    fn builder<'a>(&self) -> Result<AppendBuilder<'a>> {
        let mut builder =
            Checked::builder(self.element, self.new.each_ref(), self.pages.each_ref());
        if let Some(rotary) = &self.rotary {
            builder = builder.rotary(rotary.clone());
        }
        match (self.q, self.q_out) {
            (Some(q), out) => Ok(builder.queries(q, out)),
            (None, None) => Ok(builder),
            (None, Some(_)) => Err(Failure::of("q_out", "is given, but q is not")),
        }
    }

    /// The write whose lists are in device memory, or not known yet.
    fn append(&self) -> Result<Checked> {
        let mut builder = self.builder()?;
        builder = match self.slots {
            true => builder.device_slots(),
            false => builder.device_key_lengths(self.sequences),
        };
        if self.columns != 0 {
            builder = builder.device_block_table(self.columns);
        }
        if self.packed {
            let longest = self.longest.unwrap_or(self.new[0].rows());
            builder = builder.device_packed(self.sequences, longest);
        }
        if self.row_lengths {
            builder = builder.device_row_lengths(self.sequences);
        }
        if let Some(wide) = self.positions {
            builder = builder.device_positions(wide);
        }
        Ok(builder.build()?)
    }

    /// The write with its lists.
    fn append_on_host(&self, lists: &Lists<'_>) -> Result<Checked> {
        let mut builder = self.builder()?;
        if let Some(slots) = lists.slots {
            builder = builder.slots(slots);
        }
        if let Some(lengths) = lists.key_lengths {
            builder = builder.key_lengths(lengths);
        }
        if let Some(table) = lists.block_table {
            builder = builder.block_table(table, self.columns);
        }
        if let Some(offsets) = lists.row_offsets {
            builder = builder.packed(offsets);
        }
        if let Some(lengths) = lists.row_lengths {
            builder = builder.row_lengths(lengths);
        }
        if let Some(positions) = &lists.positions {
            builder = builder.positions(positions);
        }
        Ok(builder.build()?)
    }

    /// # Safety
    /// Each list is null or points to as many numbers as the description says, which nobody writes for as long as `'a`.
    unsafe fn lists<'a>(&self, memory: &AppendMemory) -> Result<Lists<'a>> {
        let [batch, rows, ..] = self.new[0].shape;
        let tokens = batch.saturating_mul(rows);
        let sequences = self.sequences;
        // SAFETY: the caller's promise, of every list.
        unsafe {
            let narrow = list_on_host(
                "positions",
                self.positions.is_some(),
                memory.positions.cast::<i32>(),
                // Looked at below if they are wide.
                if self.positions == Some(false) {
                    tokens
                } else {
                    0
                },
            )?;
            let positions = match self.positions {
                Some(true) => {
                    let wide = Part::of("positions", memory.positions.cast::<i64>(), tokens)?;
                    // Beyond the last position all are the same.
                    let narrowed = |&position: &i64| {
                        position.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
                    };
                    Some(wide.slice().iter().map(narrowed).collect())
                }
                _ => narrow.map(<[i32]>::to_vec),
            };
            Ok(Lists {
                slots: list_on_host("slots", self.slots, memory.slots, tokens)?,
                block_table: list_on_host(
                    "block_table",
                    self.columns != 0,
                    memory.block_table,
                    sequences.saturating_mul(self.columns),
                )?,
                row_offsets: list_on_host(
                    "row_offsets",
                    self.packed,
                    memory.row_offsets,
                    sequences.saturating_add(1),
                )?,
                row_lengths: list_on_host(
                    "row_lengths",
                    self.row_lengths,
                    memory.row_lengths,
                    sequences,
                )?,
                key_lengths: list_on_host(
                    "key_lengths",
                    !self.slots,
                    memory.key_lengths,
                    sequences,
                )?,
                positions,
            })
        }
    }
}

/// Element type and layout of tables of angles.
type OfTables = (ElementType, Strided);

/// The rotation, and its tables if it has some.
///
/// # Safety
/// Frequencies are null, or as many as the description says.
unsafe fn rotation(desc: &AppendDesc) -> Result<(Option<Rotary>, Option<OfTables>)> {
    let pairing = match desc.rotary {
        WARPTILE_ROTARY_NONE => return Ok((None, None)),
        WARPTILE_ROTARY_INTERLEAVED => Pairing::Interleaved,
        WARPTILE_ROTARY_HALF_SPLIT => Pairing::HalfSplit,
        other => {
            return Err(Failure::of(
                "rotary",
                format!("is {other}, which is none of WARPTILE_ROTARY_..."),
            ));
        }
    };
    let size = desc.rotary_size as usize;
    let pairs = size / 2;
    if desc.tables != 0 {
        let of_table = element(desc.tables).map_err(|_| {
            Failure::of(
                "tables",
                format!("is {}, which is no element type", desc.tables),
            )
        })?;
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
        let rotary = Rotary::with_tables(of_table, layout, pairing)?;
        return Ok((Some(rotary), Some((of_table, layout))));
    }
    let rotary = match desc.rotary_frequencies.is_null() {
        true => {
            let base = match desc.rotary_base {
                0.0 => 10_000.0,
                base => base,
            };
            Rotary::computed(size, base, pairing)?
        }
        false => {
            // Before that many are read.
            Rotary::computed(size, 10_000.0, pairing)?;
            let frequencies = Part::of("rotary_frequencies", desc.rotary_frequencies, pairs)?;
            // SAFETY: the caller's promise.
            Rotary::with_frequencies(unsafe { frequencies.slice() }, pairing)?
        }
    };
    Ok((Some(rotary), None))
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
        let description = unsafe { Description::read(desc) }?;
        let checked = description.append()?;
        let on = OnGpu::load(device, description.unchecked, |gpu| {
            gpu.prepare_append(checked.element())
        })?;
        let made = Box::into_raw(Box::new(Append {
            description,
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
            return unsafe { run(&append.description, &memory) };
        };
        let (addresses, named) = addresses(&memory);
        on.launch(stream, &named, |stream| {
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

/// The addresses of a launch, and all of them by name.
fn addresses(memory: &AppendMemory) -> (AppendAddresses, [(&'static str, u64); 14]) {
    let mut to = AppendAddresses::default();
    to.q = address(memory.q);
    to.q_out = address(memory.q_out);
    to.k = address(memory.k);
    to.v = address(memory.v);
    to.k_pages = address(memory.k_pages);
    to.v_pages = address(memory.v_pages);
    to.slots = address(memory.slots);
    to.block_table = address(memory.block_table);
    to.row_offsets = address(memory.row_offsets);
    to.row_lengths = address(memory.row_lengths);
    to.key_lengths = address(memory.key_lengths);
    to.positions = address(memory.positions);
    to.cos = address(memory.cos);
    to.sin = address(memory.sin);
    let named = [
        ("q", to.q),
        ("q_out", to.q_out),
        ("k", to.k),
        ("v", to.v),
        ("k_pages", to.k_pages),
        ("v_pages", to.v_pages),
        ("slots", to.slots),
        ("block_table", to.block_table),
        ("row_offsets", to.row_offsets),
        ("row_lengths", to.row_lengths),
        ("key_lengths", to.key_lengths),
        ("positions", to.positions),
        ("cos", to.cos),
        ("sin", to.sin),
    ];
    (to, named)
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
unsafe fn run_on_cpu<T: Element>(description: &Description, memory: &AppendMemory) -> Result<()> {
    // SAFETY: the caller's promise.
    let lists = unsafe { description.lists(memory) }?;
    let append = description.append_on_host(&lists)?;
    let k = Part::<T>::tensor("k", memory.k.cast(), append.k())?;
    let v = Part::<T>::tensor("v", memory.v.cast(), append.v())?;
    let keys = Part::<T>::tensor(
        "k_pages",
        memory.k_pages.cast_const().cast(),
        append.k_pages(),
    )?;
    let values = Part::<T>::tensor(
        "v_pages",
        memory.v_pages.cast_const().cast(),
        append.v_pages(),
    )?;
    let q = optional::<T>("q", memory.q, append.q())?;
    let q_out = optional::<T>("q_out", memory.q_out, append.q_out())?;
    // SAFETY: the caller's promise.
    let (tables, of_tables) = unsafe { tables::<T>(description, memory) }?;

    let mut inputs = vec![k.place(), v.place()];
    inputs.extend(of_tables);
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
    // SAFETY: the caller's promise; any bits are a value of `T`, and outputs overlap nothing but, of keys and values interleaved, each
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
            cache,
            queries,
            tables,
        };
        append_cpu(&append, operands)?;
    }
    Ok(())
}

/// The tables of angles and where they are, if there are some.
///
/// # Safety
/// As [`warptile_append_run`] on the CPU.
unsafe fn tables<'a, T: Element>(
    description: &Description,
    memory: &AppendMemory,
) -> Result<(Option<Tables<'a, T>>, Vec<Place>)> {
    match &description.tables {
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
