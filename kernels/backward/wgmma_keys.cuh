// dK and dV of large head sizes, for Hopper: more of them than the registers of a warpgroup hold. So two warpgroups share the products of a
// tile of 64 keys. The first computes the weights and dV, and leaves the weights in shared memory to the second, which computes the
// gradients of scores and dK. They have nothing else to do with each other, so each computes weights or gradients while the other
// multiplies.
//
// Scores are transposed, keys x queries, as in the one-pass kernels (wgmma_gradients.cuh), which also begin products at -lse / scale and
// -delta. Sums over the heads that share keys stay in registers; each has one order.
//
// A block of queries is in use from its scores to its dK, about two blocks later: there are three stages of them. Where that leaves no room
// for a tile's keys and values, the last columns of these lie in registers, as left operands; they come through a stage of the queries.
#pragma once

#include "backward/wgmma_options.cuh"
#include "backward/wgmma_rows.cuh"
#include "base/math.cuh"
#include "base/record.cuh"
#include "memory/ring.cuh"
#include "ptx/launch.cuh"
#include "ptx/mma.cuh"
#include "ptx/prefetch_box.cuh"
#include "ptx/stage.cuh"
#include "ptx/wgmma_left.cuh"

namespace warptile {

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_> struct KeyGradientTraits {
    using Element = Element_;
    static constexpr int HEAD_DIM = HEAD_DIM_;
    static constexpr int BLOCK_M = BLOCK_M_; // queries of a block
    static constexpr int BLOCK_N = BLOCK_N_; // keys of a tile
    static constexpr int WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int STAGES = STAGES_;                      // blocks of queries in shared memory
    static constexpr int D_OUT_STAGES = HEAD_DIM > 192 ? 2 : 3; // and of gradients of the output
    static constexpr int WEIGHT_STAGES = 2;                     // and of weights
    static constexpr int K_STRIDE = 0, V_STRIDE = 0;            // rows are swizzled, not padded
    static constexpr int MIN_CTAS = 1;
    static constexpr unsigned ROLE = ROLE_KEY_GRADIENTS, SCHEDULE = SCHEDULE_PERSISTENT,
                              FEATURES = GRADIENT_FEATURES;

    // Tiles are slabs of 64 columns, [slab][row][64], 128-byte swizzled, as one tensor-map box delivers them.
    static constexpr int SLAB_COLUMNS = SWIZZLE_BYTES / 2, SLABS = HEAD_DIM / SLAB_COLUMNS, SLAB_STEPS = SLAB_COLUMNS / MMA_K;
    static constexpr int LEFT_SLABS = HEAD_DIM > 192 ? 2 : 0, KEY_SLABS = SLABS - LEFT_SLABS; // of keys and values: in registers, and in shared memory
    static constexpr int LEFT_STEPS = LEFT_SLABS * SLAB_STEPS;
    static constexpr int SLAB_BYTES = BLOCK_M * SWIZZLE_BYTES, QUERY_BYTES = SLABS * SLAB_BYTES, KEY_BYTES = KEY_SLABS * SLAB_BYTES;
    static constexpr int WEIGHT_BYTES = BLOCK_M * BLOCK_N * 2; // a block's weights
    static constexpr int NUMBER_BYTES = BLOCK_M * 4;           // of a list
    static constexpr int SCORES = BLOCK_M / 2;                 // of a thread in a block
    static constexpr int RESULTS = HEAD_DIM / 2;               // of a thread, of dK or dV

    static constexpr int KEYS_AT = 0, VALUES_AT = KEYS_AT + KEY_BYTES, QUERIES_AT = VALUES_AT + KEY_BYTES;
    static constexpr int D_OUT_AT = QUERIES_AT + STAGES * QUERY_BYTES, WEIGHTS_AT = D_OUT_AT + D_OUT_STAGES * QUERY_BYTES;
    static constexpr int LSE_AT = WEIGHTS_AT + WEIGHT_STAGES * WEIGHT_BYTES, DELTA_AT = LSE_AT + STAGES * NUMBER_BYTES;
    static constexpr int BARRIERS_AT = DELTA_AT + D_OUT_STAGES * NUMBER_BYTES;
    static constexpr int BARRIERS = 9 + 2 * (STAGES + D_OUT_STAGES + WEIGHT_STAGES), TILES_AT = BARRIERS_AT + BARRIERS * BARRIER_BYTES;
    static constexpr int SHARED_BYTES = TILES_AT + 2 * (int)sizeof(KeyTile);

    // Of a thread. A launch has as many for each as ptxas may use; what one warpgroup gives back the others take, or wait for ever.
    static constexpr bool HAS_DRAWERS = WARPS == 16;
    enum {
        LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8,
        LOADING_REGISTERS = 24,
        COMPUTING_REGISTERS = HAS_DRAWERS ? 224 : 240,
        DRAWING_REGISTERS = HAS_DRAWERS ? 40 : 0
    };
    static_assert(LOADING_REGISTERS + 2 * COMPUTING_REGISTERS + DRAWING_REGISTERS <= WARPS / 4 * LAUNCH_REGISTERS, "none waits for registers");

    static_assert(sizeof(Element) == 2, "wgmma takes f16 and bf16");
    static_assert(WARPS == 12 || WARPS == 16, "a warpgroup loads, one computes dV, one dK, and with dropout one may draw");
    static_assert(HEAD_DIM % SLAB_COLUMNS == 0 && BLOCK_M == PREPASS_ROWS && BLOCK_M == MMA_ROWS && BLOCK_N == MMA_ROWS, "slabs, and a product's rows");
    static_assert(2 * LEFT_SLABS <= SLABS && KEY_SLABS > 0, "a stage of queries holds what goes to registers");
    static_assert(BLOCK_M == abi::QUERY_BOX_ROWS && SLAB_COLUMNS == abi::BOX_COLUMNS, "boxes");
};

template <class Plain, bool DRAWERS = Plain::HAS_DRAWERS> struct KeyDropping : TransposedDropping<Plain, 1> {};
template <class Plain> struct KeyDropping<Plain, true> : DrawingDropping<Plain> {};
template <class Plain> using KeyDroppingOf = KeyDropping<Plain>;

template <class Traits> struct KeyGradientShared {
    const unsigned base;

    __device__ unsigned barrier(int i) const { return base + Traits::BARRIERS_AT + i * BARRIER_BYTES; }
    __device__ unsigned keys_full() const { return barrier(0); }
    __device__ unsigned keys_empty() const { return barrier(1); }
    __device__ unsigned values_full() const { return barrier(2); }
    __device__ unsigned values_empty() const { return barrier(3); }
    __device__ unsigned tile_full(int which) const { return barrier(4 + which); }
    __device__ unsigned tile_empty(int which) const { return barrier(6 + which); }
    __device__ unsigned cleared() const { return barrier(8); }
    __device__ unsigned queries_full(int stage) const { return barrier(9 + stage); }
    __device__ unsigned queries_empty(int stage) const { return queries_full(Traits::STAGES + stage); }
    __device__ unsigned d_out_full(int stage) const { return queries_full(2 * Traits::STAGES + stage); }
    __device__ unsigned d_out_empty(int stage) const { return d_out_full(Traits::D_OUT_STAGES + stage); }
    __device__ unsigned weights_full(int stage) const { return d_out_full(2 * Traits::D_OUT_STAGES + stage); }
    __device__ unsigned weights_empty(int stage) const { return weights_full(Traits::WEIGHT_STAGES + stage); }

    __device__ unsigned queries(int stage) const { return base + Traits::QUERIES_AT + stage * Traits::QUERY_BYTES; }
    __device__ unsigned d_out(int stage) const { return base + Traits::D_OUT_AT + stage * Traits::QUERY_BYTES; }
    __device__ unsigned lse(int stage) const { return base + Traits::LSE_AT + stage * Traits::NUMBER_BYTES; }
    __device__ unsigned delta(int stage) const { return base + Traits::DELTA_AT + stage * Traits::NUMBER_BYTES; }
    // A thread's words of a product's step lie behind those of the thread before, for the same thread of the other warpgroup.
    __device__ unsigned weights(int stage, int step) const
    {
        return base + Traits::WEIGHTS_AT + stage * Traits::WEIGHT_BYTES + step * 2048 + thread_index() % 128 * 16;
    }

    __device__ void init_barriers() const
    {
        constexpr int OF_GROUP = 4, COMPUTING = 2 * OF_GROUP; // warps
        barrier_init(keys_full(), 1);
        barrier_init(keys_empty(), OF_GROUP);
        barrier_init(values_full(), 1);
        barrier_init(values_empty(), OF_GROUP);
        for (int i = 0; i < 2; i++) {
            barrier_init(tile_full(i), 1);
            barrier_init(tile_empty(i), COMPUTING + 2 + (has_drawers<Traits>() ? 4 : 0));
        }
        if constexpr (has_drawers<Traits>()) DrawnSlots<Traits>{base}.init_barriers();
        barrier_init(cleared(), COMPUTING);
        for (int i = 0; i < Traits::STAGES; i++) {
            barrier_init(queries_full(i), 1);
            barrier_init(queries_empty(i), COMPUTING);
        }
        for (int i = 0; i < Traits::D_OUT_STAGES; i++) {
            barrier_init(d_out_full(i), 1);
            barrier_init(d_out_empty(i), COMPUTING);
        }
        for (int i = 0; i < Traits::WEIGHT_STAGES; i++) {
            barrier_init(weights_full(i), OF_GROUP);
            barrier_init(weights_empty(i), OF_GROUP);
        }
        fence_barrier_init();
    }

    // Tile descriptions, from who draws tiles to all others: the CTA's tile `turn`.
    __device__ KeyTile& tile(unsigned turn) const
    {
        return reinterpret_cast<KeyTile*>(dynamic_shared<SWIZZLE_GROUP_BYTES>() + Traits::TILES_AT)[turn % 2];
    }
    __device__ KeyTile& wait_for_tile(unsigned turn) const
    {
        barrier_wait(tile_full(turn % 2), turn / 2 & 1);
        return tile(turn);
    }
};

// Loads slabs [FIRST, END) of rows of a head.
template <class Traits, int FIRST, int END>
__device__ inline void load_slabs(unsigned to, const TensorMap& map, unsigned full, int row, int head, int entry)
{
#pragma unroll
    for (int slab = FIRST; slab < END; slab++)
        copy_box(to + (slab - FIRST) * Traits::SLAB_BYTES, map, full, slab * Traits::SLAB_COLUMNS, row, head, entry);
}

// One of two loading threads: of queries and keys, or of gradients of the output and values.
template <class Traits, bool OF_QUERIES> __device__ inline void load_key_tiles(const BackwardTma& block, const KeyGradientShared<Traits> shared)
{
    const Backward& params = block.backward;
    RingPosition<OF_QUERIES ? Traits::STAGES : Traits::D_OUT_STAGES> at;
    const auto full = [&] { return OF_QUERIES ? shared.queries_full(at.stage) : shared.d_out_full(at.stage); };
    const auto empty = [&] { return OF_QUERIES ? shared.queries_empty(at.stage) : shared.d_out_empty(at.stage); };
    const auto to = [&] { return OF_QUERIES ? shared.queries(at.stage) : shared.d_out(at.stage); };
    unsigned loads = 0; // tiles with blocks
    for (unsigned turn = 0;; turn++) {
        const KeyTile& tile = shared.wait_for_tile(turn);
        if (!tile.exists) return;
        if (tile.first_block < tile.end_block) {
            const auto row = [&] { return tile.k.first + tile.first_key; };
            // The tile before is still computed.
            if (turn > 0)
#pragma unroll 1
                for (int slab = 0; slab < Traits::SLABS; slab++)
                    prefetch_box(OF_QUERIES ? block.k_map : block.v_map, slab * Traits::SLAB_COLUMNS, row(), tile.kv_head, tile.key_entry);
            if constexpr (OF_QUERIES && Traits::LEFT_SLABS > 0) {
                barrier_wait(empty(), ~at.parity & 1);
                barrier_arrive_expect_bytes(full(), 2 * Traits::LEFT_SLABS * Traits::SLAB_BYTES);
                load_slabs<Traits, Traits::KEY_SLABS, Traits::SLABS>(to(), block.k_map, full(), row(), tile.kv_head, tile.key_entry);
                load_slabs<Traits, Traits::KEY_SLABS, Traits::SLABS>(to() + Traits::LEFT_SLABS * Traits::SLAB_BYTES, block.v_map, full(), row(),
                                                                     tile.kv_head, tile.key_entry);
                at.advance();
            }
            const unsigned own_full = OF_QUERIES ? shared.keys_full() : shared.values_full();
            barrier_wait(OF_QUERIES ? shared.keys_empty() : shared.values_empty(), ~loads++ & 1);
            barrier_arrive_expect_bytes(own_full, Traits::KEY_BYTES);
            load_slabs<Traits, 0, Traits::KEY_SLABS>(shared.base + (OF_QUERIES ? Traits::KEYS_AT : Traits::VALUES_AT),
                                                     OF_QUERIES ? block.k_map : block.v_map, own_full, row(), tile.kv_head, tile.key_entry);
        }
#pragma unroll 1
        for (int head = 0; head < tile.heads; head++)
#pragma unroll 1
            for (int of = tile.end_block - 1; of >= tile.first_block; of--) {
                barrier_wait(empty(), ~at.parity & 1);
                barrier_arrive_expect_bytes(full(), Traits::QUERY_BYTES + Traits::NUMBER_BYTES);
                load_slabs<Traits, 0, Traits::SLABS>(to(), OF_QUERIES ? block.q_map : block.d_out_map, full(), tile.q.first + of * Traits::BLOCK_M,
                                                     tile.kv_head * tile.heads + head, tile.query_entry);
                const float* const numbers = OF_QUERIES ? params.rows.scaled_lse : params.rows.delta;
                const long long first = (long long)(tile.row_tile + head * params.rows.query_tiles + of) * PREPASS_ROWS;
                copy_bytes(OF_QUERIES ? shared.lse(at.stage) : shared.delta(at.stage), numbers + first, Traits::NUMBER_BYTES, full());
                at.advance();
            }
        barrier_arrive(shared.tile_empty(turn % 2));
    }
}

// A warpgroup's way over a tile's blocks of queries: from the last to the first, head after head of those that share the keys.
template <class Traits> struct KeyTileBlocks {
    const Mask mask;
    const int of_head, count, last_block;
    const bool queries_are_followed;
    int block, head; // head: counted from the first of those that share the keys

    __device__ KeyTileBlocks(const Backward& params, const KeyTile& tile)
        : mask(tile.mask(params)), of_head(uniform(tile.end_block - tile.first_block)), count(of_head * uniform(tile.heads)),
          last_block(uniform(tile.end_block) - 1), queries_are_followed(params.sequences.query_offsets || params.sequences.query_lengths),
          block(last_block), head(0)
    {
    }
    // Of the block's rows, those of the sequence, as far as others may follow.
    __device__ int rows() const { return queries_are_followed ? mask.query_len - block * Traits::BLOCK_M : Traits::BLOCK_M; }
    __device__ void advance()
    {
        const bool ends = block - last_block + of_head == 1;
        block = ends ? last_block : block - 1;
        head += ends;
    }
};

// One of the warps that draw which weights are dropped: a part of each block.
template <class Traits> __device__ inline void draw_key_tiles(const BackwardTma& block, const KeyGradientShared<Traits> shared, const int part)
{
    const DropoutMask mask = kernel_mask(block);
    const DrawnSlots<Traits> slots = {shared.base};
    unsigned it = 0; // blocks
    for (unsigned turn = 0;; turn++) {
        const KeyTile& tile = shared.wait_for_tile(turn);
        if (!tile.exists) return;
        DropoutMask of_sequence = mask;
        of_sequence.sequence += uniform(tile.exists - 1);
        KeyTileBlocks<Traits> blocks(block.backward, tile);
#pragma unroll 1
        for (int left = blocks.count; left > 0; left--, blocks.advance(), it++) {
            const int slot = it % Traits::SLOTS;
            slots.wait_for_room(slot, it / Traits::SLOTS);
            ToldPairs::draw_part(of_sequence, uniform(tile.kv_head * tile.heads) + blocks.head, blocks.block * Traits::BLOCK_M, uniform(tile.first_key),
                                 slots.words(slot), part);
            slots.give(slot);
        }
        __syncwarp();
        if (thread_index() % 32 == 0) barrier_arrive(shared.tile_empty(turn % 2));
    }
}

// Accumulators of keys x queries that begin at 0.
template <int COUNT> __device__ inline void begin_at_zero(float (&x)[COUNT])
{
#pragma unroll
    for (float& one : x) one = 0;
    pin(x);
}

// Numbers of a thread's queries, times a factor, as accumulators of keys x queries. If MOVED, `more` than that.
template <bool MOVED = false, int COUNT> __device__ inline void begin_at(float (&x)[COUNT], unsigned at, float factor, float more = 0)
{
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const float2 two = load_two(at + i * 8);
        x[i] = x[i + 2] = MOVED ? fmaf(two.x, factor, more) : two.x * factor;
        x[i + 1] = x[i + 3] = MOVED ? fmaf(two.y, factor, more) : two.y * factor;
    }
    pin(x);
}

