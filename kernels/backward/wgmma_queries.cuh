// dQ of large head sizes, for Hopper. A persistent CTA has a tile of queries of a head at a time, two warpgroups with 64 of them each, and
// goes over the keys that some of them see. Queries and the gradient of the output stay in shared memory, keys and values come through
// rings, and gradients of scores are left operands of dQ as they are. dQ stays in registers: each sum has one order.
//
// A block's scores are asked for before dQ of the block before, if registers have room, else behind it; weights are computed under what
// follows the scores. No product is under way where the loop begins again: ptxas would wait for it.
#pragma once

#include "backward/wgmma_options.cuh"
#include "backward/wgmma_rows.cuh"
#include "base/math.cuh"
#include "base/record.cuh"
#include "ptx/launch.cuh"
#include "ptx/prefetch_box.cuh"
#include "ptx/stage.cuh"

namespace warptile {

// A tile of queries, and the blocks of keys that its rows see some of.
struct QueryTile {
    int exists; // else there are no more; with dropout and ALiBi also the sequence's number, from 1 on
    int query_entry, key_entry, head, kv_head, first_query; // entries: where batch entries have strides
    Extent q, k;
    int first_block, end_block;
    int row_tile; // of the pre-pass: the tile's first rows

    // Once more for each use: registers have no room for it.
    __device__ Mask mask(const Backward& params) const { return Mask(params.scoring, q.len, k.len); }

