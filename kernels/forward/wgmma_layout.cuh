// Sizes and the shared memory layout of the wgmma family.
#pragma once

#include "memory/ring.cuh"
#include "ptx/sm90.cuh"
#include "ptx/wgmma.cuh"
#include "rule/blocks.cuh"
#include "rule/dropout.cuh"

namespace warptile {

constexpr int WARPGROUP_THREADS = 128;
constexpr int WARPGROUP_WARPS = 4;
constexpr int SLAB_COLUMNS = SWIZZLE_BYTES / 2; // f16 and bf16 columns in a swizzled row

// Sizes of boxes that the host uses when it encodes tensor maps.
static_assert(abi::BOX_COLUMNS == SLAB_COLUMNS, "a box has a slab's columns");
static_assert(abi::QUERY_BOX_ROWS == MMA_ROWS, "a box has a warpgroup's rows");
static_assert(abi::OUTPUT_BOX_ROWS * WARPGROUP_WARPS == MMA_ROWS, "a box has a warp's rows");
static_assert(abi::MAX_BOX_HEADS * abi::OUTPUT_BOX_ROWS == 2 * MMA_ROWS, "a warp has rows of two heads at most");

// Variants of an image. All but PLAIN have additional abilities.
enum class Variant { PLAIN, SOFTCAP, SERVING, PAIRS, GROUPS, SERVING_GROUPS, TENSORS, DROPOUT, BLOCKS, ALIBI, KEYMASK, BIAS, MASK };

// The fewest rows of a box of keys in a page. The rows of a page must be a multiple of it.
constexpr int MIN_BOX_ROWS = abi::MIN_BOX_ROWS;

// A warpgroup passes over the blocks that only other warpgroups' rows see. Those after its last block it does not take before it
// has been handed the next tile, and that tile's first values not before it has released its last ones. The loading thread must
// get as far as that: all it has to load meanwhile must fit into the stages.
__device__ constexpr bool stages_suffice(int warpgroups, int block_n, int stages)
{
    for (int rows_above = 0; rows_above < warpgroups * MMA_ROWS; rows_above += MMA_ROWS) {
        const int rows_below = (warpgroups - 1) * MMA_ROWS - rows_above;
        const int after_last = (rows_above + block_n - 1) / block_n;
        const int before_first = (rows_below + block_n - 1) / block_n;
        if (after_last + (before_first > 1 ? before_first : 1) > stages)
            return false;
    }
    return true;
}

// Tiles in shared memory are stored as slabs of 64 columns: [slab][row][64], 128-byte swizzled, as one tensor-map box
// delivers them. If the head size is not a multiple of 64, the end of its last slab is zero.
template <class Element_, int HEAD_DIM_, int VALUE_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_, Variant VARIANT_>
struct WgmmaTraits {
    using Element = Element_;
    static constexpr int HEAD_DIM = HEAD_DIM_;
    static constexpr int VALUE_DIM = VALUE_DIM_; // of values and the output
    static constexpr int BLOCK_M = BLOCK_M_; // query rows a CTA
    static constexpr int BLOCK_N = BLOCK_N_; // keys a step
    static constexpr int WARPS = WARPS_;     // one warpgroup loads, the others compute 64 rows each
    static constexpr int STAGES = STAGES_;   // blocks of K, and as many of V, in shared memory
    static constexpr int K_STRIDE = 0, V_STRIDE = 0; // rows are swizzled, not padded

    static constexpr int CONSUMERS = BLOCK_M / MMA_ROWS; // computing warpgroups
    static constexpr int THREADS = WARPS * 32;
    static constexpr int SLABS = (HEAD_DIM + SLAB_COLUMNS - 1) / SLAB_COLUMNS; // of queries and keys
    static constexpr int VALUE_SLABS = (VALUE_DIM + SLAB_COLUMNS - 1) / SLAB_COLUMNS;
    static constexpr int QUERY_SLAB_BYTES = MMA_ROWS * SWIZZLE_BYTES;
    static constexpr int KEY_SLAB_BYTES = BLOCK_N * SWIZZLE_BYTES;
    static constexpr int QUERY_BYTES = SLABS * QUERY_SLAB_BYTES; // one warpgroup's rows
    static constexpr int KEY_BYTES = SLABS * KEY_SLAB_BYTES;     // one block of K
    static constexpr int VALUE_BYTES = VALUE_SLABS * KEY_SLAB_BYTES; // and of V

