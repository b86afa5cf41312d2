//! Cache writes as C describes them, and their memory.

use std::ffi::c_void;

use attention::gpu::AppendAddresses;

use crate::structs::{Layout, Versioned, address};

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
    /// Columns of the block table, whose rows lie one after the other. 0: there is no table.
    pub table_columns: i64,
    /// Elements of a head that are turned: even, at most 256 and the head size.
    pub rotary_size: u32,
    /// Element type of tables of cosines and sines: WARPTILE_F32, or that of the tensors. 0: angles are computed.
    pub tables: u32,
    /// Positions that the tables have. One beyond them is refused if it is known on the host; on a device it counts as the last.
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
    /// Element type of the cache: 0, for `element`, or WARPTILE_E4M3, beside any of the others.
    pub cache_element: u32,
    /// With WARPTILE_E4M3: how many numbers k_scale has, 1 or one for each key/value head. 0: 1.
    pub k_scales: u32,
    /// The same of v_scale.
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
    /// What keys are divided by before they go into a cache in e4m3, as the nearest numbers, at most 448: finite, above 0. A GPU reads them
    /// when the work runs, and does not check them.
    pub k_scale: *const f32,
    /// The same of values.
    pub v_scale: *const f32,
}

// SAFETY: as above.
unsafe impl Versioned for AppendMemory {
    const LEAST: usize = std::mem::offset_of!(AppendMemory, q);
}

impl AppendMemory {
    pub(crate) fn addresses(&self) -> AppendAddresses {
        let mut to = AppendAddresses::default();
        to.q = address(self.q);
        to.q_out = address(self.q_out);
        to.k = address(self.k);
        to.v = address(self.v);
        to.k_pages = address(self.k_pages);
        to.v_pages = address(self.v_pages);
        to.slots = address(self.slots);
        to.block_table = address(self.block_table);
        to.row_offsets = address(self.row_offsets);
        to.row_lengths = address(self.row_lengths);
        to.key_lengths = address(self.key_lengths);
        to.positions = address(self.positions);
        to.cos = address(self.cos);
        to.sin = address(self.sin);
        to.k_scale = address(self.k_scale);
        to.v_scale = address(self.v_scale);
        to
    }
}