// The last columns of a warpgroup's keys or values, as left operands.
template <class Traits> struct LeftColumns {
    unsigned words[Traits::LEFT_STEPS > 0 ? Traits::LEFT_STEPS : 1][4];

    // From slabs in shared memory.
    __device__ void load(unsigned slabs)
    {
        const int lane = thread_index() % 32, row = thread_index() % 128 / 32 * 16 + lane % 16;
#pragma unroll
        for (int step = 0; step < Traits::LEFT_STEPS; step++) {
            const int chunk = step % Traits::SLAB_STEPS * 2 + lane / 16; // of 16 bytes
            load_matrices(words[step], slabs + step / Traits::SLAB_STEPS * Traits::SLAB_BYTES + row * SWIZZLE_BYTES + (chunk ^ row % 8) * 16);
        }
    }
};

// Columns of the tile's rows times those of a block, added to what is there: keys by queries, or values by gradients of the output.
template <class Traits>
__device__ inline void multiply_columns(float (&x)[Traits::SCORES], unsigned rows, const LeftColumns<Traits>& last, unsigned block)
{
    using Element = typename Traits::Element;
    const unsigned long long left = matrix_descriptor(rows, 1), right = matrix_descriptor(block, 1);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::HEAD_DIM / MMA_K; step++) {
        constexpr int IN_SHARED = Traits::KEY_SLABS * Traits::SLAB_STEPS;
        const int at = step % Traits::SLAB_STEPS * MMA_K * 2 + step / Traits::SLAB_STEPS * Traits::SLAB_BYTES;
        if (step < IN_SHARED)
            Wgmma<Traits::BLOCK_M>::template shared<Element>(x, advance_descriptor(left, at), advance_descriptor(right, at), true);
        else
            wgmma_left<Element>(x, last.words[step - IN_SHARED], advance_descriptor(right, at), true);
    }
    wgmma_commit();
}