    // An image of its own: keys in pages, and tiles whose keys several CTAs share.
    static constexpr bool SERVING = VARIANT_ == Variant::SERVING || VARIANT_ == Variant::SERVING_GROUPS;

    // Pairs: CTAs in clusters of two (forward/wgmma_pair.cuh). Each loads every second slab of a block of keys, for both.
    static constexpr bool PAIRS = VARIANT_ == Variant::PAIRS;
    static constexpr int CLUSTER = PAIRS ? abi::PAIR_CTAS : 1; // CTAs
    static_assert(!PAIRS || (SLABS % 2 == 0 && VALUE_SLABS % 2 == 0), "a half of the slabs for each CTA of a pair");

    // Groups: a warpgroup's rows are those of all heads that share a key/value head, 64 / heads queries of one head after the other.
    // Under a mask these rows see more nearly the same keys.
    // At head size 128 that of 64 rows stays with boxes: ptxas spills in it what adds up packed rows.
    enum : bool { PACKS_ROWS = VARIANT_ == Variant::SERVING_GROUPS && !(BLOCK_M_ == 64 && HEAD_DIM_ == 128) };
    static constexpr bool GROUPS = VARIANT_ == Variant::GROUPS || (VARIANT_ == Variant::SERVING_GROUPS && !PACKS_ROWS);
    // Packed rows: those of all heads of a group of any size, one query after the other, each with all of its heads. For few queries on many
    // keys: each key is then read once. No box has such rows, so a warpgroup loads and stores them itself.
    __device__ static constexpr bool packs_rows() { return PACKS_ROWS; }

    // Registers a thread after the split; their sum over the CTA is what the launch allocated. One computing warpgroup
    // leaves room for a second CTA on the SM, and for a third one where scores and output take few registers.
    static constexpr bool LOADS_MORE = SERVING || PAIRS || GROUPS || VARIANT_ == Variant::BLOCKS; // needs registers for the loading thread
    static constexpr int MIN_CTAS = CONSUMERS > 1 ? 1 : HEAD_DIM <= 64 && BLOCK_N <= 80 ? 3 : 2;
    static constexpr int PRODUCER_REGISTERS = LOADS_MORE ? 56 : CONSUMERS >= 3 || MIN_CTAS == 3 ? 32 : 40;
    static constexpr int CONSUMER_REGISTERS = (CONSUMERS == 4   ? 112
                                               : CONSUMERS == 3 ? 160
                                               : CONSUMERS == 2 ? 232
                                               : MIN_CTAS == 2  ? 216
                                                                : 128) -
                                              (LOADS_MORE ? CONSUMERS == 1 ? 16 : 8 : 0);
    static_assert(!LOADS_MORE || (CONSUMERS <= 3 && MIN_CTAS <= 2), "registers for the loading thread");

