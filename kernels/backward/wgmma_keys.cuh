// dK and dV of large head sizes, for Hopper: more of them than the registers of a warpgroup hold. So two warpgroups share the products of a tile of 64
// keys. The first computes the weights and dV, and leaves the weights in shared memory to the second, which computes the gradients of scores and dK.
// They have nothing else to do with each other, so each computes weights or gradients while the other multiplies.
//
// Scores are transposed, keys x queries, as in the one-pass kernels (wgmma_gradients.cuh), which also begin products at -lse / scale and -delta. Sums over
// the heads that share keys stay in registers; each has one order.
#pragma once

#include "backward/wgmma_rows.cuh"
#include "base/math.cuh"
#include "base/record.cuh"
#include "ptx/launch.cuh"
#include "ptx/stage.cuh"

namespace warptile {

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_> struct KeyGradientTraits {
    using Element = Element_;
    static constexpr int HEAD_DIM = HEAD_DIM_, VALUE_DIM = HEAD_DIM;
    static constexpr int BLOCK_M = BLOCK_M_; // queries of a block
    static constexpr int BLOCK_N = BLOCK_N_; // keys of a tile
    static constexpr int WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int STAGES = STAGES_; // blocks of queries and of gradients of the output in shared memory
    static constexpr int K_STRIDE = 0, V_STRIDE = 0; // rows are swizzled, not padded
    static constexpr int MIN_CTAS = 1;
    static constexpr unsigned ROLE = ROLE_KEY_GRADIENTS, SCHEDULE = SCHEDULE_PERSISTENT,
                              FEATURES = FEATURE_SINKS | FEATURE_VALUE_DIM | FEATURE_PACKED | FEATURE_DEVICE_LENGTHS;

    // Tiles are slabs of 64 columns, [slab][row][64], 128-byte swizzled, as one tensor-map box delivers them.
    static constexpr int SLAB_COLUMNS = SWIZZLE_BYTES / 2, SLABS = HEAD_DIM / SLAB_COLUMNS;
    static constexpr int QUERY_SLAB_BYTES = BLOCK_M * SWIZZLE_BYTES, KEY_SLAB_BYTES = BLOCK_N * SWIZZLE_BYTES;
    static constexpr int QUERY_BYTES = SLABS * QUERY_SLAB_BYTES, KEY_BYTES = SLABS * KEY_SLAB_BYTES;
    static constexpr int WEIGHT_BYTES = BLOCK_M * BLOCK_N * 2; // a block's weights
    static constexpr int NUMBER_BYTES = BLOCK_M * 4;           // of each of two lists
    static constexpr int SCORES = BLOCK_M / 2;                 // of a thread in a block
    static constexpr int RESULTS = HEAD_DIM / 2;               // of a thread, of dK or dV

    static constexpr int KEYS_AT = 0, VALUES_AT = KEYS_AT + KEY_BYTES, QUERIES_AT = VALUES_AT + KEY_BYTES;
    static constexpr int D_OUT_AT = QUERIES_AT + STAGES * QUERY_BYTES, WEIGHTS_AT = D_OUT_AT + STAGES * QUERY_BYTES;
    static constexpr int NUMBERS_AT = WEIGHTS_AT + STAGES * WEIGHT_BYTES, BARRIERS_AT = NUMBERS_AT + STAGES * 2 * NUMBER_BYTES;
    static constexpr int BARRIERS = 20, TILES_AT = BARRIERS_AT + BARRIERS * BARRIER_BYTES;
    static constexpr int SHARED_BYTES = TILES_AT + 2 * (int)sizeof(KeyTile);

    // Of a thread. A launch has as many for each as ptxas may use; what one warpgroup gives back the others take, or wait for ever.
    enum { LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8, LOADING_REGISTERS = 24, COMPUTING_REGISTERS = 240 };
    static_assert(LOADING_REGISTERS + 2 * COMPUTING_REGISTERS <= 3 * LAUNCH_REGISTERS, "none waits for registers");

    static_assert(sizeof(Element) == 2, "wgmma takes f16 and bf16");
    static_assert(STAGES == 2, "blocks alternate between stages");
    static_assert(WARPS == 12, "a warpgroup loads, one computes dV, and one dK");
    static_assert(HEAD_DIM % SLAB_COLUMNS == 0 && BLOCK_M == PREPASS_ROWS && BLOCK_M == MMA_ROWS && BLOCK_N == MMA_ROWS, "slabs, and a product's rows");
    static_assert(BLOCK_M == abi::QUERY_BOX_ROWS && SLAB_COLUMNS == abi::BOX_COLUMNS, "boxes");
};

template <class Traits> struct KeyGradientShared : KeyTileShared<Traits> {
    using KeyTileShared<Traits>::barrier;
    // Weights, of two each.
    __device__ unsigned weights_full(int stage) const { return barrier(16 + stage); }
    __device__ unsigned weights_empty(int stage) const { return barrier(18 + stage); }
    // A thread's words of a product's step lie behind those of the thread before, for the same thread of the other warpgroup.
    __device__ unsigned weights(int stage, int step) const
    {
        return this->base + Traits::WEIGHTS_AT + stage * Traits::WEIGHT_BYTES + step * 2048 + thread_index() % 128 * 16;
    }

    __device__ void init_barriers() const
    {
        constexpr int OF_GROUP = 4; // warps
        this->init_barriers_of_tiles(2 * OF_GROUP, OF_GROUP, 2 * OF_GROUP);
        for (int i = 0; i < 2; i++) {
            barrier_init(weights_full(i), OF_GROUP);
            barrier_init(weights_empty(i), OF_GROUP);
        }
        fence_barrier_init();
    }
};

// A warpgroup's way over a tile's blocks of queries: from the last to the first, head after head of those that share the keys.
template <class Traits> struct KeyTileBlocks {
    const Mask mask;
    const int of_head, count, last_block;
    const bool queries_are_followed;
    int block;

    __device__ KeyTileBlocks(const Backward& params, const KeyTile& tile)
        : mask(tile.mask(params)), of_head(uniform(tile.end_block - tile.first_block)), count(of_head * uniform(tile.heads)),
          last_block(uniform(tile.end_block) - 1), queries_are_followed(params.sequences.query_offsets || params.sequences.query_lengths),
          block(last_block)
    {
    }
    // Of the block's rows, those of the sequence, as far as others may follow.
    __device__ int rows() const { return queries_are_followed ? mask.query_len - block * Traits::BLOCK_M : Traits::BLOCK_M; }
    __device__ void advance() { block = block - last_block + of_head == 1 ? last_block : block - 1; }
};

// Numbers of a thread's queries, times a factor, as accumulators of keys x queries.
template <int COUNT> __device__ inline void begin_at(float (&x)[COUNT], unsigned at, float factor)
{
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const float2 two = load_two(at + i * 8);
        x[i] = x[i + 2] = two.x * factor;
        x[i + 1] = x[i + 3] = two.y * factor;
    }
    pin(x);
}