// Adds words of 16 bits, keys x queries, times the rows of a block.
template <class Traits>
__device__ inline void add_rows(float (&sums)[Traits::RESULTS], const unsigned (&words)[Traits::SCORES / 2], unsigned block)
{
    const unsigned long long rows = matrix_descriptor(block, Traits::SLAB_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::BLOCK_M / MMA_K; step++)
        Wgmma<Traits::HEAD_DIM>::template from_registers<typename Traits::Element>(sums, words + 4 * step,
                                                                                   advance_descriptor(rows, step * 2 * SWIZZLE_GROUP_BYTES), true);
    wgmma_commit();
}

// The block in hand is the last of a sequence that others may follow: its rows behind the end become 0. Both computing warpgroups come
// here, each from its own code, and wait for each other. `turn` counts how often.
template <class Traits>
__device__ inline void clear_queries(const KeyGradientShared<Traits> shared, const RingPosition<Traits::STAGES>& queries_at,
                                     const RingPosition<Traits::D_OUT_STAGES>& d_out_at, int rows, unsigned turn)
{
    barrier_wait(shared.queries_full(queries_at.stage), queries_at.parity);
    barrier_wait(shared.d_out_full(d_out_at.stage), d_out_at.parity);
    clear_rows<Traits::BLOCK_M, Traits::SLABS, 256>(shared.queries(queries_at.stage), rows);
    clear_rows<Traits::BLOCK_M, Traits::SLABS, 256>(shared.d_out(d_out_at.stage), rows);
    meet(shared.cleared(), turn);
}