    // Likewise: tanh makes the code half as large again, and short rows wait for instructions.
    static constexpr bool SOFTCAP = VARIANT_ == Variant::SOFTCAP || VARIANT_ == Variant::TENSORS;
    // Without other terms by a polynomial where scores are small (forward/wgmma_softcap.cuh), whose factors stay in registers if there are enough.
    __device__ static constexpr bool has_fast_cap() { return VARIANT_ == Variant::SOFTCAP && !(HEAD_DIM == 192 && CONSUMERS == 1); }
    __device__ static constexpr bool keeps_factors() { return HEAD_DIM < 192; }
    // Distances, and nothing else that is added to scores (forward/wgmma_alibi.cuh).
    __device__ static constexpr bool has_alibi() { return VARIANT_ == Variant::ALIBI; }
    // A key mask that is the same for all queries, and nothing else that is done to scores (forward/wgmma_keymask.cuh).
    __device__ static constexpr bool hides_keys() { return VARIANT_ == Variant::KEYMASK; }
    // A bias or a key mask that the copy engine brings with the keys, and nothing else that is done to scores (forward/wgmma_boxes.cuh).
    __device__ static constexpr bool has_bias_boxes() { return VARIANT_ == Variant::BIAS; }
    __device__ static constexpr bool has_mask_boxes() { return VARIANT_ == Variant::MASK; }
    __device__ static constexpr bool has_score_boxes() { return has_bias_boxes() || has_mask_boxes(); }
    // With what else is added to scores, and any key mask (forward/wgmma_terms.cuh).
    __device__ static constexpr bool has_tensors() { return VARIANT_ == Variant::TENSORS; }
    // True where there are registers for all that speeds up terms, and for blocks with terms that are plain ones where they can be.
    __device__ static constexpr bool has_fast_terms() { return has_tensors() && VALUE_DIM <= 192; }
    __device__ static constexpr bool has_plain_terms() { return has_fast_terms() && (CONSUMERS > 1 || VALUE_DIM <= 64); }
    static_assert(!SOFTCAP || MIN_CTAS < 3, "registers for tanh");
    static constexpr unsigned ROLE = ROLE_FORWARD, SCHEDULE = PAIRS    ? SCHEDULE_PAIRS
                                                            : GROUPS || PACKS_ROWS
                                                                ? SCHEDULE_PERSISTENT_GROUPS
                                                                : SCHEDULE_PERSISTENT;
    static constexpr unsigned FEATURES =
        (SOFTCAP ? FEATURE_SOFTCAP : 0) | (has_tensors() ? SCORE_TENSORS | FEATURE_ALIBI : 0) | (has_alibi() ? FEATURE_ALIBI : 0) |
        (hides_keys() ? FEATURE_KEY_MASK : 0) | (has_bias_boxes() ? FEATURE_BIAS : 0) | (has_mask_boxes() ? FEATURE_KEY_MASK : 0) | (SERVING ? FEATURE_PAGED : 0) | (VARIANT_ == Variant::DROPOUT ? FEATURE_DROPOUT : 0) |
        (VARIANT_ == Variant::BLOCKS ? FEATURE_BLOCKS : 0) | FEATURE_SINKS | FEATURE_PACKED |
        FEATURE_DEVICE_LENGTHS | FEATURE_LSE;

    static_assert(WARPS == WARPGROUP_WARPS * (CONSUMERS + 1), "one warpgroup per 64 query rows, and the producer's");
    static_assert(BLOCK_M % MMA_ROWS == 0 && BLOCK_N % MMA_K == 0 && BLOCK_N <= 256, "wgmma shapes");
    static_assert(HEAD_DIM % MMA_K == 0, "products take 16 columns at a time");
    static_assert(VALUE_DIM % 16 == 0, "the epilogue stores 16 columns at a time");
    static_assert(VALUE_DIM <= HEAD_DIM, "the output fits where the queries were");
    static_assert(VARIANT_ == Variant::BLOCKS || stages_suffice(CONSUMERS, BLOCK_N, STAGES), "the stages hold the blocks that one warpgroup passes over");

    // The bias or the key mask of a block: of each warpgroup's rows in slabs of 64 keys.
    enum : int { BOX_SLABS = (BLOCK_N + SLAB_COLUMNS - 1) / SLAB_COLUMNS };
    enum : int { BOX_SLAB_BYTES = MMA_ROWS * SLAB_COLUMNS * (VARIANT_ == Variant::BIAS ? 2 : 1) };
    enum : bool { HAS_BOXES = VARIANT_ == Variant::BIAS || VARIANT_ == Variant::MASK };
    enum : int { BOX_BYTES = HAS_BOXES ? CONSUMERS * BOX_SLABS * BOX_SLAB_BYTES : 0 };