// Columns of 64 rows times those of a block, in the sum from what is there: keys by queries, or values by gradients of the output.
template <class Traits> __device__ inline void multiply_columns(float (&x)[Traits::SCORES], unsigned keys, unsigned block)
{
    const unsigned long long left = matrix_descriptor(keys, 1), right = matrix_descriptor(block, 1);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::HEAD_DIM / MMA_K; step++) {
        const int inside = step % 4 * 32, slab = step / 4;
        Wgmma<Traits::BLOCK_M>::template shared<typename Traits::Element>(x, advance_descriptor(left, inside + slab * Traits::KEY_SLAB_BYTES),
                                                                          advance_descriptor(right, inside + slab * Traits::QUERY_SLAB_BYTES), true);
    }
    wgmma_commit();
}

// Adds words of 16 bits, keys x queries, times the rows of a block.
template <class Traits>
__device__ inline void add_rows(float (&sums)[Traits::RESULTS], const unsigned (&words)[Traits::SCORES / 2], unsigned block)
{
    const unsigned long long rows = matrix_descriptor(block, Traits::QUERY_SLAB_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::BLOCK_M / MMA_K; step++)
        Wgmma<Traits::HEAD_DIM>::template from_registers<typename Traits::Element>(sums, words + 4 * step,
                                                                                   advance_descriptor(rows, step * 2 * SWIZZLE_GROUP_BYTES), true);
    wgmma_commit();
}

