//! The parameter blocks that launches pass to kernels, each declared once.
//!
//! [`Forward`], [`ForwardTma`], [`Merge`] and [`Append`] are *blocks*, the only argument of a kernel; they are made
//! of *parts*, so that a feature adds a part and not another block. Kernels for keys in e4m3 are others, and take
//! blocks of their own ([`ForwardE4m3`], [`AppendE4m3`]): those around the others', with the scales behind. `cargo
//! xtask build-kernels` writes the C++ of the same structs to `kernels/generated/` ([`cpp_headers`]); each image's record carries
//! [`Declared::HASH`] of the block it was compiled for.
//!
//! Device addresses are plain integers here and typed pointers in C++; 0 is the null pointer. Strides count elements, and a
//! dimension that is never stepped along has a stride of 0.

mod cpp;
mod declared;

use bytemuck::{Pod, Zeroable};

use cpp::{cpp_number, cpp_struct};
use declared::InCpp;

use crate::AlibiShape;
use crate::Features;
use crate::operand::Slots;
use crate::table::Operand;

pub use cpp::cpp_headers;
pub use declared::{Block, Declared, Leaf, Member};

/// First word of an image's record: "WTR2".
pub const RECORD_MAGIC: u32 = 0x5754_5232;

/// `window_left` or `window_right` of an unlimited side. Lengths are at most this, so any larger window reaches over
/// everything too, and `row + window` fits 32 bits.
pub const WINDOW_UNLIMITED: i32 = 1 << 30;

/// Bit of `ragged`: some offset or length lies on the device, so that lengths have to be read.
pub const RAGGED: i32 = 1;

/// Bit of `ragged`: some offset or length of keys lies on the device, so that a sequence's last row of k and v may be followed by rows
/// of another sequence, or by unused rows.
pub const RAGGED_KEYS: i32 = 2;

/// Bit of `ragged`: key lengths or numbers of pages lie on the device, and nothing else does, so that kernels may read them before
/// the launch ahead has ended, and once more afterwards.
pub const READ_AHEAD: i32 = 4;