// The first computing warpgroup: weights, and dV. The scores of the next block come before dV of this one, so that the next weights are
// computed under it. No product is under way where the loop begins again: ptxas would wait for it.
template <class Traits> __device__ inline void value_gradients(const BackwardTma& block, const KeyGradientShared<Traits> shared)
{
    using Element = typename Traits::Element;
    constexpr int SCORES = Traits::SCORES, STEPS = Traits::BLOCK_M / MMA_K;
    const Backward& params = block.backward;
    const float scale_log2 = params.scoring.scale * LOG2_E, lse_factor = -1 / scale_log2;
    const auto arrive = [](unsigned barrier) {
        if (thread_index() % 32 == 0) barrier_arrive(barrier);
    };
    MaskedScores<Traits> scores(block);
    float first_product = 0; // with dropout: weights come out multiplied
    if constexpr (drops<Traits>()) first_product = log2f(kept_factor(block)) / scale_log2;
    unsigned loads = 0;  // tiles with blocks
    unsigned clears = 0; // blocks whose end was cleared
    unsigned taken = 0;  // blocks with weights that others drew
    RingPosition<Traits::STAGES> queries_at;
    RingPosition<Traits::D_OUT_STAGES> d_out_at;
    RingPosition<Traits::WEIGHT_STAGES> weights_at;
    for (unsigned turn = 0;; turn++) {
        const KeyTile& tile = shared.wait_for_tile(turn);
        if (!tile.exists) return;
        KeyTileBlocks<Traits> blocks(params, tile);
        const int first_key = uniform(tile.first_key);
        float dv[Traits::RESULTS];
#pragma unroll
        for (int i = 0; i < Traits::RESULTS; i++) dv[i] = 0;
        if (blocks.count > 0) {
            float x[SCORES];
            unsigned weights[SCORES / 2];
            LeftColumns<Traits> last;
            // Asks for the scores of the block in hand.
            const auto issue_scores = [&] {
                const int stage = uniform(queries_at.stage);
                if (const int rows = blocks.rows(); rows < Traits::BLOCK_M) clear_queries(shared, queries_at, d_out_at, rows, clears++);
                barrier_wait(shared.queries_full(stage), queries_at.parity);
                if constexpr (caps<Traits>())
                    begin_at_zero(x);
                else
                    begin_at<drops<Traits>()>(x, shared.lse(stage) + thread_index() % 4 * 8, lse_factor, first_product);
                multiply_columns<Traits>(x, shared.base + Traits::KEYS_AT, last, shared.queries(stage));
            };
            const auto draw = [&] {
                if constexpr (has_drawers<Traits>()) {
                    scores.take(DrawnSlots<Traits>{shared.base}.take(taken % Traits::SLOTS, taken / Traits::SLOTS));
                    taken++;
                } else if constexpr (drops<Traits>())
                    scores.draw(uniform(tile.exists - 1), uniform(tile.kv_head * tile.heads) + blocks.head, blocks.block * Traits::BLOCK_M, first_key, shared.base, 0);
            };
            // The scores are there; they become weights, and the other warpgroup gets these.
            const auto weigh = [&] {
                pin(x);
                const unsigned lse = shared.lse(queries_at.stage) + thread_index() % 4 * 8;
                const auto leave_queries = [&] {
                    arrive(shared.queries_empty(queries_at.stage));
                    queries_at.advance();
                };
                if constexpr (!caps<Traits>()) leave_queries();
                const Mask& mask = blocks.mask;
                if constexpr (has_distances<Traits>()) {
                    const int own_key = thread_index() % 128 / 32 * 16 + thread_index() % 32 / 4;
                    const int distance = blocks.block * Traits::BLOCK_M + thread_index() % 4 * 2 + mask.key_len - mask.query_len - first_key - own_key;
                    add_distances<true>(x, distance, product_slope<Traits>(params.scoring, uniform(tile.exists - 1), uniform(tile.kv_head * tile.heads) + blocks.head));
                }
                if constexpr (caps<Traits>()) bend(x, x, bend_argument<Traits>(params.scoring), params.heads >> 31);
                hide_unseen<Traits::BLOCK_M>(x, mask, first_key, blocks.block * Traits::BLOCK_M + mask.shift);
                barrier_wait(shared.weights_empty(weights_at.stage), ~weights_at.parity & 1);
                const float weight_scale = has_distances<Traits>() ? computed_here(params.scoring.scale) * LOG2_E : scale_log2; // registers
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    unsigned words[4];
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int at = 8 * step + 2 * j;
                        // Weights are at most 1; f16 has three more bits of them than bf16.
                        if constexpr (caps<Traits>()) {
                            const float2 two = load_two(lse + at / 4 * 32);
                            const float cap = cap_exponent(params.scoring);
                            const float2 bent = {x[at], x[at + 1]};
                            x[at] = weight_of_bent(bent.x, cap, two.x);
                            x[at + 1] = weight_of_bent(bent.y, cap, two.y);
                            words[j] = pack<__half>(slope_of_bent(x[at], bent.x), slope_of_bent(x[at + 1], bent.y));
                        } else {
                            x[at] = exp2_approximate(x[at] * weight_scale);
                            x[at + 1] = exp2_approximate(x[at + 1] * weight_scale);
                            words[j] = pack<__half>(x[at], x[at + 1]);
                        }
                        if constexpr (drops<Traits>()) words[j] = scores.marked_pair(words[j], 4 * step + j);
                    }
                    store_four_words(shared.weights(weights_at.stage, step), words);
                }
                __syncwarp();
                if constexpr (caps<Traits>()) leave_queries();
                arrive(shared.weights_full(weights_at.stage));
                weights_at.advance();
            };
            const auto pack_weights = [&] {
#pragma unroll
                for (int j = 0; j < SCORES / 2; j++) {
                    weights[j] = pack<Element>(x[2 * j], x[2 * j + 1]);
                    if constexpr (drops<Traits>()) weights[j] = scores.kept_pair(weights[j], j);
                }
                pin(weights);
            };
            // What packed weights add to dV, and that this has ended.
            const auto issue_values = [&](int stage, unsigned parity) {
                barrier_wait(shared.d_out_full(stage), parity);
                pin(dv);
                add_rows<Traits>(dv, weights, shared.d_out(stage));
            };
            const auto end_values = [&](int stage) {
                wgmma_wait<0>();
                pin(dv);
                pin(weights);
                arrive(shared.d_out_empty(stage));
            };
            if constexpr (Traits::LEFT_SLABS > 0) {
                barrier_wait(shared.queries_full(queries_at.stage), queries_at.parity);
                last.load(shared.queries(queries_at.stage));
                __syncwarp();
                arrive(shared.queries_empty(queries_at.stage));
                queries_at.advance();
            }
            barrier_wait(shared.keys_full(), loads++ & 1);
            issue_scores();
            draw();
            wgmma_wait<0>();
            weigh();
#pragma unroll 1
            for (int left = blocks.count - 1; left > 0; left--) {
                const int stage = uniform(d_out_at.stage);
                const unsigned parity = d_out_at.parity;
                pack_weights();
                d_out_at.advance();
                blocks.advance();
                issue_scores();
                issue_values(stage, parity);
                draw();
                wgmma_wait<1>();
                weigh();
                end_values(stage);
            }
            arrive(shared.keys_empty());
            const int stage = uniform(d_out_at.stage);
            pack_weights();
            issue_values(stage, d_out_at.parity);
            end_values(stage);
            d_out_at.advance();
        }
        write_rows<Element>(params, params.dv, tile, first_key, params.value_dim, dv, 1);
        __syncwarp();
        arrive(shared.tile_empty(turn % 2));
    }
}