// The first computing warpgroup: weights, and dV. A block's weights are computed while the second one multiplies; the scores of the next block and dV of
// this one follow each other without a wait. No product is under way where the loop begins again: ptxas would wait for it.
template <class Traits> __device__ inline void value_gradients(const Backward& params, const KeyGradientShared<Traits> shared)
{
    using Element = typename Traits::Element;
    constexpr int SCORES = Traits::SCORES, STEPS = Traits::BLOCK_M / MMA_K;
    const float scale_log2 = params.scoring.scale * LOG2_E, lse_factor = -1 / scale_log2;
    const auto arrive = [](unsigned barrier) {
        if (thread_index() % 32 == 0) barrier_arrive(barrier);
    };
    unsigned it = 0, loads = 0; // blocks of this CTA, and tiles with keys
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
            // Asks for the scores of block `it`.
            const auto issue_scores = [&] {
                const int stage = uniform(it & 1), rows = blocks.rows();
                barrier_wait(shared.queries_full(stage), it >> 1 & 1);
                if (rows < Traits::BLOCK_M) clear_end<Traits::BLOCK_M, Traits::SLABS>(shared.queries(stage), rows, 0);
                begin_at(x, shared.numbers(stage) + thread_index() % 4 * 8, lse_factor);
                multiply_columns<Traits>(x, shared.base + Traits::KEYS_AT, shared.queries(stage));
            };
            const auto take_scores = [&] {
                wgmma_wait<0>();
                pin(x);
                arrive(shared.queries_empty(it & 1));
            };
            // Weights of block `it`, whose scores are there, and what they add to dV. The next block is in hand then.
            const auto issue_values = [&] {
                const int stage = uniform(it & 1), rows = blocks.rows();
                const unsigned phase = it >> 1 & 1;
                const Mask& mask = blocks.mask;
                const int diagonal = blocks.block * Traits::BLOCK_M + mask.shift;
                if (first_key + MMA_ROWS > mask.key_len || first_key + MMA_ROWS - 1 > diagonal + mask.right ||
                    first_key < diagonal + Traits::BLOCK_M - 1 - mask.left) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int lane = thread_index() % 32;
                        const int key = first_key + thread_index() % 128 / 32 * 16 + lane / 4 + 8 * half, column = diagonal + lane % 4 * 2;
                        const int from = key < mask.key_len ? key - mask.right - column : Traits::BLOCK_M, to = key + mask.left - column;
#pragma unroll
                        for (int j = 0; j < SCORES; j++)
                            if (j % 4 / 2 == half && (j / 4 * 8 + j % 2 < from || j / 4 * 8 + j % 2 > to)) x[j] = negative_infinity();
                    }
                }
                barrier_wait(shared.weights_empty(stage), ~phase & 1);
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    unsigned left[4];
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int at = 4 * step + j;
                        const float2 two = {exp2_approximate(x[2 * at] * scale_log2), exp2_approximate(x[2 * at + 1] * scale_log2)};
                        weights[at] = pack<Element>(two.x, two.y);
                        // Weights are at most 1, of which f16 has three more bits than bf16.
                        left[j] = pack<__half>(two.x, two.y);
                    }
                    store_four_words(shared.weights(stage, step), left);
                }
                __syncwarp();
                arrive(shared.weights_full(stage));
                barrier_wait(shared.d_out_full(stage), phase);
                if (rows < Traits::BLOCK_M) clear_end<Traits::BLOCK_M, Traits::SLABS>(shared.d_out(stage), rows, 0);
                pin(weights);
                pin(dv);
                add_rows<Traits>(dv, weights, shared.d_out(stage));
                blocks.advance();
                it++;
            };
            // That product has ended.
            const auto release_values = [&] {
                pin(dv);
                pin(weights);
                arrive(shared.d_out_empty(~it & 1));
            };
            barrier_wait(shared.keys_full(), loads++ & 1);
            issue_scores();
            take_scores();