/// Declares numbers that kernels and host go by.
macro_rules! numbers {
    ($($(#[doc = $doc:literal])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[doc = $doc])* pub const $name: $type = $value;)*

        /// Enumerators in C++ with these names and values, in order.
        fn cpp_numbers() -> String {
            [$(cpp_number(stringify!($name), $name as i64, &[$($doc),*])),*].join("")
        }

        const _: () = { $(assert!($name as i64 <= i32::MAX as i64);)* };
    };
}

numbers! {
    /// Bytes that kernels move at once. Rows of tensors start at multiples of it, except for images with the feature UNALIGNED. A thread
    /// of a merge or a cache write takes one such chunk of a row.
    CHUNK_BYTES: usize = 16;

    /// The most rows of a page of keys and values.
    MAX_PAGE_ROWS: usize = 256;

    /// Columns of a tensor map's box: one swizzled row of 128 bytes.
    BOX_COLUMNS: u32 = 64;

    /// Rows of q's box: those of one warpgroup, of one head or of all heads that share keys.
    QUERY_BOX_ROWS: u32 = 64;

    /// Rows of the box of the output: those of one warp, of one head or of two.
    OUTPUT_BOX_ROWS: u32 = 16;

    /// The fewest rows of a box of keys or values in a page.
    MIN_BOX_ROWS: usize = 16;

    /// The most query heads that share keys in tiles through tensor maps: with more, a warp would have rows of more than two.
    MAX_BOX_HEADS: usize = 8;

    /// CTAs of a cluster that computes pairs of tiles.
    PAIR_CTAS: u32 = 2;

    /// CTAs of a cluster that computes one tile: the most that every GPU with clusters can have.
    CLUSTER_CTAS: u32 = 8;

    /// Places for parts in the workspace that each CTA has where CTAs share keys evenly.
    CTA_PARTS: usize = 2;

    /// Floats of a part for each of its rows, in addition to the output: maximum and sum.
    PART_SUMS: usize = 2;

    /// Floats of a part of a split tile of `wgmma` for each of its rows, in addition to the output: maximum and sum from each of four threads.
    SPLIT_PART_SUMS: usize = 8;

    /// The largest number that kernels divide by an approximate reciprocal: up to it the quotient is exact.
    MAX_QUOTIENT: u64 = 1 << 20;
}

/// The most results that one launch merges.
pub const MERGE_PARTS: usize = 32;

/// The most tiles whose order a launch can carry.
pub const ORDERED_TILES: usize = 512;

/// The most pairs of elements that a rotary embedding rotates at angles computed from frequencies.
pub const ROTARY_PAIRS: usize = 128;

/// `[in place] member: Part` stands for the members of the part, which C++ has in the member's place. Its documentation has a line
/// for each of them.
macro_rules! declare {
    (fn $cpp_structs:ident; $($(#[doc = $doc:literal])* struct $name:ident $(align $align:literal)? {
        $($(#[doc = $member_doc:literal])* $([$in:ident $place:ident])? $member:ident: $type:ty $(= $cpp:literal)?,)*
    })*) => {
        declare! { $($(#[doc = $doc])* struct $name $(align $align)? {
            $($(#[doc = $member_doc])* $([$in $place])? $member: $type $(= $cpp)?,)*
        })* }

        /// The C++ of these structs, in order.
        fn $cpp_structs() -> String {
            [$(cpp_struct::<$name>(&[$($doc),*], declare!(@align $($align)?))),*].join("\n")
        }
    };
    ($($(#[doc = $doc:literal])* struct $name:ident $(align $align:literal)? {
        $($(#[doc = $member_doc:literal])* $([$in:ident $place:ident])? $member:ident: $type:ty $(= $cpp:literal)?,)*
    })*) => {
        $(
            $(#[doc = $doc])*
            #[repr(C $(, align($align))?)]
            #[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
            pub struct $name {
                $($(#[doc = $member_doc])* pub $member: $type,)*
            }

            /// All zeros: arrays this long have no other default.
            impl Default for $name {
                fn default() -> Self {
                    Zeroable::zeroed()
                }
            }

            impl Declared for $name {
                const NAME: &'static str = stringify!($name);
                const MEMBERS: &'static [Member] = &[$(Member {
                    name: stringify!($member),
                    offset: std::mem::offset_of!($name, $member),
                    cpp_type: declare!(@type $type $(, $cpp)?),
                    parts: <$type as InCpp>::PARTS,
                    docs: &[$($member_doc),*],
                    in_place: declare!(@in_place $($place)?),
                },)*];
            }

            impl InCpp for $name {
                const TYPE: &'static str = stringify!($name);
                const PARTS: &'static [Member] = <$name as Declared>::MEMBERS;
            }
        )*
    };
    (@type $type:ty) => { <$type as InCpp>::TYPE };
    (@type $type:ty, $cpp:literal) => { $cpp };
    (@in_place) => { false };
    (@in_place place) => { true };
    (@align) => { None };
    (@align $align:literal) => { Some($align) };
}

declare! {
    /// Heads and their sizes, as blocks have them: members of the block itself in C++.
    struct Heads {
        /// Query heads.
        heads: i32,
        /// Key/value heads.
        kv_heads: i32,
        /// Elements of a row of q and k.
        head_dim: i32,
        /// Elements of a row of v and out.
        value_dim: i32,
    }
}

declare! {
    fn cpp_structs;

    /// A tensor of rows of one head each; the elements of a row are contiguous.
    struct Tensor {
        /// Address of batch entry 0, row 0, head 0.
        address: u64 = "void*",
        /// Elements between batch entries, or between pages; 0 for packed tensors.
        batch: i64,
        /// Elements between rows.
        row: i64,
        /// Elements between heads.
        head: i64,
    }

    /// Where the sequences of a batch begin and how long they are. Numbers on the device are not validated: kernels clamp offsets to
    /// `query_rows` and `key_rows`, and lengths to `query_len` and `key_len`.
    struct Sequences {
        /// Sequences.
        batch: i32,
        /// Most queries of a sequence; dense without lengths: of each.
        query_len: i32,
        /// Most keys of a sequence; dense without lengths: of each.
        key_len: i32,
        /// Rows of q and out in a batch entry; packed: in all.
        query_rows: i32,
        /// Rows of k and v in a batch entry; packed: in all.
        key_rows: i32,
        /// [`RAGGED`], [`RAGGED_KEYS`] and [`READ_AHEAD`], as the pointers have it: one word is asked for sooner than five.
        ragged: i32,
        /// [batch + 1] first rows of packed queries; null: dense.
        query_offsets: u64 = "const int*",
        /// [batch + 1] first rows of packed keys and values; null: dense.
        key_offsets: u64 = "const int*",
        /// `[batch]` rows in use of each sequence of queries; null: all.
        query_lengths: u64 = "const int*",
        /// `[batch]` rows in use of each sequence of keys and values; null: all.
        key_lengths: u64 = "const int*",
    }

    /// Pages of keys and values that a table assigns to sequences. Page numbers on the device are not validated: attention clamps them to
    /// `count`, and a cache write leaves out rows of pages that do not exist. Entries past a sequence's last key may be read as far as the table
    /// has columns, and are not used.
    struct Pages {
        /// `[batch][...]` numbers of pages; null: not paged.
        table: u64 = "const int*",
        /// Entries between the rows of the table.
        table_row: i64,
        /// Keys a page.
        rows: i32,
        /// Pages.
        count: i32,
        /// 2^31 / rows times 2^rows_log, rounded up: see [`Pages::of`].
        rows_inverse: u32,
        /// The least with 2^rows_log >= rows.
        rows_log: i32,
    }

    /// From a dot product to a score, and which scores count: scale, softcap, ALiBi, bias, then mask.
    struct Scoring {
        /// Finite; score = scale * q.k.
        scale: f32,
        /// cap * tanh(score / cap) when > 0; 0 for none.
        softcap: f32,
        /// A query sees keys down to `diagonal - window_left`, ...
        window_left: i32,
        /// ... and up to `diagonal + window_right`; causal is (WINDOW_UNLIMITED, 0).
        window_right: i32,
        /// diagonal(i) = i if set, else i + key length - query length.
        align_top_left: i32,
        /// 1 if the bias is of f32 and the tensors are not, which images with BIAS_F32 look at. (Names are part of the blocks' hashes.)
        padding: i32,
        /// [slopes_batch * batch + head] ALiBi slopes; null: none.
        slopes: u64 = "const float*",
        /// `[head]` logits that join the denominator; null: none.
        sinks: u64 = "const float*",
        /// Numbers that are added to the scores, in the tensors' element type or f32; null: none.
        bias: u64 = "const void*",
        /// Bytes for queries and keys, where 0 hides the key from the query; null: no key is hidden.
        key_mask: u64 = "const unsigned char*",
        /// Slopes between batch entries; 0: all share them.
        slopes_batch: i64,
        /// Elements of the bias between batch entries.
        bias_batch: i64,
        /// Elements of the bias between query heads.
        bias_head: i64,
        /// Elements of the bias between queries.
        bias_row: i64,
        /// Elements of the bias between keys.
        bias_key: i64,
        /// Bytes of the mask between batch entries.
        mask_batch: i64,
        /// Bytes of the mask between query heads.
        mask_head: i64,
        /// Bytes of the mask between queries.
        mask_row: i64,
        /// Bytes of the mask between keys.
        mask_key: i64,
    }

    /// How the tiles of a launch are shared out.
    struct Work {
        /// Counter from which CTAs draw tiles; 0 before and after each launch. Null: CTA c computes tiles c, c + grid, ...
        counter: u64 = "unsigned*",
        /// One for each CTA, for the tiles that several share; 0 before and after each launch.
        semaphores: u64 = "unsigned*",
        /// Outputs, maxima and sums of the parts of tiles that several CTAs share.
        partials: u64 = "float*",
        /// Tiles in all: query_tiles * heads, and * batch unless the queries are packed.
        tiles: i32,
        /// Tiles of a head: of one batch entry, or of all packed queries.
        query_tiles: i32,
        /// Heads whose tiles are interleaved: of all batch entries together, or of the packed queries. At least 1.
        heads_at_once: i32,
        /// Ranges that the keys of a tile are split into; 1 or 0: none.
        splits: i32,
        /// Keys of a range, a power of two. 0: CTAs share the keys evenly.
        keys_per_split: i32,
        /// Where CTAs share keys: key/value heads that are read at the same time, a divisor of them and of the grid. At least 1.
        side_by_side: i32,
    }

    /// Block of the kernels that read through addresses. What a CTA asks for before its first load comes first: those constants
    /// are not in its multiprocessor's cache yet.
    struct Forward {
        /// Tiles.
        work: Work,
        /// Query heads.
        /// Key/value heads; divides `heads`.
        /// Elements of a row of q and k: at most the tiling's head size, a multiple of 8.
        /// Elements of a row of v and out: at most the tiling's head size of values, a multiple of 8.
        [in place] heads: Heads,
        /// Lengths.
        sequences: Sequences,
        /// Scores.
        scoring: Scoring,
        /// Where keys and values lie if they are paged.
        pages: Pages,
        /// Queries.
        q: Tensor,
        /// Keys.
        k: Tensor,
        /// Values.
        v: Tensor,
        /// The output.
        out: Tensor,
        /// Natural logarithm of each row's sum of exponentials; null: not wanted.
        lse: u64 = "float*",
        /// Elements of the lse between batch entries; 0 for packed queries.
        lse_batch: i64,
        /// Elements of the lse between heads; its rows are contiguous.
        lse_head: i64,
    }

    /// Scales of keys and values in e4m3: one number for all key/value heads, or one for each. Kernels read them at run time.
    struct KeyScales {
        /// Scales of the keys.
        k: u64 = "const float*",
        /// Scales of the values.
        v: u64 = "const float*",
        /// Step between the keys' scales of neighbouring key/value heads: 0 or 1.
        k_step: i32,
        /// Step between the values' scales of neighbouring key/value heads: 0 or 1.
        v_step: i32,
    }

    /// Block of the kernels that read keys and values in e4m3 through addresses.
    struct ForwardE4m3 {
        /// Everything else. Strides of k and v count their elements, which are bytes.
        forward: Forward,
        /// Scales.
        scales: KeyScales,
    }

    /// A tensor map as cuTensorMapEncodeTiled fills it in; only the copy engine reads it.
    struct TensorMap align 64 {
        /// Its 128 bytes.
        opaque: [u64; 16] = "unsigned long long[16]",
    }

    /// Block of the kernels that read and write through tensor maps. Maps have 4 dimensions (head_dim, row, head, batch), read zeros
    /// and write nothing outside of an extent, and have a 128-byte swizzle and boxes of BOX_COLUMNS x QUERY_BOX_ROWS (q), BLOCK_N (k, v) or
    /// OUTPUT_BOX_ROWS (out). A packed tensor has batch extent 1 and all its rows in one sequence.
    struct ForwardTma align 64 {
        /// Queries.
        q_map: TensorMap,
        /// Keys.
        k_map: TensorMap,
        /// Values.
        v_map: TensorMap,
        /// The output.
        out_map: TensorMap,
        /// Everything else.
        forward: Forward,
        /// Tiles that `order` has: all of the launch, or 0 where CTAs take tiles by their numbers.
        ordered: i32,
        /// Unused.
        padding: [i32; 3] = "int[3]",
        /// The tile for each number, in dense launches.
        order: [u16; 512] = "unsigned short[512]",
    }

    /// The description of an image, in its constant `warptile_record`.
    struct RecordWords {
        /// [`RECORD_MAGIC`].
        magic: u32,
        /// A `Role`.
        role: u32,
        /// A `Schedule`.
        schedule: u32,
        /// `Features`.
        features: u32,
        /// [`Declared::HASH`] of the block it takes.
        abi_hash: u64,
        /// Size of that block in bytes.
        param_bytes: u32,
        /// Size of an element in bytes.
        element_bytes: u32,
        /// Query rows of a tile.
        block_m: u32,
        /// Keys of a tile.
        block_n: u32,
        /// Head size of the tile, for queries and keys.
        head_dim: u32,
        /// K/V tiles in flight.
        stages: u32,
        /// Warps of a CTA, producers included.
        warps: u32,
        /// CTAs an SM that it was compiled for.
        min_ctas: u32,
        /// Elements between rows of K in shared memory; 0 where rows are swizzled instead of padded.
        k_stride: u32,
        /// Elements between rows of V in shared memory; 0 where rows are swizzled instead of padded.
        v_stride: u32,
        /// Dynamic shared memory in bytes that a launch must ask for.
        shared_bytes: u32,
        /// Head size of the tile, for values. 0, in images from before this field, means `head_dim`.
        value_dim: u32,
    }
}

declare! {
    fn cpp_operations;

    /// Block of the kernels that merge results of attention over disjoint keys.
    struct Merge {
        /// Results to be merged, at least 1.
        parts: i32,
        /// 1 if each lse is a logarithm to base 2, 0 if it is a natural one.
        base_two: i32,
        /// Rows of a batch entry.
        rows: i32,
        /// Heads.
        heads: i32,
        /// Elements of a row of a head.
        head_dim: i32,
        /// CTAs that share a row of all heads. CTA c is number c % row_ctas of row c / row_ctas, counted through the batch.
        row_ctas: i32,
        /// The merged output.
        out: Tensor,
        /// The merged lse, a float for each row and head; null: not wanted.
        lse: Tensor,
        /// The outputs to be merged.
        outs: [Tensor; 32] = "Tensor[32]",
        /// Their lse, a float for each row and head; null: the outputs to be merged are floats, and are added.
        lses: [Tensor; 32] = "Tensor[32]",
    }

    /// Rotation of pairs of elements by angles that are proportional to a row's position. Positions on the device are not validated: the
    /// kernels clamp them to [0, positions_end).
    struct Rotary {
        /// Number of elements of a head that are rotated, from the first on: even; 0: none.
        size: i32,
        /// 1 if elements 2i and 2i + 1 are a pair, 0 if i and size / 2 + i are.
        interleaved: i32,
        /// 1 if the tables are float, 0 if they have the tensors' element type.
        float_tables: i32,
        /// 1 if positions have 64 bits, 0 if they have 32.
        wide_positions: i32,
        /// A position for each row of k, counted through the batch; null: the place in the sequence.
        positions: u64 = "const void*",
        /// Exclusive upper bound of positions; the number of rows of the tables, if there are tables.
        positions_end: i64,
        /// [positions_end][size / 2] cosines; null: angles are computed.
        cos: u64 = "const void*",
        /// [positions_end][size / 2] sines.
        sin: u64 = "const void*",
        /// Elements between the rows of both tables.
        table_row: i64,
        /// Turns that one position adds to each pair's angle, in units of 2^-64.
        turns: [u64; 128] = "unsigned long long[128]",
    }

    /// Block of the kernels that write new keys and values into a cache, and rotate queries and keys on the way.
    struct Append {
        /// The new rows are queries here: a sequence has at most `query_len` of them, of the rows `query_rows` of k and v. The
        /// rows that the cache has of it already are keys: `key_lengths` of at most `key_len`.
        sequences: Sequences,
        /// The cache's pages. Without a table and slots page b is sequence b's only one.
        pages: Pages,
        /// Destination of each row of k, counted through the batch: page * rows + row. A row whose slot is outside the cache is not written.
        /// Null: new rows follow the rows that their sequence has.
        slots: u64 = "const long long*",
        /// Query heads; 0: no queries.
        /// Key/value heads.
        /// Elements of a row of q and k.
        /// Elements of a row of v.
        [in place] heads: Heads,
        /// Threads that share a head of a row, with at most a chunk of 16 bytes each.
        lanes: i32,
        /// CTAs that share a row of all heads. CTA c is number c % row_ctas of row c / row_ctas, as new_row (ops/append.cuh) numbers them.
        row_ctas: i32,
        /// Queries.
        q: Tensor,
        /// Where rotated queries go; may be `q`.
        q_out: Tensor,
        /// New keys.
        k: Tensor,
        /// New values.
        v: Tensor,
        /// Keys of the cache; its batch entries are pages.
        k_pages: Tensor,
        /// Values of the cache.
        v_pages: Tensor,
        /// Rotation of q and k.
        rotary: Rotary,
    }

    /// Block of the kernels that write into a cache in e4m3: each number is divided by its scale, and rounded.
    struct AppendE4m3 {
        /// Everything else. Strides of the cache count its elements, which are bytes.
        append: Append,
        /// Scales.
        scales: KeyScales,
    }
}

/// Query rows of a CTA of the pre-pass. The numbers of a sequence's rows begin at a multiple of it.
pub const PREPASS_ROWS: usize = 64;

declare! {
    fn cpp_backward;

    /// Block of the pre-pass of the backward pass. CTA c has PREPASS_ROWS rows of a head: number c % query_tiles of the tiles of head
    /// c / query_tiles, counted through the batch. It writes as many numbers, from c * PREPASS_ROWS on. A head's tiles are numbered as
    /// forward numbers them (work/order.cuh): of packed queries, sequence b has those from its first row / PREPASS_ROWS + b on.
    struct Prepass {
        /// Lengths of queries.
        sequences: Sequences,
        /// Query heads.
        heads: i32,
        /// Elements of a row of a head.
        head_dim: i32,
        /// Tiles of a head: of one batch entry, or of all packed queries.
        query_tiles: i32,
        /// Lanes that share a row, a power of two of at most 32.
        lanes: i32,
        /// The output.
        out: Tensor,
        /// The gradient of the output.
        d_out: Tensor,
        /// Natural logarithm of each row's sum of exponentials.
        lse: u64 = "const float*",
        /// Elements of the lse between batch entries; 0 for packed queries.
        lse_batch: i64,
        /// Elements of the lse between heads; its rows are contiguous.
        lse_head: i64,
        /// The gradient of the lse, where the lse has its rows; null: none.
        d_lse: u64 = "const float*",
        /// The sum over each row of the output times its gradient, less the gradient of its lse; 0 for rows past a sequence's end.
        delta: u64 = "float*",
        /// The lse to base 2; plus infinity for rows that see no key or whose lse is farther from 0 than `Prepass::LARGEST_LSE`, and for rows past a
        /// sequence's end.
        scaled_lse: u64 = "float*",
        /// `[CTAs]` set to 0, for the kernel that adds to `dq_sum` in turn; null: none.
        turns: u64 = "unsigned*",
    }

    /// The numbers that steps of a backward pass leave for later ones. Tile t is that of CTA t of the pre-pass: PREPASS_ROWS query rows
    /// of a head, number t % query_tiles of the tiles of head t / query_tiles, counted through the batch.
    struct QueryRows {
        /// `delta` of the pre-pass: tile t has PREPASS_ROWS numbers from t * PREPASS_ROWS on.
        delta: u64 = "const float*",
        /// `scaled_lse` of the pre-pass, in the same order.
        scaled_lse: u64 = "const float*",
        /// Sums of dq over the keys that were added so far, in a layout of the kernels' own. Tile t has
        /// n = PREPASS_ROWS * (the tiling's head size) numbers, from t * n on. It need not be cleared: the first tile of keys
        /// stores instead of adding. Null: the plan has no kernel that adds.
        dq_sum: u64 = "float*",
        /// For each tile, the number of tiles of keys that were added to its sum; it tells whose turn it is. 0 before the kernel that adds.
        turns: u64 = "unsigned*",
        /// Tiles of a head: of one batch entry, or of all packed queries.
        query_tiles: i32,
        /// Unused.
        unused: i32,
    }

    /// How the tiles of a launch are shared out: those of keys of a key/value head, or of queries of a head. A head's tiles are numbered as
    /// forward numbers those of queries (work/order.cuh): of packed rows, sequence b has those from its first row / BLOCK + b on.
    struct BackwardWork {
        /// Counter from which CTAs draw tiles; 0 before and after each launch. Null where each CTA has one tile.
        counter: u64 = "unsigned*",
        /// Tiles in all: head_tiles * heads, and * batch unless the rows are packed.
        tiles: i32,
        /// Tiles of a head: of one batch entry, or of all packed rows.
        head_tiles: i32,
        /// Heads whose tiles are interleaved: of all batch entries together, or of the packed rows. At least 1.
        heads_at_once: i32,
        /// Unused.
        unused: i32,
    }

    /// Block of the kernels of the backward pass that read and write through addresses: the portable pair (dK and dV of a tile of keys,
    /// and dQ of a tile of queries), and those that turn sums of dQ into dQ. One block serves all of them, for they differ only in what
    /// the tiles of `work` are, and in whether `rows.dq_sum` is there. With s the scores and p = exp2(s * log2(e) - scaled_lse), the
    /// gradient of a score is ds = p * (d_out v - delta); a bound multiplies it by its derivative; dq = scale * ds k, dk = scale * ds q,
    /// dv = p d_out.
    struct Backward {
        /// Tiles.
        work: BackwardWork,
        /// Query heads.
        /// Key/value heads; divides `heads`.
        /// Elements of a row of q and k: at most the tiling's head size, a multiple of 8.
        /// Elements of a row of v and d_out: at most the tiling's head size of values, a multiple of 8.
        [in place] heads: Heads,
        /// Lengths.
        sequences: Sequences,
        /// Scores. Sinks take part in the lse alone.
        scoring: Scoring,
        /// Numbers of query rows.
        rows: QueryRows,
        /// Queries.
        q: Tensor,
        /// Keys.
        k: Tensor,
        /// Values.
        v: Tensor,
        /// The gradient of the output.
        d_out: Tensor,
        /// The gradient of the queries; null: not wanted.
        dq: Tensor,
        /// The gradient of the keys; null: not wanted.
        dk: Tensor,
        /// The gradient of the values; null: not wanted.
        dv: Tensor,
        /// [`GRADIENTS_F32`] and [`GRADIENTS_ADD`].
        gradients: i32,
        /// Unused.
        unused: i32,
    }

    /// Block of the gradient of the sinks. CTA h sums over all query rows of head h, in order.
    struct SinkGradient {
        /// Numbers of query rows.
        rows: QueryRows,
        /// `[head]` logits that join the denominator.
        sinks: u64 = "const float*",
        /// `[head]` their gradients.
        d_sinks: u64 = "float*",
        /// Query heads.
        heads: i32,
        /// Batch entries; 1 for packed queries.
        entries: i32,
        /// [`GRADIENTS_ADD`].
        gradients: i32,
        /// Unused.
        unused: i32,
    }
}

declare! {
    fn cpp_backward_tma;

    /// Block of the kernels of the backward pass for Hopper, which read through tensor maps as those of [`ForwardTma`] do: the boxes are
    /// BOX_COLUMNS x QUERY_BOX_ROWS (q, d_out) or BLOCK_N (k, v). They write through the addresses of `backward`.
    struct BackwardTma align 64 {
        /// Queries.
        q_map: TensorMap,
        /// Keys.
        k_map: TensorMap,
        /// Values.
        v_map: TensorMap,
        /// The gradient of the output.
        d_out_map: TensorMap,
        /// Everything else.
        backward: Backward,
        /// Unused.
        padding: [i32; 4] = "int[4]",
    }
}

declare! {
    fn cpp_dropout;

    /// Which weights are dropped.
    struct Dropout {
        /// The words of a [`DropoutState`](crate::DropoutState). They are not validated: kernels clear the low bits of the last two.
        state: u64 = "const unsigned*",
        /// 2^16 times the probability that a weight is dropped. The weights of a cell share a threshold of 8 bits: its upper byte, and one more
        /// as often as the lower byte says.
        dropped: u32,
        /// Factor of weights that are kept.
        factor: f32,
    }

    /// Block of the kernels with dropout that read through addresses.
    struct ForwardDropout {
        /// Everything else.
        forward: Forward,
        /// Dropout.
        dropout: Dropout,
    }

    /// Block of the kernels with dropout that read through tensor maps.
    struct ForwardTmaDropout align 64 {
        /// Everything else.
        tma: ForwardTma,
        /// Dropout.
        dropout: Dropout,
        /// Unused.
        padding: [i32; 12] = "int[12]",
    }
}

declare! {
    fn cpp_blocks;

    /// Which blocks of keys each block of queries sees: row r of list l is `indices` from `offsets[l * rows + r]` to the next offset. Numbers
    /// on the device are not validated: kernels clamp offsets to `count`, an index below 0 ends a row, and one past the last block of a
    /// sequence's keys is left out.
    struct BlockLists {
        /// Where each row begins, and the end of the last one.
        offsets: u64 = "const int*",
        /// Numbers of blocks of keys.
        indices: u64 = "const int*",
        /// Rows of a list.
        rows: i32,
        /// Indices there are.
        count: i32,
        /// Lists between those of neighbouring sequences.
        batch_step: i32,
        /// Lists between those of neighbouring query heads.
        head_step: i32,
        /// Queries of a block.
        queries: i32,
        /// Keys of a block.
        keys: i32,
    }

    /// Block of the kernels with lists of blocks that read through addresses.
    struct ForwardBlocks {
        /// Everything else.
        forward: Forward,
        /// The lists.
        blocks: BlockLists,
    }

    /// Block of the kernels with lists of blocks that read through tensor maps. Boxes of keys and values have LISTED_BOX_ROWS rows.
    struct ForwardTmaBlocks align 64 {
        /// Everything else.
        tma: ForwardTma,
        /// The lists.
        blocks: BlockLists,
        /// Unused.
        padding: [i32; 6] = "int[6]",
    }
}

declare! {
    fn cpp_boxes;

    /// Block of the kernels that read a bias or a key mask through a tensor map: of dimensions (key, query, head, batch), with boxes of
    /// BOX_COLUMNS x QUERY_BOX_ROWS whose rows are swizzled over all of their bytes. It has one head or batch entry where the tensor does not
    /// depend on it.
    struct ForwardTmaBoxes align 64 {
        /// Everything else.
        tma: ForwardTma,
        /// The tensor, which starts at a multiple of 16 bytes.
        boxes_map: TensorMap,
        /// Columns of the map in front of the first key: 0, or all of them where the tensor is not given.
        before: i32,
        /// Unused.
        padding: [i32; 15] = "int[15]",
    }
}

declare! {
    fn cpp_runs;

    /// Block of the kernel that finds the sequences of which a key mask shows the first keys and no others, as of padding behind them; the
    /// mask is the same for all queries and heads. A launch behind it takes their keys by lengths, without the mask. It finds no keys in the
    /// others, and what it writes there is written again by a launch with the mask, which finds no queries in the first ones.
    struct KeyRuns {
        /// Bytes for keys, where 0 hides the key.
        key_mask: u64 = "const unsigned char*",
        /// Bytes of the mask between batch entries.
        mask_batch: i64,
        /// Bytes of the mask between keys.
        mask_key: i64,
        /// `[batch]` keys that are shown, where they are the first ones; else 0.
        key_lengths: u64 = "int*",
        /// `[batch]` queries of each other sequence; else 0.
        other_queries: u64 = "int*",
        /// Counter from which CTAs draw the tiles of the launch without the mask.
        run_counter: u64 = "unsigned*",
        /// Counter from which CTAs draw the tiles of the launch with it.
        other_counter: u64 = "unsigned*",
        /// What `run_counter` is set to if no sequence is the first launch's, so that no CTA has a second tile and the last one leaves 0;
        /// else to 0.
        no_runs: u32,
        /// What `other_counter` is set to if no sequence is the second launch's, likewise.
        no_others: u32,
        /// Sequences.
        batch: i32,
        /// Queries of a sequence.
        query_len: i32,
        /// Keys of a sequence.
        key_len: i32,
        /// Unused.
        unused: i32,
    }
}

declare! {
    fn cpp_backward_dropout;

    /// Block of the kernels of the backward pass with dropout that read through addresses.
    struct BackwardDropout {
        /// Everything else.
        backward: Backward,
        /// Dropout.
        dropout: Dropout,
    }
}

declare! {
    fn cpp_backward_blocks;

    /// Block of the kernels of the backward pass with lists of blocks.
    struct BackwardBlocks {
        /// Everything else.
        backward: Backward,
        /// The lists.
        blocks: BlockLists,
    }
}

declare! {
    fn cpp_backward_bias;

    /// Block of the gradient of a bias, which has a tile of it for each CTA. An extent of 1 stands for all: CTAs sum over it, batch entry
    /// by batch entry, head by head, and block by block of queries and keys.
    struct BiasGradient {
        /// The backward pass; `work` has the number of tiles alone.
        dropping: BackwardDropout,
        /// The gradient; keys are neighbours.
        d_bias: u64 = "void*",
        /// Its elements between batch entries.
        batch_step: i64,
        /// Its elements between queries.
        row_step: i64,
        /// Its elements between query heads.
        head_step: i64,
        /// Its batch entries.
        batch: i32,
        /// Its queries.
        rows: i32,
        /// Its query heads.
        heads: i32,
        /// Its keys.
        keys: i32,
    }
}

declare! {
    fn cpp_backward_tma_dropout;

    /// Block of the kernels of the backward pass for Hopper with dropout.
    struct BackwardTmaDropout align 64 {
        /// Everything else.
        tma: BackwardTma,
        /// Dropout.
        dropout: Dropout,
        /// Unused.
        padding: [i32; 12] = "int[12]",
    }
}

/// Keys that kernels with lists of blocks load at once, and the least rows of a block in such a list.
pub const LISTED_BOX_ROWS: u32 = 64;

/// Bit of `gradients`: they are written as `f32`, else in the tensors' element type.
pub const GRADIENTS_F32: i32 = 1;

/// Bit of `gradients`: they are added to what is there.
pub const GRADIENTS_ADD: i32 = 2;

impl Pages {
    /// With what a division by `rows` takes: for keys below 2^31 the page is the upper half of `2 * key * rows_inverse`, shifted right
    /// by `rows_log`. The inverse is too large by less than `2^rows_log / rows` of its last place, so that the quotient is exact.
    /// (T. Granlund, P. Montgomery, "Division by Invariant Integers using Multiplication", theorem 4.2.)
    ///
    /// Without rows no page is looked up, and the inverse is that of 1.
    pub const fn of(table: u64, table_row: i64, rows: i32, count: i32) -> Self {
        let divisor = if rows > 0 { rows as u64 } else { 1 };
        let rows_log = divisor.next_power_of_two().trailing_zeros();
        Pages {
            table,
            table_row,
            rows,
            count,
            rows_inverse: (1_u64 << (31 + rows_log)).div_ceil(divisor) as u32,
            rows_log: rows_log as i32,
        }
    }
}

impl From<crate::Heads> for Heads {
    fn from(heads: crate::Heads) -> Self {
        let [head_dim, value_dim] = heads.dims().map(|size| size as i32);
        Heads {
            heads: heads.query as i32,
            kv_heads: heads.key_value as i32,
            head_dim,
            value_dim,
        }
    }
}

impl Sequences {
    /// With `ragged` as the pointers have it.
    pub const fn with_ragged(self, pages: &Pages) -> Self {
        let keys = self.key_offsets | self.key_lengths;
        let others = self.key_offsets | self.query_offsets | self.query_lengths;
        let mut ragged = 0;
        if keys | others != 0 {
            ragged |= RAGGED;
        }
        if keys != 0 {
            ragged |= RAGGED_KEYS;
        }
        if self.key_lengths | pages.table != 0 && others == 0 {
            ragged |= READ_AHEAD;
        }
        Sequences { ragged, ..self }
    }
}

impl Scoring {
    /// With the numbers of options, and the slopes between batch entries.
    pub fn with_numbers(self, options: &crate::Scoring, heads: &crate::Heads) -> Self {
        let [scale, softcap] = options.numbers(heads.dim);
        let slopes_batch = match options.alibi {
            Some(AlibiShape::PerBatchHead) => heads.query as i64,
            _ => 0,
        };
        Scoring {
            scale,
            softcap,
            slopes_batch,
            padding: i32::from(options.operands.contains(Features::BIAS_F32)),
            ..self
        }
    }

    /// With the operands of options: their addresses, and the steps of tensors between batch entries, queries, heads and keys.
    pub fn with_operands(self, at: &Slots<u64>, steps: impl Fn(Operand) -> [i64; 4]) -> Self {
        let [bias_batch, bias_row, bias_head, bias_key] = steps(Operand::Bias);
        let [mask_batch, mask_row, mask_head, mask_key] = steps(Operand::KeyMask);
        Scoring {
            slopes: at[Operand::Slopes],
            sinks: at[Operand::Sinks],
            bias: at[Operand::Bias],
            key_mask: at[Operand::KeyMask],
            bias_batch,
            bias_row,
            bias_head,
            bias_key,
            mask_batch,
            mask_row,
            mask_head,
            mask_key,
            ..self
        }
    }
}

impl KeyRuns {
    /// With the mask of a call in which it is the same for all queries and heads.
    pub fn of(scoring: &Scoring) -> Self {
        KeyRuns {
            key_mask: scoring.key_mask,
            mask_batch: scoring.mask_batch,
            mask_key: scoring.mask_key,
            ..Default::default()
        }
    }
}

macro_rules! blocks {
    ($($(#[$doc:meta])* $LIST:ident: $($name:ident),*;)*) => {
        $($(impl Block for $name {})*

        $(#[$doc])*
        pub const $LIST: &[u64] = &[$($name::HASH),*];)*

        /// The hash and the size of every [`Block`].
        pub const BLOCKS: &[(u64, usize)] = &[$($(($name::HASH, size_of::<$name>())),*),*];

        /// The names of [`BLOCKS`].
        const BLOCK_NAMES: &[&str] = &[$($($name::NAME),*),*];
    };
}
blocks! {
    /// The hashes of the blocks of attention's kernels.
    FORWARD_BLOCKS: Forward, ForwardTma, ForwardE4m3, ForwardDropout, ForwardTmaDropout, ForwardBlocks, ForwardTmaBlocks, ForwardTmaBoxes, KeyRuns;
    /// The hashes of the blocks of the backward pass's kernels.
    BACKWARD_BLOCKS: Prepass, Backward, BackwardTma, SinkGradient, BiasGradient, BackwardDropout, BackwardTmaDropout, BackwardBlocks;
    /// The hash of the block of the kernels that merge.
    MERGE_BLOCKS: Merge;
    /// The hashes of the blocks of the kernels that write into caches.
    APPEND_BLOCKS: Append, AppendE4m3;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_sizes_that_every_host_knows() {
        assert_eq!(size_of::<Tensor>(), 32);
        assert_eq!(size_of::<Forward>(), 432);
        assert_eq!(size_of::<ForwardTma>(), 1984);
        assert_eq!(std::mem::offset_of!(ForwardTma, forward), 512);
        assert_eq!((size_of::<Merge>(), size_of::<Append>()), (2136, 1392));
        // The limit of a launch's parameters in CUDA 12.0, in bytes.
        assert!(size_of::<Merge>().max(size_of::<Append>()) <= 4096);
        assert_eq!(Merge::default().outs.len(), MERGE_PARTS);
        assert_eq!(ForwardTma::default().order.len(), ORDERED_TILES);
        assert_eq!(Rotary::default().turns.len(), ROTARY_PAIRS);
    }

    #[test]
    fn an_option_that_is_not_used_is_0() {
        let heads = crate::Heads::new(8, 64);
        let block = |words: &str| Scoring::default().with_numbers(&words.parse().unwrap(), &heads);
        let [plain, all] = ["", "scale=2 softcap=3 alibi=batch"].map(block);
        assert_eq!(
            (plain.scale, plain.softcap, plain.slopes_batch),
            (0.125, 0.0, 0)
        );
        assert_eq!((all.scale, all.softcap, all.slopes_batch), (2.0, 3.0, 8));
    }

    #[test]
    fn the_inverse_of_a_pages_rows_divides_every_key() {
        // As `page_number` in kernels/memory/keys.cuh.
        let number = |pages: &Pages, key: u32| {
            ((u64::from(2 * key) * u64::from(pages.rows_inverse)) >> 32) as u32 >> pages.rows_log
        };
        let largest = i32::MAX as u32;
        for rows in (1..=4096).chain([65_535, 65_537, 1 << 30, (1 << 30) + 1, i32::MAX]) {
            let pages = Pages::of(64, 1, rows, 1);
            let rows = rows as u32;
            // Where a quotient that is too large or too small by the least shows.
            let last = largest / rows * rows;
            for first in [0, rows, last / rows / 2 * rows, last - rows, last] {
                for key in [
                    first.saturating_sub(1),
                    first,
                    first + 1,
                    first.saturating_add(rows - 1),
                ] {
                    let key = key.min(largest);
                    assert_eq!(number(&pages, key), key / rows, "key {key}, {rows} rows");
                }
            }
        }
        assert_eq!(Pages::of(0, 0, 0, 0).rows_log, 0);
    }
}