// The second one: gradients of scores, and dK, likewise.
template <class Traits> __device__ inline void key_gradients(const BackwardTma& block, const KeyGradientShared<Traits> shared)
{
    using Element = typename Traits::Element;
    constexpr int SCORES = Traits::SCORES, STEPS = Traits::BLOCK_M / MMA_K;
    const Backward& params = block.backward;
    float delta_factor = -1;
    if constexpr (drops<Traits>()) delta_factor = -1 / kept_factor(block);
    const auto arrive = [](unsigned barrier) {
        if (thread_index() % 32 == 0) barrier_arrive(barrier);
    };
    unsigned loads = 0, clears = 0;
    RingPosition<Traits::STAGES> queries_at;
    RingPosition<Traits::D_OUT_STAGES> d_out_at;
    RingPosition<Traits::WEIGHT_STAGES> weights_at;
    for (unsigned turn = 0;; turn++) {
        const KeyTile& tile = shared.wait_for_tile(turn);
        if (!tile.exists) return;
        KeyTileBlocks<Traits> blocks(params, tile);
        float dk[Traits::RESULTS];
#pragma unroll
        for (int i = 0; i < Traits::RESULTS; i++) dk[i] = 0;
        if (blocks.count > 0) {
            float y[SCORES];
            unsigned slopes[SCORES / 2]; // gradients of scores
            LeftColumns<Traits> last;
            // Asks for the products of values and the block in hand.
            const auto issue_products = [&] {
                const int stage = uniform(d_out_at.stage);
                if (const int rows = blocks.rows(); rows < Traits::BLOCK_M) clear_queries(shared, queries_at, d_out_at, rows, clears++);
                barrier_wait(shared.d_out_full(stage), d_out_at.parity);
                if constexpr (drops<Traits>())
                    begin_at_zero(y);
                else
                    begin_at(y, shared.delta(stage) + thread_index() % 4 * 8, -1);
                multiply_columns<Traits>(y, shared.base + Traits::VALUES_AT, last, shared.d_out(stage));
            };
            // They are there; times the weights they become gradients of scores.
            const auto weigh = [&] {
                pin(y);
                const unsigned deltas = shared.delta(d_out_at.stage) + thread_index() % 4 * 8;
                const auto leave_d_out = [&] {
                    arrive(shared.d_out_empty(d_out_at.stage));
                    d_out_at.advance();
                };
                if constexpr (!drops<Traits>()) leave_d_out();
                barrier_wait(shared.weights_full(weights_at.stage), weights_at.parity);
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    unsigned words[4];
                    load_four_words(words, shared.weights(weights_at.stage, step));
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const float2 two = unpacked<__half>(words[j]);
                        const int at = 8 * step + 2 * j;
                        if constexpr (drops<Traits>()) {
                            const float2 delta = load_two(deltas + at / 4 * 32);
                            y[at] = fmaf(fmaxf(two.x, 0), y[at], fabsf(two.x) * (delta.x * delta_factor));
                            y[at + 1] = fmaf(fmaxf(two.y, 0), y[at + 1], fabsf(two.y) * (delta.y * delta_factor));
                        } else {
                            y[at] *= two.x;
                            y[at + 1] *= two.y;
                        }
                    }
                }
                __syncwarp();
                if constexpr (drops<Traits>()) leave_d_out();
                arrive(shared.weights_empty(weights_at.stage));
                weights_at.advance();
            };
            const auto pack_slopes = [&] {
#pragma unroll
                for (int j = 0; j < SCORES / 2; j++) slopes[j] = pack<Element>(y[2 * j], y[2 * j + 1]);
                pin(slopes);
            };
            // What packed gradients add to dK, and that this has ended.
            const auto issue_keys = [&](int stage, unsigned parity) {
                barrier_wait(shared.queries_full(stage), parity);
                pin(dk);
                add_rows<Traits>(dk, slopes, shared.queries(stage));
            };
            const auto end_keys = [&](int stage) {
                wgmma_wait<0>();
                pin(dk);
                pin(slopes);
                arrive(shared.queries_empty(stage));
            };
            if constexpr (Traits::LEFT_SLABS > 0) {
                barrier_wait(shared.queries_full(queries_at.stage), queries_at.parity);
                last.load(shared.queries(queries_at.stage) + Traits::LEFT_SLABS * Traits::SLAB_BYTES);
                __syncwarp();
                arrive(shared.queries_empty(queries_at.stage));
                queries_at.advance();
            }
            barrier_wait(shared.values_full(), loads++ & 1);
            issue_products();
            wgmma_wait<0>();
            weigh();
#pragma unroll 1
            for (int left = blocks.count - 1; left > 0; left--) {
                const int stage = uniform(queries_at.stage);
                const unsigned parity = queries_at.parity;
                pack_slopes();
                queries_at.advance();
                blocks.advance();
                issue_products();
                issue_keys(stage, parity);
                wgmma_wait<1>();
                weigh();
                end_keys(stage);
            }
            arrive(shared.values_empty());
            const int stage = uniform(queries_at.stage);
            pack_slopes();
            issue_keys(stage, queries_at.parity);
            end_keys(stage);
            queries_at.advance();
        }
        write_rows<Element>(params, params.dk, tile, uniform(tile.first_key), params.head_dim, dk, params.scoring.scale);
        __syncwarp();
        arrive(shared.tile_empty(turn % 2));
    }
}