    // Two buffers for Q where they fit: the next tile's rows then arrive while this one is being computed.
    static constexpr int SHARED_LIMIT = 232448;
    static constexpr int SHARED_LIMIT_PER_CTA = SHARED_LIMIT / MIN_CTAS - (MIN_CTAS - 1) * 1024;
    static constexpr int BOOKKEEPING_BYTES = 1024; // barriers and tile announcements
    // Stages of both rings. Of packed rows more than the tiling has: as many as fit besides one buffer for Q, up to 512 keys. They are for
    // few queries, where reading takes the time.
    enum : int { ROOM_STAGES = (SHARED_LIMIT_PER_CTA - BOOKKEEPING_BYTES - CONSUMERS * QUERY_BYTES) / (KEY_BYTES + VALUE_BYTES + BOX_BYTES) };
    // With a bias in them, as many as fit up to what the tiling has.
    enum : int { RING_STAGES = (HAS_BOXES ? ROOM_STAGES >= STAGES_ : !PACKS_ROWS || ROOM_STAGES <= STAGES_) ? STAGES_ : ROOM_STAGES < 512 / BLOCK_N ? ROOM_STAGES : 512 / BLOCK_N };
    static_assert(!HAS_BOXES || stages_suffice(CONSUMERS, BLOCK_N, RING_STAGES), "the stages hold the blocks that one warpgroup passes over");
    static constexpr int KEY_RING_BYTES = RING_STAGES * KEY_BYTES;
    static constexpr int VALUE_RING_BYTES = RING_STAGES * VALUE_BYTES;
    static constexpr int FIXED_BYTES = KEY_RING_BYTES + VALUE_RING_BYTES + RING_STAGES * BOX_BYTES + BOOKKEEPING_BYTES;
    static constexpr int QUERY_STAGES = FIXED_BYTES + 2 * CONSUMERS * QUERY_BYTES <= SHARED_LIMIT_PER_CTA ? 2 : 1;
    static constexpr int QUERY_RING_BYTES = QUERY_STAGES * CONSUMERS * QUERY_BYTES;

    // A finished tile leaves through shared memory, from where the copy engine takes it: through its queries' buffer if that
    // is one of two, else through one of its own where it fits, else straight from registers.
    static constexpr bool OUTPUT_THROUGH_QUERIES = QUERY_STAGES == 2 && !PACKS_ROWS;
    static constexpr int STAGED_BYTES = (VALUE_SLABS < 2 ? VALUE_SLABS : 2) * QUERY_SLAB_BYTES; // one warpgroup's: in parts of a slab
    static constexpr bool OUTPUT_BUFFER =
        !OUTPUT_THROUGH_QUERIES && !PACKS_ROWS && FIXED_BYTES + QUERY_RING_BYTES + CONSUMERS * STAGED_BYTES <= SHARED_LIMIT_PER_CTA;
    static constexpr int OUTPUT_BYTES = OUTPUT_BUFFER ? CONSUMERS * STAGED_BYTES : 0;
    // Both sides of the step that hides keys: a row for each key, 8 for each stage. The bookkeeping follows them, and then words of hidden
    // keys, or more: compute-sanitizer takes the right side to be as large as its two halves would be if they were not the same.
    __device__ static constexpr int hiding_bytes() { return hides_keys() ? (BLOCK_N + 8 * STAGES) * 16 : 0; }
    __device__ static constexpr int hidden_words_bytes()
    {
        constexpr int WORDS = STAGES * (BLOCK_N / 8 + 4), SECOND_HALF = BLOCK_N * 16 - BOOKKEEPING_BYTES;
        return !hides_keys() ? 0 : WORDS > SECOND_HALF ? WORDS : SECOND_HALF;
    }
    // What random numbers of dropout follow from, where there are too few registers for it (forward/wgmma_dropout.cuh).
    enum : bool { HOLDS_CELLS = VARIANT_ == Variant::DROPOUT && VALUE_DIM_ > 192 };
    enum : int { HELD_BYTES = 32, CELLS_AT = FIXED_BYTES + QUERY_RING_BYTES + OUTPUT_BYTES, CELLS_BYTES = HOLDS_CELLS ? CONSUMERS * MMA_ROWS / 2 * HELD_BYTES : 0 };
    enum : int { MASKS_AT = CELLS_AT - (HOLDS_CELLS ? CONSUMERS * WARPGROUP_WARPS * HELD_BYTES : 0) }; // at the end of the bookkeeping
    static constexpr int SHARED_BYTES =
        FIXED_BYTES + QUERY_RING_BYTES + OUTPUT_BYTES + CELLS_BYTES + (hiding_bytes() + hidden_words_bytes() + 127) / 128 * 128;
    static_assert(SHARED_BYTES <= SHARED_LIMIT, "shared memory of a CTA");
};

// Binary logarithm of the number of query heads that share a key/value head, which must be a power of 2.
__device__ inline int group_log(const Forward& params) { return __clz(params.kv_heads) - __clz(params.heads); }

// Queries of a warpgroup's rows; of packed rows, the rows.
template <class Traits> __device__ int warpgroup_queries(const Forward& params)
{
    if constexpr (Traits::GROUPS) return MMA_ROWS >> group_log(params);
    return MMA_ROWS;
}

// BLOCK_M query rows of one head of one sequence, and the blocks of keys they need.
struct Tile {
    int batch; // END after the last tile
    int head;        // the first of those that share keys, if the rows are those of all of them
    int first_query; // in the sequence; a negative multiple of a warpgroup's queries where fewer than the tile's are left. Of packed rows, the first row
    int query_len;
    int key_len;
    int query_offset; // first row of the sequence in a packed tensor; 0 for dense ones
    int key_offset;
    int first_block; // of keys; the tile is empty when first_block >= end_block
    int end_block;

