// Which tiles a CTA computes, and in which order.
//
// CTAs stay for the whole launch. Tiles are numbered so that the ones with most keys come first and so that CTAs working
// at the same time share keys and values in L2: heads are taken `heads_at_once` at a time, and among those the last query
// rows of every head come first. With a tile counter each CTA draws its next number when it is free, which balances
// causal work; without one, CTA c computes tiles c, c + grid, c + 2 * grid, ...
#pragma once

#include "rule/mask.cuh"
#include "forward/wgmma_layout.cuh"

namespace warptile {

template <class Traits> class TileOrder {
  public:
    __device__ explicit TileOrder(const WgmmaParams& params) : params(params), number(blockIdx.x) {}

    __device__ bool done() const { return number >= params.tiles; }

    // Draws the next number; its memory access overlaps with what follows until `advance`.
    __device__ void draw()
    {
        int* counter = params.attention.tile_counter;
        // Each tile's CTA draws once, so a launch makes exactly `tiles` draws; atomicInc wraps to 0 after the last of
        // them and leaves the counter ready for the next launch.
        next = gridDim.x + (counter ? (int)atomicInc(reinterpret_cast<unsigned*>(counter), params.tiles - 1)
                                    : number);
    }
    __device__ void advance() { number = next; }

    // Writes the present tile to `tile`.
    __device__ void describe(Tile& tile) const
    {
        const AttentionParams& attention = params.attention;
        const int tiles_at_once = params.heads_at_once * attention.query_tiles;
        const int group = number / tiles_at_once;
        const int first_head = group * params.heads_at_once;
        const int group_heads = min(params.heads_at_once, attention.heads * attention.batch - first_head);
        const int rest = number - group * tiles_at_once;
        const int tile_row = rest / group_heads;
        const int batch_head = first_head + rest - tile_row * group_heads;

        const int batch = batch_head / attention.heads;
        const int head = batch_head - batch * attention.heads;
        int query_len = attention.query_len, query_offset = 0;
        if (attention.cu_seqlens_q) {
            query_offset = attention.cu_seqlens_q[batch];
            query_len = attention.cu_seqlens_q[batch + 1] - query_offset;
        }
        int key_len = attention.key_len, key_offset = 0;
        if (attention.cu_seqlens_k) {
            key_offset = attention.cu_seqlens_k[batch];
            key_len = attention.cu_seqlens_k[batch + 1] - key_offset;
        }
        // From the end: a sequence's incomplete tile is its first one, which under a causal mask sees the fewest keys.
        const int end_query = (query_len + MMA_ROWS - 1) / MMA_ROWS * MMA_ROWS - tile_row * Traits::BLOCK_M;
        const int first_query = end_query - Traits::BLOCK_M;
        tile.batch = batch;
        tile.head = head;
        tile.first_query = first_query;
        tile.query_len = query_len;
        tile.key_len = key_len;
        tile.query_offset = query_offset;
        tile.key_offset = key_offset;

        const Mask mask(attention, query_len, key_len);
        tile.first_block = mask.first_key(max(first_query, 0)) / Traits::BLOCK_N;
        tile.end_block = (mask.end_key(first_query, Traits::BLOCK_M) + Traits::BLOCK_N - 1) / Traits::BLOCK_N;
    }

  private:
    const WgmmaParams& params;
    int number;
    int next;
};

} // namespace warptile