template <class Traits> __device__ inline void gradients_of_keys(const BackwardTma& block)
{
    const KeyGradientShared<Traits> shared = {shared_address(dynamic_shared<SWIZZLE_GROUP_BYTES>())};
    const int warp = uniform(threadIdx.x / 32);
    if (threadIdx.x == 0) shared.init_barriers();
    __syncthreads();
    grid_dependency_wait();
    if (has_drawers<Traits>() && warp >= 12) {
        if constexpr (has_drawers<Traits>()) {
            setmaxnreg_dec<Traits::DRAWING_REGISTERS>();
            draw_key_tiles(block, shared, warp - 12);
        }
    } else if (warp < 4) {
        setmaxnreg_dec<Traits::LOADING_REGISTERS>();
        if (threadIdx.x == 0)
            load_key_tiles<Traits, true>(block, shared);
        else if (threadIdx.x == 32)
            load_key_tiles<Traits, false>(block, shared);
        else if (threadIdx.x == 64)
            draw_tiles(shared, [&](KeyTile& tile) { draw_tile<Traits>(block.backward, tile); });
    } else {
        setmaxnreg_inc<Traits::COMPUTING_REGISTERS>();
        if (warp < 8)
            value_gradients(block, shared);
        else
            key_gradients(block, shared);
    }
}

} // namespace warptile
