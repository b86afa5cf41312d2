// The one-pass backward kernels for Hopper. A CTA has a tile of keys of a key/value head at a time and goes over the blocks of queries that see some
// of them, head after head of those that share the keys. dK and dV stay in registers. Its share of dQ of each block is added to fp32 sums in memory: those
// of a block by ascending tiles of keys, in turn, so that the bits are the same on every run; the first one stores. Another kernel makes dQ of the sums.
//
// Nobody waits for ever: a tile waits only for tiles of keys before it, of the same head, which have smaller numbers, and numbers are drawn in ascending
// order, so the smallest unfinished one waits for nobody, however many CTAs there are at once. Only where offsets on the device do not ascend,
// or lengths change during the launch, a tile may be missing: a thread that has waited for many times as long as any tile takes adds without
// waiting from then on. Its sums are wrong, and the launch ends.
#pragma once

#include "backward/wgmma_gradients.cuh"

namespace warptile {

// The loading thread.
template <class Traits> __device__ inline void load_blocks(const BackwardTma& block, const OnePassShared<Traits> shared)
{
    const Backward& params = block.backward;
    unsigned it = 0, loads = 0;
    for (unsigned turn = 0;; turn++) {
        KeyTile& tile = shared.tile(turn);
        barrier_wait(shared.tile_empty(turn % 2), ~(turn / 2) & 1);
        draw_tile<Traits>(params, tile);
        barrier_arrive(shared.tile_full(turn % 2));
        if (!tile.exists) return;
        const auto load_keys = [&](const TensorMap& map, int at, unsigned full, unsigned empty) {
            barrier_wait(empty, ~loads & 1);
            barrier_arrive_expect_bytes(full, Traits::KEY_BYTES);
            for (int slab = 0; slab < Traits::SLABS; slab++)
                copy_box(shared.base + at + slab * Traits::KEY_SLAB_BYTES, map, full, slab * Traits::SLAB_COLUMNS, tile.k.first + tile.first_key,
                         tile.kv_head, tile.key_entry);
        };
        bool has_keys = false;
#pragma unroll 1
        for (int head = 0; head < tile.heads; head++)
#pragma unroll 1
            for (int of = tile.end_block - 1; of >= tile.first_block; of--, it++) {
                const int stage = it & 1;
                const unsigned parity = ~(it >> 1) & 1;
                const auto load_rows = [&](const TensorMap& map, unsigned to, unsigned full) {
                    for (int slab = 0; slab < Traits::SLABS; slab++)
                        copy_box(to + slab * Traits::QUERY_SLAB_BYTES, map, full, slab * Traits::SLAB_COLUMNS, tile.q.first + of * Traits::BLOCK_M,
                                 tile.kv_head * tile.heads + head, tile.query_entry);
                };
                barrier_wait(shared.queries_empty(stage), parity);
                barrier_arrive_expect_bytes(shared.queries_full(stage), Traits::QUERY_BYTES + 2 * Traits::NUMBER_BYTES);
                load_rows(block.q_map, shared.queries(stage), shared.queries_full(stage));
                const long long numbers = (long long)(tile.row_tile + head * params.rows.query_tiles + of) * PREPASS_ROWS;
                copy_bytes(shared.numbers(stage), params.rows.scaled_lse + numbers, Traits::NUMBER_BYTES, shared.queries_full(stage));
                copy_bytes(shared.numbers(stage) + Traits::NUMBER_BYTES, params.rows.delta + numbers, Traits::NUMBER_BYTES, shared.queries_full(stage));
                if (!has_keys) {
                    load_keys(block.v_map, Traits::VALUES_AT, shared.values_full(), shared.values_empty());
                    load_keys(block.k_map, Traits::KEYS_AT, shared.keys_full(), shared.keys_empty());
                    has_keys = true;
                    loads++;
                }
                barrier_wait(shared.d_out_empty(stage), parity);
                barrier_arrive_expect_bytes(shared.d_out_full(stage), Traits::QUERY_BYTES);
                load_rows(block.d_out_map, shared.d_out(stage), shared.d_out_full(stage));
            }
    }
}

// Polls of a turn before a thread gives up: about two seconds, and about 2 ms for each block of a key/value head's queries. A turn comes within
// the time of a tile, which takes about 2 us for each of its blocks.
constexpr unsigned TURN_POLLS = 1 << 22, BLOCK_POLLS = 1 << 12;

// A thread that adds the shares of blocks: of every block whose share warpgroup `mine` computes.
template <class Traits> __device__ inline void add_sums(const Backward& params, const OnePassShared<Traits> shared, int mine)
{
    int owner = -1; // of the block
    unsigned taken = 0;
    const unsigned long long blocks = (unsigned long long)params.rows.query_tiles * (params.heads / params.kv_heads);
    unsigned polls = min(TURN_POLLS + BLOCK_POLLS * blocks, 0xffffffffull);
    for (unsigned turn = 0;; turn++) {
        const KeyTile& tile = shared.wait_for_tile(turn);
        if (!tile.exists) return;
#pragma unroll 1
        for (int head = 0; head < tile.heads; head++)
#pragma unroll 1
            for (int of = tile.end_block - 1; of >= tile.first_block; of--) {
                if (++owner == Traits::CONSUMERS) owner = 0;
                if (owner != mine) continue;
                const int row_tile = tile.row_tile + head * params.rows.query_tiles + of;
                unsigned* const turns = params.rows.turns + row_tile;
                const Visits<Traits::BLOCK_M, Traits::BLOCK_N> visits = {tile.mask(params)};
                const unsigned before = tile.first_key / Traits::BLOCK_N - visits.first_tile(of);
                wait_for_turn(turns, before, polls);
                fence_global_for_async();
                barrier_wait(shared.sums_full(mine), taken++ & 1);
                float* const sum = params.rows.dq_sum + (long long)row_tile * (PREPASS_ROWS * Traits::HEAD_DIM);
                if (before == 0)
                    store_bytes(sum, shared.sums(mine), Traits::SUM_BYTES);
                else
                    add_bytes(sum, shared.sums(mine), Traits::SUM_BYTES);
                commit_stores();
                wait_for_store_reads<0>();
                barrier_arrive(shared.sums_empty(mine));
                wait_for_stores();
                fence_global_for_async();
                pass_turn(turns);
            }
        barrier_arrive(shared.tile_empty(turn % 2));
    }
}

template <class Traits> __device__ inline void all_gradients(const BackwardTma& block)
{
    const OnePassShared<Traits> shared = {shared_address(dynamic_shared<SWIZZLE_GROUP_BYTES>())};
    const int warp = uniform(threadIdx.x / 32);
    if (threadIdx.x == 0) shared.init_barriers();
    __syncthreads();
    grid_dependency_wait();
    if (warp < 4) {
        setmaxnreg_dec<Traits::LOADING_REGISTERS>();
        if (threadIdx.x == 0)
            load_blocks(block, shared);
        else if (warp <= Traits::CONSUMERS && threadIdx.x % 32 == 0)
            add_sums(block.backward, shared, warp - 1);
    } else {
        setmaxnreg_inc<Traits::COMPUTING_REGISTERS>();
        compute_gradients(block, shared, uniform(thread_index() / 128) - 1);
    }
}

} // namespace warptile
