// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.
#pragma once

namespace warptile {

constexpr int WINDOW_UNLIMITED = 1073741824;
constexpr int RAGGED = 1, RAGGED_KEYS = 2, READ_AHEAD = 4;
constexpr unsigned RECORD_MAGIC = 0x57545232;

// Numbers that the host uses too. Enumerators, because NVRTC emits a variable for each `constexpr` of a namespace.
namespace abi {
enum : int {
    CHUNK_BYTES = 16, // Bytes that kernels move at once. Rows of tensors start at multiples of it, except for images with the feature UNALIGNED. A thread of a merge or a cache write takes one such chunk of a row.
    MAX_PAGE_ROWS = 256, // The most rows of a page of keys and values.
    BOX_COLUMNS = 64, // Columns of a tensor map's box: one swizzled row of 128 bytes.
    QUERY_BOX_ROWS = 64, // Rows of q's box: those of one warpgroup, of one head or of all heads that share keys.
    OUTPUT_BOX_ROWS = 16, // Rows of the box of the output: those of one warp, of one head or of two.
    MIN_BOX_ROWS = 16, // The fewest rows of a box of keys or values in a page.
    MAX_BOX_HEADS = 8, // The most query heads that share keys in tiles through tensor maps: with more, a warp would have rows of more than two.
    PAIR_CTAS = 2, // CTAs of a cluster that computes pairs of tiles.
    CLUSTER_CTAS = 8, // CTAs of a cluster that computes one tile: the most that every GPU with clusters can have.
    CTA_PARTS = 2, // Places for parts in the workspace that each CTA has where CTAs share keys evenly.
    PART_SUMS = 2, // Floats of a part for each of its rows, in addition to the output: maximum and sum.
    SPLIT_PART_SUMS = 8, // Floats of a part of a split tile of `wgmma` for each of its rows, in addition to the output: maximum and sum from each of four threads.
    MAX_QUOTIENT = 1048576, // The largest number that kernels divide by an approximate reciprocal: up to it the quotient is exact.
};
} // namespace abi

// Bits of `features` in an image's record.
constexpr unsigned FEATURE_SOFTCAP = 1u << 0;
constexpr unsigned FEATURE_ALIBI = 1u << 1;
constexpr unsigned FEATURE_SINKS = 1u << 2;
constexpr unsigned FEATURE_BIAS = 1u << 3;
constexpr unsigned FEATURE_KEY_MASK = 1u << 4;
constexpr unsigned FEATURE_PACKED = 1u << 5;
constexpr unsigned FEATURE_DEVICE_LENGTHS = 1u << 6;
constexpr unsigned FEATURE_PAGED = 1u << 7;
constexpr unsigned FEATURE_UNALIGNED = 1u << 8;
constexpr unsigned FEATURE_NEGATIVE_SCALE = 1u << 9;
constexpr unsigned FEATURE_LSE = 1u << 10;
constexpr unsigned FEATURE_E4M3 = 1u << 11;
constexpr unsigned FEATURE_VALUE_DIM = 1u << 12;
enum : unsigned { SCORE_OPTIONS = 7, SCORE_TENSORS = 24, GRADIENT_FEATURES = 4196 };
constexpr unsigned ROLE_FORWARD = 1;
constexpr unsigned ROLE_SPLIT = 2;
constexpr unsigned ROLE_COMBINE = 3;
constexpr unsigned ROLE_APPEND = 4;
constexpr unsigned SCHEDULE_ONE_TILE = 1;
constexpr unsigned SCHEDULE_PERSISTENT = 2;
constexpr unsigned SCHEDULE_SHARED_KEYS = 3;
constexpr unsigned SCHEDULE_ONE_GROUP_TILE = 4;
constexpr unsigned SCHEDULE_PAIRS = 5;
constexpr unsigned SCHEDULE_PERSISTENT_GROUPS = 6;
constexpr unsigned SCHEDULE_CLUSTER_TILE = 7;

// A tensor of rows of one head each; the elements of a row are contiguous.
struct Tensor {
    void* address; // Address of batch entry 0, row 0, head 0.
    long long batch; // Elements between batch entries, or between pages; 0 for packed tensors.
    long long row; // Elements between rows.
    long long head; // Elements between heads.
};
static_assert(sizeof(Tensor) == 32);

// Where the sequences of a batch begin and how long they are. Numbers on the device are not validated: kernels clamp offsets to
// `query_rows` and `key_rows`, and lengths to `query_len` and `key_len`.
struct Sequences {
    int batch; // Sequences.
    int query_len; // Most queries of a sequence; dense without lengths: of each.
    int key_len; // Most keys of a sequence; dense without lengths: of each.
    int query_rows; // Rows of q and out in a batch entry; packed: in all.
    int key_rows; // Rows of k and v in a batch entry; packed: in all.
    int ragged; // [`RAGGED`], [`RAGGED_KEYS`] and [`READ_AHEAD`], as the pointers have it: one word is asked for sooner than five.
    const int* query_offsets; // [batch + 1] first rows of packed queries; null: dense.
    const int* key_offsets; // [batch + 1] first rows of packed keys and values; null: dense.
    const int* query_lengths; // [batch] rows in use of each sequence of queries; null: all.
    const int* key_lengths; // [batch] rows in use of each sequence of keys and values; null: all.
};
static_assert(sizeof(Sequences) == 56);

// Pages of keys and values that a table assigns to sequences. Page numbers on the device are not validated: attention clamps them to
// `count`, and a cache write leaves out rows of pages that do not exist. Entries past a sequence's last key may be read as far as the table
// has columns, and are not used.
struct Pages {
    const int* table; // [batch][...] numbers of pages; null: not paged.
    long long table_row; // Entries between the rows of the table.
    int rows; // Keys a page.
    int count; // Pages.
    unsigned rows_inverse; // 2^31 / rows times 2^rows_log, rounded up: see [`Pages::of`].
    int rows_log; // The least with 2^rows_log >= rows.
};
static_assert(sizeof(Pages) == 32);

// From a dot product to a score, and which scores count: scale, softcap, ALiBi, bias, then mask.
struct Scoring {
    float scale; // Finite; score = scale * q.k.
    float softcap; // cap * tanh(score / cap) when > 0; 0 for none.
    int window_left; // A query sees keys down to `diagonal - window_left`, ...
    int window_right; // ... and up to `diagonal + window_right`; causal is (WINDOW_UNLIMITED, 0).
    int align_top_left; // diagonal(i) = i if set, else i + key length - query length.
    int padding; // 1 if the bias is of f32 and the tensors are not, which images with BIAS_F32 look at. (Names are part of the blocks' hashes.)
    const float* slopes; // [slopes_batch * batch + head] ALiBi slopes; null: none.
    const float* sinks; // [head] logits that join the denominator; null: none.
    const void* bias; // Numbers that are added to the scores, in the tensors' element type or f32; null: none.
    const unsigned char* key_mask; // Bytes for queries and keys, where 0 hides the key from the query; null: no key is hidden.
    long long slopes_batch; // Slopes between batch entries; 0: all share them.
    long long bias_batch; // Elements of the bias between batch entries.
    long long bias_head; // Elements of the bias between query heads.
    long long bias_row; // Elements of the bias between queries.
    long long bias_key; // Elements of the bias between keys.
    long long mask_batch; // Bytes of the mask between batch entries.
    long long mask_head; // Bytes of the mask between query heads.
    long long mask_row; // Bytes of the mask between queries.
    long long mask_key; // Bytes of the mask between keys.
};
static_assert(sizeof(Scoring) == 128);

// How the tiles of a launch are shared out.
struct Work {
    unsigned* counter; // Counter from which CTAs draw tiles; 0 before and after each launch. Null: CTA c computes tiles c, c + grid, ...
    unsigned* semaphores; // One for each CTA, for the tiles that several share; 0 before and after each launch.
    float* partials; // Outputs, maxima and sums of the parts of tiles that several CTAs share.
    int tiles; // Tiles in all: query_tiles * heads, and * batch unless the queries are packed.
    int query_tiles; // Tiles of a head: of one batch entry, or of all packed queries.
    int heads_at_once; // Heads whose tiles are interleaved: of all batch entries together, or of the packed queries. At least 1.
    int splits; // Ranges that the keys of a tile are split into; 1 or 0: none.
    int keys_per_split; // Keys of a range, a power of two. 0: CTAs share the keys evenly.
    int side_by_side; // Where CTAs share keys: key/value heads that are read at the same time, a divisor of them and of the grid. At least 1.
};
static_assert(sizeof(Work) == 48);

// Block of the kernels that read through addresses. What a CTA asks for before its first load comes first: those constants
// are not in its multiprocessor's cache yet.
struct Forward {
    Work work; // Tiles.
    int heads; // Query heads.
    int kv_heads; // Key/value heads; divides `heads`.
    int head_dim; // Elements of a row of q and k: at most the tiling's head size, a multiple of 8.
    int value_dim; // Elements of a row of v and out: at most the tiling's head size of values, a multiple of 8.
    Sequences sequences; // Lengths.
    Scoring scoring; // Scores.
    Pages pages; // Where keys and values lie if they are paged.
    Tensor q; // Queries.
    Tensor k; // Keys.
    Tensor v; // Values.
    Tensor out; // The output.
    float* lse; // Natural logarithm of each row's sum of exponentials; null: not wanted.
    long long lse_batch; // Elements of the lse between batch entries; 0 for packed queries.
    long long lse_head; // Elements of the lse between heads; its rows are contiguous.
};
static_assert(sizeof(Forward) == 432);

// Scales of keys and values in e4m3: one number for all key/value heads, or one for each. Kernels read them at run time.
struct KeyScales {
    const float* k; // Scales of the keys.
    const float* v; // Scales of the values.
    int k_step; // Step between the keys' scales of neighbouring key/value heads: 0 or 1.
    int v_step; // Step between the values' scales of neighbouring key/value heads: 0 or 1.
};
static_assert(sizeof(KeyScales) == 24);

// Block of the kernels that read keys and values in e4m3 through addresses.
struct ForwardE4m3 {
    Forward forward; // Everything else. Strides of k and v count their elements, which are bytes.
    KeyScales scales; // Scales.
};
static_assert(sizeof(ForwardE4m3) == 456);

// A tensor map as cuTensorMapEncodeTiled fills it in; only the copy engine reads it.
struct alignas(64) TensorMap {
    unsigned long long opaque[16]; // Its 128 bytes.
};
static_assert(sizeof(TensorMap) == 128);

// Block of the kernels that read and write through tensor maps. Maps have 4 dimensions (head_dim, row, head, batch), read zeros
// and write nothing outside of an extent, and have a 128-byte swizzle and boxes of BOX_COLUMNS x QUERY_BOX_ROWS (q), BLOCK_N (k, v) or
// OUTPUT_BOX_ROWS (out). A packed tensor has batch extent 1 and all its rows in one sequence.
struct alignas(64) ForwardTma {
    TensorMap q_map; // Queries.
    TensorMap k_map; // Keys.
    TensorMap v_map; // Values.
    TensorMap out_map; // The output.
    Forward forward; // Everything else.
    int ordered; // Tiles that `order` has: all of the launch, or 0 where CTAs take tiles by their numbers.
    int padding[3]; // Unused.
    unsigned short order[512]; // The tile for each number, in dense launches.
};
static_assert(sizeof(ForwardTma) == 1984);

// The description of an image, in its constant `warptile_record`.
struct RecordWords {
    unsigned magic; // [`RECORD_MAGIC`].
    unsigned role; // A `Role`.
    unsigned schedule; // A `Schedule`.
    unsigned features; // `Features`.
    unsigned long long abi_hash; // [`Declared::HASH`] of the block it takes.
    unsigned param_bytes; // Size of that block in bytes.
    unsigned element_bytes; // Size of an element in bytes.
    unsigned block_m; // Query rows of a tile.
    unsigned block_n; // Keys of a tile.
    unsigned head_dim; // Head size of the tile, for queries and keys.
    unsigned stages; // K/V tiles in flight.
    unsigned warps; // Warps of a CTA, producers included.
    unsigned min_ctas; // CTAs an SM that it was compiled for.
    unsigned k_stride; // Elements between rows of K in shared memory; 0 where rows are swizzled instead of padded.
    unsigned v_stride; // Elements between rows of V in shared memory; 0 where rows are swizzled instead of padded.
    unsigned shared_bytes; // Dynamic shared memory in bytes that a launch must ask for.
    unsigned value_dim; // Head size of the tile, for values. 0, in images from before this field, means `head_dim`.
};
static_assert(sizeof(RecordWords) == 72);

// Hash of a block's declaration, by which the host recognizes images that were compiled for another; 0 for other structs.
template <class Block> constexpr unsigned long long BLOCK_HASH = 0;
template <> constexpr unsigned long long BLOCK_HASH<Forward> = 0xb413b39e9245d354;
template <> constexpr unsigned long long BLOCK_HASH<ForwardTma> = 0xee78c7038b12b535;
template <> constexpr unsigned long long BLOCK_HASH<ForwardE4m3> = 0x019391fd927579f7;

} // namespace warptile