    // Where the tile's own rows are.
    __device__ int own_entry() const { return query_entry; }
    __device__ int own_head() const { return head; }
    __device__ const Extent& own() const { return q; }
};

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_> struct QueryGradientTraits {
    using Element = Element_;
    static constexpr int HEAD_DIM = HEAD_DIM_;
    static constexpr int BLOCK_M = BLOCK_M_; // queries of a tile
    static constexpr int BLOCK_N = BLOCK_N_; // keys of a block
    static constexpr int WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int STAGES = STAGES_; // blocks of keys in shared memory
    static constexpr int VALUE_STAGES = HEAD_DIM > 192 ? 1 : 2; // and of values
    static constexpr bool SCORES_FIRST = STAGES > 2;            // else they come behind dQ of the block before, for want of registers
    static constexpr int K_STRIDE = 0, V_STRIDE = 0;            // rows are swizzled, not padded
    static constexpr int MIN_CTAS = 1;
    static constexpr unsigned ROLE = ROLE_QUERY_GRADIENTS, SCHEDULE = SCHEDULE_PERSISTENT,
                              FEATURES = GRADIENT_FEATURES;

    // Tiles are slabs of 64 columns, [slab][row][64], 128-byte swizzled, as one tensor-map box delivers them; each warpgroup's queries by
    // themselves.
    static constexpr int CONSUMERS = BLOCK_M / MMA_ROWS;
    static constexpr int SLAB_COLUMNS = SWIZZLE_BYTES / 2, SLABS = HEAD_DIM / SLAB_COLUMNS;
    static constexpr int QUERY_SLAB_BYTES = MMA_ROWS * SWIZZLE_BYTES, KEY_SLAB_BYTES = BLOCK_N * SWIZZLE_BYTES;
    static constexpr int QUERY_BYTES = SLABS * QUERY_SLAB_BYTES, KEY_BYTES = SLABS * KEY_SLAB_BYTES;
    static constexpr int NUMBER_BYTES = MMA_ROWS * 4; // of each of a warpgroup's two lists
    static constexpr int SCORES = BLOCK_N / 2;        // of a thread in a block
    static constexpr int RESULTS = HEAD_DIM / 2;      // of a thread

    static constexpr int QUERIES_AT = 0, D_OUT_AT = QUERIES_AT + CONSUMERS * QUERY_BYTES, KEYS_AT = D_OUT_AT + CONSUMERS * QUERY_BYTES;
    static constexpr int VALUES_AT = KEYS_AT + STAGES * KEY_BYTES, NUMBERS_AT = VALUES_AT + VALUE_STAGES * KEY_BYTES;
    static constexpr int BARRIERS_AT = NUMBERS_AT + 2 * CONSUMERS * NUMBER_BYTES;
    static constexpr int BARRIERS = 5 + 4 * CONSUMERS + 2 * STAGES + 2 * VALUE_STAGES, TILES_AT = BARRIERS_AT + BARRIERS * BARRIER_BYTES;
    static constexpr int SHARED_BYTES = TILES_AT + 2 * (int)sizeof(QueryTile);

    // Of a thread. A launch has as many for each as ptxas may use; what one warpgroup gives back the others take, or wait for ever.
    static constexpr bool HAS_DRAWERS = WARPS == 16;
    enum {
        LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8,
        LOADING_REGISTERS = 24,
        COMPUTING_REGISTERS = HAS_DRAWERS ? 224 : 240,
        DRAWING_REGISTERS = HAS_DRAWERS ? 40 : 0
    };
    static_assert(LOADING_REGISTERS + CONSUMERS * COMPUTING_REGISTERS + DRAWING_REGISTERS <= WARPS / 4 * LAUNCH_REGISTERS, "none waits for registers");

    static_assert(sizeof(Element) == 2, "wgmma takes f16 and bf16");
    static_assert(CONSUMERS == 2 && (WARPS == 12 || WARPS == 16), "a warpgroup loads, two compute, and with dropout one may draw");
    static_assert(STAGES >= 2, "a block's keys are there while dQ of the one before is computed");
    static_assert(HEAD_DIM % SLAB_COLUMNS == 0 && BLOCK_M % PREPASS_ROWS == 0, "slabs, and numbers of rows");
    static_assert(TILES_AT % 8 == 0 && MMA_ROWS == abi::QUERY_BOX_ROWS && SLAB_COLUMNS == abi::BOX_COLUMNS, "tiles have long numbers; boxes");
};

template <class Plain, bool DRAWERS = Plain::HAS_DRAWERS> struct QueryDropping : HeldDropping<Plain, 4 * Plain::CONSUMERS> {};
template <class Plain> struct QueryDropping<Plain, true> : DrawingDropping<Plain> {};
template <class Plain> using QueryDroppingOf = QueryDropping<Plain>;

template <class Traits> struct QueryGradientShared {
    const unsigned base;

    __device__ unsigned barrier(int i) const { return base + Traits::BARRIERS_AT + i * BARRIER_BYTES; }
    __device__ unsigned tile_full(int which) const { return barrier(which); }
    __device__ unsigned tile_empty(int which) const { return barrier(2 + which); }
    // Of a warpgroup.
    __device__ unsigned queries_full(int warpgroup) const { return barrier(4 + warpgroup); }
    __device__ unsigned queries_empty(int warpgroup) const { return barrier(4 + Traits::CONSUMERS + warpgroup); }
    __device__ unsigned d_out_full(int warpgroup) const { return barrier(4 + 2 * Traits::CONSUMERS + warpgroup); }
    __device__ unsigned d_out_empty(int warpgroup) const { return barrier(4 + 3 * Traits::CONSUMERS + warpgroup); }
    __device__ unsigned cleared() const { return barrier(4 + 4 * Traits::CONSUMERS); }
    __device__ unsigned keys_full(int stage) const { return barrier(5 + 4 * Traits::CONSUMERS + stage); }
    __device__ unsigned keys_empty(int stage) const { return keys_full(Traits::STAGES + stage); }
    __device__ unsigned values_full(int stage) const { return keys_full(2 * Traits::STAGES + stage); }
    __device__ unsigned values_empty(int stage) const { return values_full(Traits::VALUE_STAGES + stage); }

    __device__ unsigned queries(int warpgroup) const { return base + Traits::QUERIES_AT + warpgroup * Traits::QUERY_BYTES; }
    __device__ unsigned d_out(int warpgroup) const { return base + Traits::D_OUT_AT + warpgroup * Traits::QUERY_BYTES; }
    // A CTA's block number `it` is in these stages, its barriers in phases of these parities.
    __device__ static int keys_stage(unsigned it) { return it % Traits::STAGES; }
    __device__ static unsigned keys_phase(unsigned it) { return it / Traits::STAGES & 1; }
    __device__ static int values_stage(unsigned it) { return it % Traits::VALUE_STAGES; }
    __device__ static unsigned values_phase(unsigned it) { return it / Traits::VALUE_STAGES & 1; }

    __device__ unsigned keys(int stage) const { return base + Traits::KEYS_AT + stage * Traits::KEY_BYTES; }
    __device__ unsigned values(int stage) const { return base + Traits::VALUES_AT + stage * Traits::KEY_BYTES; }

    // Two lists.
    __device__ float* numbers(int warpgroup) const
    {
        return reinterpret_cast<float*>(dynamic_shared<SWIZZLE_GROUP_BYTES>() + Traits::NUMBERS_AT) + warpgroup * 2 * MMA_ROWS;
    }

    __device__ void init_barriers() const
    {
        constexpr int OF_GROUP = 4, COMPUTING = OF_GROUP * Traits::CONSUMERS; // warps
        for (int i = 0; i < 2; i++) {
            barrier_init(tile_full(i), 1);
            barrier_init(tile_empty(i), COMPUTING + 2 + (has_drawers<Traits>() ? 4 : 0));
        }
        if constexpr (has_drawers<Traits>()) DrawnSlots<Traits>{base}.init_barriers();
        barrier_init(cleared(), COMPUTING);
        for (int i = 0; i < Traits::CONSUMERS; i++) {
            barrier_init(queries_full(i), 1);
            barrier_init(queries_empty(i), OF_GROUP);
            barrier_init(d_out_full(i), 1);
            barrier_init(d_out_empty(i), OF_GROUP);
        }
        for (int i = 0; i < Traits::STAGES; i++) {
            barrier_init(keys_full(i), 1);
            barrier_init(keys_empty(i), COMPUTING);
        }
        for (int i = 0; i < Traits::VALUE_STAGES; i++) {
            barrier_init(values_full(i), 1);
            barrier_init(values_empty(i), COMPUTING);
        }
        fence_barrier_init();
    }

    // Tile descriptions, from who draws tiles to all others: the CTA's tile `turn`.
    __device__ QueryTile& tile(unsigned turn) const
    {
        return reinterpret_cast<QueryTile*>(dynamic_shared<SWIZZLE_GROUP_BYTES>() + Traits::TILES_AT)[turn % 2];
    }
    __device__ QueryTile& wait_for_tile(unsigned turn) const
    {
        barrier_wait(tile_full(turn % 2), turn / 2 & 1);
        return tile(turn);
    }
};

// Blocks of keys that some of `rows` rows from `first` on see.
template <class Traits> __device__ inline BlockSpan key_blocks(const Mask& mask, int first, int rows)
{
    if (first >= mask.query_len) return {0, 0};
    const int from = mask.first_key(first), end = mask.end_key(first, rows);
    return from < end ? BlockSpan{from / Traits::BLOCK_N, (end + Traits::BLOCK_N - 1) / Traits::BLOCK_N} : BlockSpan{0, 0};
}

// Draws a tile, and describes it. Each CTA draws once in vain, so the counter is 0 again behind the last draw of the launch.
template <class Traits> __device__ inline void draw_query_tile(const Backward& params, QueryTile& tile)
{
    const unsigned number = increment_and_wrap_relaxed(params.work.counter, params.work.tiles + gridDim.x - 1);
    tile.exists = number < params.work.tiles;
    if (!tile.exists) return;
    const GradientPlace place = gradient_place<Traits::BLOCK_M, false>(params, number);
    tile.query_entry = params.sequences.query_offsets ? 0 : place.batch;
    tile.key_entry = params.sequences.key_offsets ? 0 : place.batch;
    tile.head = place.head;
    // Nothing is written of a tile that the sequence does not have.
    tile.first_query = place.exists(false) ? place.first : place.q.len;
    tile.q = place.q;
    tile.k = place.k;
    tile.row_tile = (place.numbers_of(params, place.head) + place.first) / PREPASS_ROWS;
    tile.kv_head = tile.head / (params.heads / params.kv_heads);
    const BlockSpan span = key_blocks<Traits>(tile.mask(params), tile.first_query, Traits::BLOCK_M);
    tile.first_block = span.first;
    tile.end_block = span.end;
    if constexpr (drops<Traits>() || has_distances<Traits>()) tile.exists += place.batch;
}

// Loads 64 rows of a head, slab by slab.
template <class Traits> __device__ inline void load_rows(unsigned to, const TensorMap& map, unsigned full, int row, int head, int entry)
{
    static_assert(Traits::QUERY_SLAB_BYTES == Traits::KEY_SLAB_BYTES, "blocks of either");
    barrier_arrive_expect_bytes(full, Traits::KEY_BYTES);
#pragma unroll
    for (int slab = 0; slab < Traits::SLABS; slab++)
        copy_box(to + slab * Traits::KEY_SLAB_BYTES, map, full, slab * Traits::SLAB_COLUMNS, row, head, entry);
}

// The thread that loads queries and gradients of the output. All CTAs change tiles at about the same time, so it asks for the next tile's
// rows while the one before is computed.
template <class Traits> __device__ inline void load_queries(const BackwardTma& block, const QueryGradientShared<Traits> shared)
{
    for (unsigned turn = 0;; turn++) {
        const QueryTile& tile = shared.wait_for_tile(turn);
        if (!tile.exists) return;
        if (turn > 0)
#pragma unroll 1
            for (int i = 0; i < Traits::CONSUMERS; i++)
#pragma unroll 1
                for (int slab = 0; slab < Traits::SLABS; slab++) {
                    const int column = slab * Traits::SLAB_COLUMNS, row = tile.q.first + tile.first_query + i * MMA_ROWS;
                    prefetch_box(block.q_map, column, row, tile.head, tile.query_entry);
                    prefetch_box(block.d_out_map, column, row, tile.head, tile.query_entry);
                }
#pragma unroll 1
        for (int of_output = 0; of_output < 2; of_output++)
#pragma unroll 1
            for (int i = 0; i < Traits::CONSUMERS; i++) {
                barrier_wait(of_output ? shared.d_out_empty(i) : shared.queries_empty(i), ~turn & 1);
                load_rows<Traits>(of_output ? shared.d_out(i) : shared.queries(i), of_output ? block.d_out_map : block.q_map,
                                  of_output ? shared.d_out_full(i) : shared.queries_full(i), tile.q.first + tile.first_query + i * MMA_ROWS, tile.head,
                                  tile.query_entry);
            }
        barrier_arrive(shared.tile_empty(turn % 2));
    }
}

// The thread that loads keys and values.
template <class Traits> __device__ inline void load_keys(const BackwardTma& block, const QueryGradientShared<Traits> shared)
{
    using Shared = QueryGradientShared<Traits>;
    unsigned it = 0; // blocks
    for (unsigned turn = 0;; turn++) {
        const QueryTile& tile = shared.wait_for_tile(turn);
        if (!tile.exists) return;
#pragma unroll 1
        for (int of = tile.end_block - 1; of >= tile.first_block; of--, it++) {
            const int stage = Shared::keys_stage(it), values_stage = Shared::values_stage(it), row = tile.k.first + of * Traits::BLOCK_N;
            barrier_wait(shared.keys_empty(stage), ~Shared::keys_phase(it) & 1);
            load_rows<Traits>(shared.keys(stage), block.k_map, shared.keys_full(stage), row, tile.kv_head, tile.key_entry);
            barrier_wait(shared.values_empty(values_stage), ~Shared::values_phase(it) & 1);
            load_rows<Traits>(shared.values(values_stage), block.v_map, shared.values_full(values_stage), row, tile.kv_head, tile.key_entry);
        }
        barrier_arrive(shared.tile_empty(turn % 2));
    }
}

// One of the warps that draw which weights are dropped: a part of each block, for one computing warpgroup after the other.
template <class Traits> __device__ inline void draw_query_blocks(const BackwardTma& block, const QueryGradientShared<Traits> shared, const int part)
{
    static_assert(Traits::CONSUMERS == 2, "one after the other");
    constexpr unsigned OF_GROUP = Traits::SLOTS / 2;
    const DropoutMask mask = kernel_mask(block);
    const DrawnSlots<Traits> slots = {shared.base};
    unsigned of_first = 0, of_second = 0; // blocks that the warpgroups' rows see
    for (unsigned turn = 0;; turn++) {
        const QueryTile& tile = shared.wait_for_tile(turn);
        if (!tile.exists) return;
        DropoutMask of_sequence = mask;
        of_sequence.sequence += uniform(tile.exists - 1);
        const int head = uniform(tile.head), row = uniform(tile.first_query);
        const BlockSpan first = key_blocks<Traits>(tile.mask(block.backward), row, MMA_ROWS);
        const BlockSpan second = key_blocks<Traits>(tile.mask(block.backward), row + MMA_ROWS, MMA_ROWS);
#pragma unroll 1
        for (int of = uniform(tile.end_block) - 1; of >= uniform(tile.first_block); of--)
#pragma unroll 1
            for (int warpgroup = 0; warpgroup < 2; warpgroup++) {
                if (of < (warpgroup ? second.first : first.first) || of >= (warpgroup ? second.end : first.end)) continue;
                const unsigned it = warpgroup ? of_second : of_first;
                const int slot = warpgroup * OF_GROUP + it % OF_GROUP;
                slots.wait_for_room(slot, it / OF_GROUP);
                DrawnScores::draw_part(of_sequence, head, row + warpgroup * MMA_ROWS, of * Traits::BLOCK_N, slots.words(slot), part);
                slots.give(slot);
                if (warpgroup)
                    of_second++;
                else
                    of_first++;
            }
        __syncwarp();
        if (thread_index() % 32 == 0) barrier_arrive(shared.tile_empty(turn % 2));
    }
}

// A computing warpgroup.
template <class Traits> __device__ inline void query_gradients(const BackwardTma& given, const QueryGradientShared<Traits> shared, const int warpgroup)
{
    const Backward& params = given.backward;
    using Element = typename Traits::Element;
    using Shared = QueryGradientShared<Traits>;
    constexpr int SCORES = Traits::SCORES;
    const float scale_log2 = params.scoring.scale * LOG2_E;
    const auto arrive = [](unsigned barrier) {
        if (thread_index() % 32 == 0) barrier_arrive(barrier);
    };
    // Where no product brings a warp's lanes together: a lane that is still waiting must not miss the next phase.
    const auto pass = [&](unsigned barrier) {
        __syncwarp();
        arrive(barrier);
    };
    const auto own_row = [] { return thread_index() % 128 / 32 * 16 + thread_index() % 32 / 4; };
    DrawnScores drawn;
    if constexpr (drops<Traits>() && !has_drawers<Traits>()) {
        const DropoutMask mask = kernel_mask(given);
        if (thread_index() % 32 == 0) held_mask<Traits>() = mask;
        __syncwarp();
    }
    unsigned it = 0;     // blocks
    unsigned clears = 0; // ends that were cleared
    unsigned taken = 0;  // blocks with weights that others drew
    for (unsigned turn = 0;; turn++) {
        const QueryTile& tile = shared.wait_for_tile(turn);
        if (!tile.exists) return;
        const auto first_row = [&] { return uniform(tile.first_query) + warpgroup * MMA_ROWS; };
        const auto own_blocks = [&] { return key_blocks<Traits>(tile.mask(params), first_row(), MMA_ROWS); };
        // Waits for keys and values of a block. Those who wait for such that are not all the sequence's clear the others, and wait for each
        // other.
        const auto rows_of = [&](int block) { return keys_are_followed(params.sequences) ? tile.k.len - block * Traits::BLOCK_N : Traits::BLOCK_N; };
        const auto clear_after = [&](unsigned rows_at, int block) {
            const int rows = rows_of(block);
            if (rows >= Traits::BLOCK_N) return;
            clear_rows<Traits::BLOCK_N, Traits::SLABS, 256>(rows_at, rows);
            meet(shared.cleared(), clears++);
        };
        const auto wait_for_keys = [&](int stage, int block) {
            barrier_wait(shared.keys_full(stage), Shared::keys_phase(it));
            clear_after(shared.keys(stage), block);
        };
        const auto wait_for_values = [&](int stage, int block) {
            barrier_wait(shared.values_full(stage), Shared::values_phase(it));
            clear_after(shared.values(stage), block);
        };
        // Blocks [first, end) that only others' rows see.
        const auto pass_blocks = [&](int first, int end) {
#pragma unroll 1
            for (int block = end - 1; block >= first; block--, it++) {
                const int stage = Shared::keys_stage(it), values_stage = Shared::values_stage(it);
                wait_for_keys(stage, block);
                pass(shared.keys_empty(stage));
                wait_for_values(values_stage, block);
                pass(shared.values_empty(values_stage));
            }
        };
        float dq[Traits::RESULTS];
#pragma unroll
        for (int i = 0; i < Traits::RESULTS; i++) dq[i] = 0;
        barrier_wait(shared.queries_full(warpgroup), turn & 1);
        const BlockSpan own = own_blocks();
        const int own_first = uniform(own.first);
        int block = uniform(own.end) - 1;
        pass_blocks(max(block + 1, uniform(tile.first_block)), uniform(tile.end_block));
        if (block >= own_first) {
            float x[SCORES], y[SCORES];
            unsigned slopes[SCORES / 2];
            const float slope = product_slope<Traits>(params.scoring, uniform(tile.exists - 1), uniform(tile.head));
            // Numbers of own rows, lse and then delta. Registers have no room for them during a block.
            float* const own_numbers = shared.numbers(warpgroup) + own_row();
            if (thread_index() % 4 == 0)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const long long at = (long long)(tile.row_tile + warpgroup) * PREPASS_ROWS + own_row() + 8 * half;
                    own_numbers[8 * half] = params.rows.scaled_lse[at];
                    own_numbers[8 * half + MMA_ROWS] = params.rows.delta[at];
                    if constexpr (drops<Traits>()) {
                        own_numbers[8 * half] -= log2f(kept_factor(given));
                        own_numbers[8 * half + MMA_ROWS] /= kept_factor(given);
                    }
                }
            __syncwarp();
            const unsigned numbers = shared_address(own_numbers);
            const auto multiply = [&](float (&result)[SCORES], unsigned rows, unsigned columns) {
                const unsigned long long left = matrix_descriptor(rows, 1), right = matrix_descriptor(columns, 1);
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < Traits::HEAD_DIM / MMA_K; step++) {
                    const int inside = step % 4 * 32, slab = step / 4;
                    Wgmma<Traits::BLOCK_N>::template shared<Element>(result, advance_descriptor(left, inside + slab * Traits::QUERY_SLAB_BYTES),
                                                                     advance_descriptor(right, inside + slab * Traits::KEY_SLAB_BYTES), step > 0);
                }
                wgmma_commit();
            };
            const auto load_numbers = [&](float (&of_rows)[2], int list) {
                of_rows[0] = load_one(numbers + list);
                of_rows[1] = load_one(numbers + list + 8 * sizeof(float));
            };
            // Anew for each block: registers have no room for descriptors of own rows with dropout, and they would be ordinary ones without.
            const auto own_group = [&] { return uniform(warpgroup); };
            const auto issue_scores = [&] {
                const int stage = uniform(Shared::keys_stage(it));
                wait_for_keys(stage, block);
                pin(x);
                multiply(x, shared.queries(own_group()), shared.keys(stage));
            };
            const auto issue_products = [&] {
                const int stage = uniform(Shared::values_stage(it));
                barrier_wait(shared.d_out_full(warpgroup), turn & 1);
                wait_for_values(stage, block);
                pin(y);
                multiply(y, shared.d_out(own_group()), shared.values(stage));
            };
            const auto draw = [&] {
                if constexpr (drops<Traits>() && !has_drawers<Traits>()) {
                    DropoutMask mask = held_mask<Traits>();
                    mask.sequence += tile.exists - 1;
                    drawn.draw(mask, uniform(tile.head), first_row(), block * Traits::BLOCK_N);
                }
            };
            const auto take_drawn = [&] {
                if constexpr (has_drawers<Traits>()) {
                    constexpr unsigned OF_GROUP = Traits::SLOTS / 2;
                    drawn.take(DrawnSlots<Traits>{shared.base}.take(uniform(warpgroup) * OF_GROUP + taken % OF_GROUP, taken / OF_GROUP));
                    taken++;
                }
            };
            // The scores are there, and become weights.
            const auto weigh = [&](float (&lse)[2]) {
                pin(x);
                const int first_key = block * Traits::BLOCK_N;
                const Mask mask = tile.mask(params);
                if constexpr (has_distances<Traits>()) {
                    const int distance = first_row() + own_row() + mask.key_len - mask.query_len - first_key - thread_index() % 4 * 2;
                    add_distances<false>(x, distance, slope);
                }
                if constexpr (caps<Traits>()) bend(x, x, bend_argument<Traits>(params.scoring), params.heads >> 31);
                if (mask.hides_part_of(first_row(), MMA_ROWS, first_key, Traits::BLOCK_N)) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int column = thread_index() % 4 * 2, diagonal = first_row() + own_row() + 8 * half + mask.shift - first_key - column;
                        const int from = diagonal - mask.left, to = min(diagonal + mask.right, mask.key_len - 1 - first_key - column);
#pragma unroll
                        for (int j = 0; j < SCORES; j++)
                            if (j % 4 / 2 == half && (j / 4 * 8 + j % 2 < from || j / 4 * 8 + j % 2 > to)) x[j] = negative_infinity();
                    }
                }
#pragma unroll
                for (int j = 0; j < SCORES; j++) {
                    if constexpr (caps<Traits>())
                        x[j] = slope_of_bent(weight_of_bent(x[j], cap_exponent(params.scoring), lse[j % 4 / 2]), x[j]);
                    else
                        x[j] = exp2_approximate(fmaf(x[j], scale_log2, -lse[j % 4 / 2]));
                    if constexpr (drops<Traits>()) x[j] = drawn.marked(x[j], j);
                }
            };
            // So are the products with values.
            const auto take_products = [&] {
                float delta[2];
                load_numbers(delta, Traits::NUMBER_BYTES);
                wgmma_wait<0>();
                pin(y);
                arrive(shared.values_empty(Shared::values_stage(it)));
#pragma unroll
                for (int j = 0; j < SCORES; j++)
                    if constexpr (drops<Traits>())
                        y[j] = fmaf(fmaxf(x[j], 0), y[j], -fabsf(x[j]) * delta[j % 4 / 2]);
                    else
                        y[j] = x[j] * (y[j] - delta[j % 4 / 2]);
            };
            const auto pack_slopes = [&] {
#pragma unroll
                for (int j = 0; j < SCORES / 2; j++) slopes[j] = pack<Element>(y[2 * j], y[2 * j + 1]);
                pin(slopes);
            };
            // What packed gradients of scores add to dQ, and that this has ended.
            const auto issue_sum = [&](int stage) {
                pin(dq);
                const unsigned long long rows = matrix_descriptor(shared.keys(stage), Traits::KEY_SLAB_BYTES);
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < Traits::BLOCK_N / MMA_K; step++)
                    Wgmma<Traits::HEAD_DIM>::template from_registers<Element>(dq, slopes + 4 * step,
                                                                              advance_descriptor(rows, step * 2 * SWIZZLE_GROUP_BYTES), true);
                wgmma_commit();
            };
            const auto end_sum = [&](int stage) {
                pin(dq);
                pin(slopes);
                arrive(shared.keys_empty(stage));
            };
            draw();
            issue_scores();
            issue_products();
            {
                float lse[2];
                load_numbers(lse, 0);
                take_drawn();
                wgmma_wait<1>();
                weigh(lse);
            }
            take_products();
