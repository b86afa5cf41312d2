// The one-pass backward kernels for Hopper. A CTA has a tile of keys of a key/value head at a time and goes over the blocks of queries that see some
// of them, head after head of those that share the keys. dK and dV stay in registers. Its share of dQ of each block is added to fp32 sums in memory: those
// of a block by ascending tiles of keys, in turn, so that the bits are the same on every run; the first one stores. Another kernel makes dQ of the sums.
//
// Nobody waits for ever: a tile waits only for tiles of keys before it, of the same head, which have smaller numbers, and numbers are drawn in ascending
// order, so the smallest unfinished one waits for nobody, however many CTAs there are at once.
#pragma once

#include "backward/wgmma_gradients.cuh"

namespace warptile {

// A thread that adds the shares of blocks: of every block whose share warpgroup `mine` computes.
template <class Traits> __device__ inline void add_sums(const Backward& params, const OnePassShared<Traits> shared, int mine)
{
    int owner = -1; // of the block
    unsigned taken = 0;
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
                wait_for_turn(turns, before);
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
    wait_for_predecessor();
    if (warp < 4) {
        give_registers_back<Traits::LOADING_REGISTERS>();
        if (threadIdx.x == 0)
            load_blocks(block, shared);
        else if (warp <= Traits::CONSUMERS && threadIdx.x % 32 == 0)
            add_sums(block.backward, shared, warp - 1);
    } else {
        take_registers<Traits::COMPUTING_REGISTERS>();
        compute_gradients(block, shared, uniform(thread_index() / 128) - 1);
    }
}

} // namespace warptile
