// Sizes and the shared memory layout of the one-pass backward kernels on wgmma.
#pragma once

#include "backward/wgmma_options.cuh"
#include "backward/wgmma_tile.cuh"
#include "base/record.cuh"
#include "ptx/wgmma_rows.cuh"

namespace warptile {

// Tiles are slabs of 64 columns, [slab][row][64], 128-byte swizzled, as one tensor-map box delivers them.
template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_> struct OnePassTraits {
    using Element = Element_;
    static constexpr int HEAD_DIM = HEAD_DIM_;
    static constexpr int BLOCK_M = BLOCK_M_; // queries of a block
    static constexpr int BLOCK_N = BLOCK_N_; // keys of a tile
    static constexpr int WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int STAGES = STAGES_; // blocks of queries and of gradients of the output in shared memory
    static constexpr int K_STRIDE = 0, V_STRIDE = 0; // rows are swizzled, not padded
    static constexpr int MIN_CTAS = 1;
    static constexpr unsigned ROLE = ROLE_ALL_GRADIENTS, SCHEDULE = SCHEDULE_PERSISTENT,
                              FEATURES = GRADIENT_FEATURES;

    static constexpr int CONSUMERS = BLOCK_N / MMA_ROWS; // warpgroups, each with 64 keys
    static constexpr int SLAB_COLUMNS = SWIZZLE_BYTES / 2, SLABS = (HEAD_DIM + SLAB_COLUMNS - 1) / SLAB_COLUMNS;
    static constexpr int QUERY_SLAB_BYTES = BLOCK_M * SWIZZLE_BYTES, KEY_SLAB_BYTES = BLOCK_N * SWIZZLE_BYTES;
    static constexpr int QUERY_BYTES = SLABS * QUERY_SLAB_BYTES, KEY_BYTES = SLABS * KEY_SLAB_BYTES;
    static constexpr int SLOPE_BYTES = BLOCK_M * BLOCK_N * 2;    // gradients of a block's scores
    static constexpr int SUM_BYTES = BLOCK_M * HEAD_DIM * 4;     // what a tile of keys adds to a block of dQ
    static constexpr int NUMBER_BYTES = BLOCK_M * 4;             // of each of two lists
    static constexpr int SCORES = BLOCK_M / 2;                   // of a thread in a block
    static constexpr int RESULTS = HEAD_DIM / 2;                 // of a thread, of each of dK, dV and dQ

    static constexpr int KEYS_AT = 0, VALUES_AT = KEYS_AT + KEY_BYTES, QUERIES_AT = VALUES_AT + KEY_BYTES;
    static constexpr int D_OUT_AT = QUERIES_AT + STAGES * QUERY_BYTES, SLOPES_AT = D_OUT_AT + STAGES * QUERY_BYTES;
    static constexpr int SUMS_AT = SLOPES_AT + CONSUMERS * SLOPE_BYTES, NUMBERS_AT = SUMS_AT + CONSUMERS * SUM_BYTES;
    static constexpr int BARRIERS_AT = NUMBERS_AT + STAGES * 2 * NUMBER_BYTES;
    static constexpr int BARRIERS = 16 + 4 * CONSUMERS, TILES_AT = BARRIERS_AT + BARRIERS * BARRIER_BYTES;
    static constexpr int SHARED_BYTES = TILES_AT + 2 * (int)sizeof(KeyTile);

    // Of a thread. A launch has as many for each as ptxas may use; what one warpgroup gives back the others take, or wait for ever.
    enum { LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8, LOADING_REGISTERS = 24, COMPUTING_REGISTERS = CONSUMERS == 2 ? 240 : 160 };
    static_assert(LOADING_REGISTERS + CONSUMERS * COMPUTING_REGISTERS <= (1 + CONSUMERS) * LAUNCH_REGISTERS, "none waits for registers");

    static_assert(sizeof(Element) == 2, "wgmma takes f16 and bf16");
    static_assert(STAGES == 2, "blocks alternate between stages");
    static_assert(CONSUMERS == 2 || CONSUMERS == 3, "warpgroups, and those who add, have blocks in turn: each of these is a warp of the first four");
    static_assert(WARPS == 4 + 4 * CONSUMERS, "a warpgroup loads and adds, the others compute");
    static_assert(HEAD_DIM % 32 == 0 && BLOCK_M == PREPASS_ROWS && BLOCK_M == MMA_ROWS, "slabs, and a product's rows");
    static_assert(BLOCK_M == abi::QUERY_BOX_ROWS && SLAB_COLUMNS == abi::BOX_COLUMNS, "boxes");
};

template <class Plain> using OnePassDropping = TransposedDropping<Plain, Plain::CONSUMERS>;

template <class Traits> struct OnePassShared {
    const unsigned base;

    __device__ unsigned barrier(int i) const { return base + Traits::BARRIERS_AT + i * BARRIER_BYTES; }
    __device__ unsigned keys_full() const { return barrier(0); }
    __device__ unsigned keys_empty() const { return barrier(1); }
    __device__ unsigned values_full() const { return barrier(2); }
    __device__ unsigned values_empty() const { return barrier(3); }
    // Of two each.
    __device__ unsigned queries_full(int stage) const { return barrier(4 + stage); }
    __device__ unsigned queries_empty(int stage) const { return barrier(6 + stage); }
    __device__ unsigned d_out_full(int stage) const { return barrier(8 + stage); }
    __device__ unsigned d_out_empty(int stage) const { return barrier(10 + stage); }
    __device__ unsigned tile_full(int which) const { return barrier(12 + which); }
    __device__ unsigned tile_empty(int which) const { return barrier(14 + which); }
    // Of one for each warpgroup.
    __device__ unsigned slopes_full(int which) const { return barrier(16 + which); }
    __device__ unsigned slopes_empty(int which) const { return barrier(16 + Traits::CONSUMERS + which); }
    __device__ unsigned sums_full(int which) const { return barrier(16 + 2 * Traits::CONSUMERS + which); }
    __device__ unsigned sums_empty(int which) const { return barrier(16 + 3 * Traits::CONSUMERS + which); }

    __device__ unsigned queries(int stage) const { return base + Traits::QUERIES_AT + stage * Traits::QUERY_BYTES; }
    __device__ unsigned d_out(int stage) const { return base + Traits::D_OUT_AT + stage * Traits::QUERY_BYTES; }
    __device__ unsigned slopes(int which) const { return base + Traits::SLOPES_AT + which * Traits::SLOPE_BYTES; }
    __device__ unsigned sums(int which) const { return base + Traits::SUMS_AT + which * Traits::SUM_BYTES; }
    __device__ unsigned numbers(int stage) const { return base + Traits::NUMBERS_AT + stage * 2 * Traits::NUMBER_BYTES; }

    __device__ void init_barriers() const
    {
        constexpr int COMPUTING = 4 * Traits::CONSUMERS, OF_GROUP = 4; // warps
        barrier_init(keys_full(), 1);
        barrier_init(keys_empty(), COMPUTING);
        barrier_init(values_full(), 1);
        barrier_init(values_empty(), COMPUTING);
        for (int i = 0; i < 2; i++) {
            barrier_init(queries_full(i), 1);
            barrier_init(queries_empty(i), COMPUTING);
            barrier_init(d_out_full(i), 1);
            barrier_init(d_out_empty(i), COMPUTING);
            barrier_init(tile_full(i), 1);
            barrier_init(tile_empty(i), COMPUTING + Traits::CONSUMERS);
        }
        for (int i = 0; i < Traits::CONSUMERS; i++) {
            barrier_init(slopes_full(i), COMPUTING);
            barrier_init(slopes_empty(i), OF_GROUP);
            barrier_init(sums_full(i), OF_GROUP);
            barrier_init(sums_empty(i), 1);
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

} // namespace warptile
