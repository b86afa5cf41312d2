// Which tiles a CTA computes. CTAs stay for the whole launch. With a tile counter each CTA draws its next number when it is free,
// which balances causal work; without one, CTA c computes tiles c, c + grid, c + 2 * grid, ...
#pragma once

#include "forward/wgmma_layout.cuh"
#include "rule/mask.cuh"
#include "work/order.cuh"

namespace warptile {

template <class Traits> class TileOrder {
  public:
    __device__ explicit TileOrder(const Forward& params) : params(params), number(blockIdx.x) {}

    __device__ bool done() const { return number >= (unsigned)params.work.tiles; }

    // Draws the next number; its memory access overlaps with what follows until `advance`.
    __device__ void draw()
    {
        unsigned* const counter = params.work.counter;
        // Each number's CTA draws once, whether the tile exists or not, so a launch makes exactly `tiles` draws; atomicInc
        // wraps to 0 after the last of them and leaves the counter ready for the next launch.
        next = gridDim.x + (counter ? atomicInc(counter, params.work.tiles - 1) : number);
    }
    __device__ void advance() { number = next; }

    // Writes the present tile to `tile`; false if the sequence does not have it.
    __device__ bool describe(Tile& tile) const
    {
        const TilePlace place = tile_place<Traits::BLOCK_M>(params, number);
        const int query_len = place.q.len, key_len = place.k.len;
        const int tiles = (query_len + Traits::BLOCK_M - 1) / Traits::BLOCK_M;
        // From the end: a sequence's incomplete tile is its first one, which under a causal mask sees the fewest keys.
        const int end_query =
            (query_len + MMA_ROWS - 1) / MMA_ROWS * MMA_ROWS - (tiles - 1 - place.tile) * Traits::BLOCK_M;
        const int first_query = end_query - Traits::BLOCK_M;
        tile.batch = place.batch;
        tile.head = place.head;
        tile.first_query = first_query;
        tile.query_len = query_len;
        tile.key_len = key_len;
        tile.query_offset = place.q.first;
        tile.key_offset = place.k.first;

        const Mask mask(params.scoring, query_len, key_len);
        tile.first_block = mask.first_key(max(first_query, 0)) / Traits::BLOCK_N;
        tile.end_block = (mask.end_key(first_query, Traits::BLOCK_M) + Traits::BLOCK_N - 1) / Traits::BLOCK_N;
        return place.template exists<Traits::BLOCK_M>();
    }

  private:
    const Forward& params;
    unsigned number;
    unsigned next;
};

} // namespace warptile