    static constexpr int END = -1;

    // After the last tile. It has no keys either.
    __device__ static Tile end()
    {
        Tile tile = {};
        tile.batch = END;
        return tile;
    }
    __device__ bool is_end() const { return batch == END; }
    __device__ bool is_empty() const { return first_block >= end_block; }

    // In a sequence's first tile the first warpgroups may have nothing to do.
    __device__ bool has_rows(int warpgroup, int queries) const { return first_query + warpgroup * queries >= 0; }
};

// Which range of its tile's keys a CTA computes.
struct Part {
    int tile;  // counted from the first one whose keys are shared; WHOLE if its keys are not
    int split; // of params.work.splits ranges, in the order of their keys
    int kv_head;

    static constexpr int WHOLE = -1;
    __device__ bool is_whole() const { return tile == WHOLE; }
};

// The keys of a sequence that a key mask of keys alone shows lie in [first, end).
struct ShownKeys {
    int batch; // Tile::END after the last sequence
    int key_len;
    int first;
    int end;
};

// The keys of a stage with lists of blocks, LISTED_BOX_ROWS from each of several places: the first of each. A unit without keys has the
// sequence's end, and zeros for rows.
struct alignas(16) ListedStage {
    int first_key[2];
    int is_last; // of the tile
    int shown;   // bit 2 * unit + warpgroup: the list of the warpgroup's rows has them
};
static_assert(sizeof(ListedStage) == 16);

// Addresses in shared memory. `full` barriers say that a buffer's bytes have arrived, `empty` ones that its readers are
// done; a producer's first wait on an `empty` barrier passes when it waits for parity 1.
template <class Traits> struct SharedLayout {
    unsigned base; // a multiple of SWIZZLE_GROUP_BYTES

    static constexpr int KEYS_AT = Traits::QUERY_RING_BYTES;
    static constexpr int VALUES_AT = KEYS_AT + Traits::KEY_RING_BYTES;
    static constexpr int OUTPUT_AT = VALUES_AT + Traits::VALUE_RING_BYTES + Traits::RING_STAGES * Traits::BOX_BYTES;
    static constexpr int BARRIERS_AT = OUTPUT_AT + Traits::OUTPUT_BYTES + Traits::hiding_bytes();
    static constexpr int KEY_BARRIERS_AT = BARRIERS_AT;
    static constexpr int VALUE_BARRIERS_AT = KEY_BARRIERS_AT + Traits::RING_STAGES * 16;
    static constexpr int QUERY_BARRIERS_AT = VALUE_BARRIERS_AT + Traits::RING_STAGES * 16;
    static constexpr int QUERY_BUFFERS = Traits::CONSUMERS * Traits::QUERY_STAGES;
    static constexpr int TILES_AT = QUERY_BARRIERS_AT + QUERY_BUFFERS * 16;
    // A slot is written again this many tiles later; the producer is never more than QUERY_STAGES tiles ahead of the tile
    // that the slowest consumer is in.
    static constexpr int TILE_SLOTS = 8;
    // The serving variant also has each tile's part, a word for each warpgroup, and two barriers for each slot of a tile, by which the
    // warps that load from pages are told the tile.
    static constexpr int PARTS_AT = TILES_AT + TILE_SLOTS * (int)sizeof(Tile);
    static constexpr int ARRIVED_AT = PARTS_AT + (Traits::SERVING ? TILE_SLOTS * (int)sizeof(Part) : 0);
    static constexpr int TILE_BARRIERS_AT = (ARRIVED_AT + (Traits::SERVING ? Traits::CONSUMERS * (int)sizeof(unsigned) : 0) + 7) / 8 * 8;
    static constexpr int PAGE_LOADERS = 2; // warps: of keys and of values
    // Pairs also have the tile that the other CTA is told, and two barriers.
    static constexpr int MAIL_AT = TILE_BARRIERS_AT + (Traits::SERVING ? TILE_SLOTS * 16 : 0);
    static constexpr int MAIL_BARRIERS_AT = (MAIL_AT + (Traits::PAIRS ? (int)sizeof(Tile) : 0) + 7) / 8 * 8;
    static constexpr int END = MAIL_BARRIERS_AT + (Traits::PAIRS ? 16 : 0);
    static_assert(END <= Traits::SHARED_BYTES, "bookkeeping fits");
    static_assert(!Traits::HOLDS_CELLS || END <= Traits::MASKS_AT, "and masks of dropout");
    // With a key mask: the range of a sequence's keys that the mask shows, and two barriers.
    __device__ static constexpr int shown_at() { return END; }
    __device__ static constexpr int shown_barriers_at() { return shown_at() + 16; }
    static_assert(shown_barriers_at() + 16 <= Traits::SHARED_BYTES, "and of the key mask");
    // With lists of blocks: 16 bytes for each stage of keys (forward/wgmma_listed.cuh).
    __device__ static constexpr int listed_at() { return (END + 15) / 16 * 16; }
    static_assert(listed_at() + Traits::STAGES * 16 <= Traits::SHARED_BYTES, "and of lists");

    __device__ unsigned queries(int warpgroup, int stage) const
    {
        return base + query_buffer(warpgroup, stage) * Traits::QUERY_BYTES;
    }
    __device__ unsigned keys(int stage) const { return base + KEYS_AT + stage * Traits::KEY_BYTES; }
    __device__ unsigned values(int stage) const { return base + VALUES_AT + stage * Traits::VALUE_BYTES; }
    // The bias or the key mask of a warpgroup's rows, which comes and goes with the keys.
    __device__ unsigned box(int warpgroup, int stage) const
    {
        return base + VALUES_AT + Traits::VALUE_RING_BYTES + stage * Traits::BOX_BYTES + warpgroup * (Traits::BOX_SLABS * Traits::BOX_SLAB_BYTES);
    }

    __device__ unsigned keys_full(int stage) const { return base + KEY_BARRIERS_AT + stage * 16; }
    __device__ unsigned keys_empty(int stage) const { return keys_full(stage) + 8; }
    __device__ unsigned values_full(int stage) const { return base + VALUE_BARRIERS_AT + stage * 16; }
    __device__ unsigned values_empty(int stage) const { return values_full(stage) + 8; }
    __device__ unsigned tile_full(int slot) const { return base + TILE_BARRIERS_AT + slot * 16; }
    __device__ unsigned tile_empty(int slot) const { return tile_full(slot) + 8; }
    __device__ unsigned mail_full() const { return base + MAIL_BARRIERS_AT; }
    __device__ unsigned mail_empty() const { return mail_full() + 8; }
    __device__ unsigned shown_asked() const { return base + shown_barriers_at(); }
    __device__ unsigned shown_found() const { return shown_asked() + 8; }
    __device__ unsigned queries_full(int warpgroup, int stage) const
    {
        return base + QUERY_BARRIERS_AT + query_buffer(warpgroup, stage) * 16;
    }
    __device__ unsigned queries_empty(int warpgroup, int stage) const { return queries_full(warpgroup, stage) + 8; }

    // Where the first CTA of a pair leaves the second one's tile.
    __device__ static Tile& mail(unsigned char* shared) { return *reinterpret_cast<Tile*>(shared + MAIL_AT); }
    // The `number`-th tile of this CTA.
    __device__ static Tile& tile(unsigned char* shared, unsigned number)
    {
        return reinterpret_cast<Tile*>(shared + TILES_AT)[number % TILE_SLOTS];
    }
    __device__ static ShownKeys& shown(unsigned char* shared) { return *reinterpret_cast<ShownKeys*>(shared + shown_at()); }
    __device__ static ListedStage& listed(unsigned char* shared, int stage)
    {
        return reinterpret_cast<ListedStage*>(shared + listed_at())[stage];
    }
    __device__ static Part& part(unsigned char* shared, unsigned number)
    {
        return reinterpret_cast<Part*>(shared + PARTS_AT)[number % TILE_SLOTS];
    }
    __device__ static unsigned& arrived(unsigned char* shared, int warpgroup)
    {
        return reinterpret_cast<unsigned*>(shared + ARRIVED_AT)[warpgroup];
    }

    // The threads that arrive in a phase of each barrier, and those that wait for it. A wait names only a parity, so it must not come after
    // the end of the phase that follows the one it means. That holds because the next phase cannot end without the waiting thread.
    // kernels/emulation checks it in random schedules.
    //
    //     keys_full, values_full     the loading thread once, and all bytes of a block; in pairs each CTA loads half of them for both.
    //                                From pages, the warp that loads them instead, and for keys the loading thread too, which keeps pace.
    //                                With keys that the tensor cores hide, for keys also the warp that reads the mask.
    //                                All computing warps wait for each block, even if none of their rows sees it, and then release it.
    //     keys_empty, values_empty   each computing warp of the cluster once. The thread that fills the stage waits before it does.
    //     queries_full               the loading thread once a tile, with bytes if the warpgroup has work. Its four warps wait.
    //     queries_empty              these warps, when they no longer need the queries or the output in their place. The loading thread
    //                                waits.
    //     tile_full                  the loading thread once a tile, the end included. Both warps that load from pages wait for each.
    //     tile_empty                 both of them. The loading thread waits before it tells the tile that takes the slot next.
    //     mail_full                  the second CTA of a pair once a tile, which waits then, and the bytes from the first.
    //     mail_empty                 the second CTA when it has read the tile. The first waits before it sends the next one.
    //     shown_asked                the loading thread for each sequence, the end included; for each tile where tensor cores hide keys.
    //                                The warp that reads key masks waits.
    //     shown_found                this warp once for each of these. The loading thread waits for the answer before it asks again.
    //
    // `in_two`: keys are also waited for by a second arrival.
    __device__ void init_barriers(bool in_two) const
    {
        for (int stage = 0; stage < Traits::RING_STAGES; stage++) {
            barrier_init(keys_full(stage), in_two ? 2 : 1);
            barrier_init(keys_empty(stage), Traits::CLUSTER * Traits::CONSUMERS * WARPGROUP_WARPS);
            barrier_init(values_full(stage), 1);
            barrier_init(values_empty(stage), Traits::CLUSTER * Traits::CONSUMERS * WARPGROUP_WARPS);
        }
        for (int warpgroup = 0; warpgroup < Traits::CONSUMERS; warpgroup++)
            for (int stage = 0; stage < Traits::QUERY_STAGES; stage++) {
                barrier_init(queries_full(warpgroup, stage), 1);
                barrier_init(queries_empty(warpgroup, stage), WARPGROUP_WARPS);
            }
        if constexpr (Traits::SERVING)
            for (int slot = 0; slot < TILE_SLOTS; slot++) {
                barrier_init(tile_full(slot), 1);
                barrier_init(tile_empty(slot), PAGE_LOADERS);
            }
        if constexpr (Traits::PAIRS) {
            barrier_init(mail_full(), 1);
            barrier_init(mail_empty(), 1);
        }
        if constexpr (Traits::has_tensors() || Traits::hides_keys()) {
            barrier_init(shown_asked(), 1);
            barrier_init(shown_found(), 1);
        }
        fence_barrier_init();
    }

  private:
    __device__ static int query_buffer(int warpgroup, int stage) { return warpgroup * Traits::QUERY_STAGES + stage; }
};

} // namespace warptile