#pragma unroll 1
            while (block > own_first) {
                const int stage = uniform(Shared::keys_stage(it));
                pack_slopes();
                it++;
                block--;
                float lse[2];
                if constexpr (Traits::SCORES_FIRST) {
                    issue_scores();
                    issue_sum(stage);
                    draw();
                    issue_products();
                    load_numbers(lse, 0);
                    take_drawn();
                    wgmma_wait<2>();
                    weigh(lse);
                    wgmma_wait<1>();
                    end_sum(stage);
                } else {
                    issue_sum(stage);
                    draw();
                    issue_scores();
                    issue_products();
                    load_numbers(lse, 0);
                    take_drawn();
                    wgmma_wait<2>();
                    end_sum(stage);
                    wgmma_wait<1>();
                    weigh(lse);
                }
                take_products();
            }
            arrive(shared.queries_empty(warpgroup));
            arrive(shared.d_out_empty(warpgroup));
            const int stage = uniform(Shared::keys_stage(it));
            pack_slopes();
            issue_sum(stage);
            wgmma_wait<0>();
            end_sum(stage);
            it++;
            pass_blocks(uniform(tile.first_block), own_first);
        } else {
            barrier_wait(shared.d_out_full(warpgroup), turn & 1);
            pass(shared.queries_empty(warpgroup));
            arrive(shared.d_out_empty(warpgroup));
        }
        write_rows<Element>(params, params.dq, tile, first_row(), params.head_dim, dq, params.scoring.scale);
        __syncwarp();
        arrive(shared.tile_empty(turn % 2));
    }
}

template <class Traits> __device__ inline void gradients_of_queries(const BackwardTma& block)
{
    const QueryGradientShared<Traits> shared = {shared_address(dynamic_shared<SWIZZLE_GROUP_BYTES>())};
    const int warp = uniform(threadIdx.x / 32);
    if (threadIdx.x == 0) shared.init_barriers();
    __syncthreads();
    grid_dependency_wait();
    if (has_drawers<Traits>() && warp >= 12) {
        if constexpr (has_drawers<Traits>()) {
            setmaxnreg_dec<Traits::DRAWING_REGISTERS>();
            draw_query_blocks(block, shared, warp - 12);
        }
    } else if (warp < 4) {
        setmaxnreg_dec<Traits::LOADING_REGISTERS>();
        if (threadIdx.x == 0)
            load_queries(block, shared);
        else if (threadIdx.x == 32)
            load_keys(block, shared);
        else if (threadIdx.x == 64)
            draw_tiles(shared, [&](QueryTile& tile) { draw_query_tile<Traits>(block.backward, tile); });
    } else {
        setmaxnreg_inc<Traits::COMPUTING_REGISTERS>();
        query_gradients(block, shared, uniform(thread_index() / 128) - 1);
    }
}

} // namespace warptile