#pragma unroll 1
            for (int left = blocks.count - 1; left > 0; left--) {
                issue_values();
                issue_scores();
                wgmma_wait<1>();
                release_values();
                take_scores();
            }
            arrive(shared.keys_empty());
            issue_values();
            wgmma_wait<0>();
            release_values();
        }
        write_rows<Element>(params, params.dv, tile, first_key, params.value_dim, dv, 1);
        __syncwarp();
        arrive(shared.tile_empty(turn % 2));
    }
}

// The second one: gradients of scores, and dK, likewise.
template <class Traits> __device__ inline void key_gradients(const Backward& params, const KeyGradientShared<Traits> shared)
{
    using Element = typename Traits::Element;
    constexpr int SCORES = Traits::SCORES, STEPS = Traits::BLOCK_M / MMA_K;
    const auto arrive = [](unsigned barrier) {
        if (thread_index() % 32 == 0) barrier_arrive(barrier);
    };
    unsigned it = 0, loads = 0;
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
            // Asks for the products of values and block `it`.
            const auto issue_products = [&] {
                const int stage = uniform(it & 1), rows = blocks.rows();
                const unsigned phase = it >> 1 & 1;
                barrier_wait(shared.queries_full(stage), phase);
                begin_at(y, shared.numbers(stage) + Traits::NUMBER_BYTES + thread_index() % 4 * 8, -1);
                barrier_wait(shared.d_out_full(stage), phase);
                if (rows < Traits::BLOCK_M) {
                    clear_end<Traits::BLOCK_M, Traits::SLABS>(shared.queries(stage), rows, 1);
                    clear_end<Traits::BLOCK_M, Traits::SLABS>(shared.d_out(stage), rows, 1);
                }
                multiply_columns<Traits>(y, shared.base + Traits::VALUES_AT, shared.d_out(stage));
            };
            const auto take_products = [&] {
                wgmma_wait<0>();
                pin(y);
                arrive(shared.d_out_empty(it & 1));
            };
            const auto issue_keys = [&] {
                const int stage = uniform(it & 1);
                barrier_wait(shared.weights_full(stage), it >> 1 & 1);
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    unsigned left[4];
                    load_four_words(left, shared.weights(stage, step));
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int at = 4 * step + j;
                        const float2 two = unpacked<__half>(left[j]);
                        slopes[at] = pack<Element>(two.x * y[2 * at], two.y * y[2 * at + 1]);
                    }
                }
                pin(slopes);
                __syncwarp();
                arrive(shared.weights_empty(stage));
                pin(dk);
                add_rows<Traits>(dk, slopes, shared.queries(stage));
                blocks.advance();
                it++;
            };
            const auto release_keys = [&] {
                pin(dk);
                pin(slopes);
                arrive(shared.queries_empty(~it & 1));
            };
            barrier_wait(shared.values_full(), loads++ & 1);
            issue_products();
            take_products();
#pragma unroll 1
            for (int left = blocks.count - 1; left > 0; left--) {
                issue_keys();
                issue_products();
                wgmma_wait<1>();
                release_keys();
                take_products();
            }
            arrive(shared.values_empty());
            issue_keys();
            wgmma_wait<0>();
            release_keys();
        }
        write_rows<Element>(params, params.dk, tile, uniform(tile.first_key), params.head_dim, dk, params.scoring.scale);
        __syncwarp();
        arrive(shared.tile_empty(turn % 2));
    }
}

template <class Traits> __device__ inline void gradients_of_keys(const BackwardTma& block)
{
    const KeyGradientShared<Traits> shared = {{shared_address(dynamic_shared<SWIZZLE_GROUP_BYTES>())}};
    const int warp = uniform(threadIdx.x / 32);
    if (threadIdx.x == 0) shared.init_barriers();
    __syncthreads();
    wait_for_predecessor();
    if (warp < 4) {
        give_registers_back<Traits::LOADING_REGISTERS>();
        if (threadIdx.x == 0) load_blocks<Traits>(block, shared);
    } else {
        take_registers<Traits::COMPUTING_REGISTERS>();
        if (warp < 8)
            value_gradients(block.backward, shared);
        else
            key_gradients(block.backward, shared);
    }
}

} // namespace warptile
