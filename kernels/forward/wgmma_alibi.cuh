// ALiBi alone, at a plain image's speed: in all blocks but those across a row's diagonal, distances are linear in the key. So a score takes
// one multiplication and addition more, and what a row's scores have in common joins its offset.
#pragma once

#include "forward/wgmma_softmax.cuh"

namespace warptile {

// Images without ALiBi of its own have none.
template <class Traits, bool = Traits::has_alibi()> class Distances {};

template <class Traits> class Distances<Traits, true> {
  public:
    // Begins a tile. `first_row`: the warpgroup's. `top` and `floor`: its plain blocks lie below the one, and not below the other. Those
    // after the diagonals come first, then `enter` has those before.
    __device__ void begin(const Scoring& scoring, const Tile& tile, int first_row, int& top, int& floor)
    {
        const bool has_slope = scoring.slopes && !tile.is_end();
        slope = has_slope ? scoring.slopes[tile.batch * scoring.slopes_batch + tile.head] * -LOG2_E : 0;
        diagonal = uniform(first_row + tile.key_len - tile.query_len);
        top_before = uniform(min(top, (diagonal + 1) >= Traits::BLOCK_N ? (diagonal + 1) / Traits::BLOCK_N : 0));
        floor_before = floor;
        // Towards the diagonal scores rise with each block. Where they rise by much, weights against the maxima of before would be too
        // large.
        constexpr float MOST = 0.5f;
        const int floor_after = (max(diagonal, 0) + MMA_ROWS - 1 + Traits::BLOCK_N - 1) / Traits::BLOCK_N;
        floor = uniform(fabsf(slope) * Traits::BLOCK_N < MOST ? max(floor, floor_after) : top);
    }
    // Once the next block is not after `block`.
    __device__ void enter(int block, int& top, int& floor) const
    {
        if (block > top_before) return;
        top = top_before;
        floor = floor_before;
    }

    // Of a plain block: what the rows' offsets become, and the difference from a key to the next, in exponents of 2.
    __device__ float linear(int block, const float (&offsets)[ROWS_PER_THREAD], float (&added)[ROWS_PER_THREAD]) const
    {
        const int distance = diagonal - block * Traits::BLOCK_N;
        const float per_key = distance > 0 ? -slope : slope;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) added[row] = fmaf((float)(own(distance) + 8 * row), -per_key, offsets[row]);
        return per_key;
    }

    // Adds distances to scores of a block from its `first_key` on. `unit`: a score's, of dot products.
    template <int COUNT> __device__ void add(float (&scores)[COUNT], int first_key, float unit) const
    {
        const float of_key = slope * (LN_2 * unit);
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            const float of_row = (float)(own(diagonal - first_key) + 8 * row);
#pragma unroll
            for (int i = 0; i < COUNT / 4; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float& score = scores[4 * i + 2 * row + j];
                    score = fmaf(fabsf(of_row - (float)(8 * i + j)), of_key, score);
                }
        }
    }

  private:
    // Of the thread's first row and first key.
    __device__ static int own(int distance) { return distance + lane_row() - lane_column(); }

    float slope;  // what a key's distance adds to exponents of 2
    int diagonal; // the key at distance 0 of the first row, wherever the mask's diagonal is
    int top_before, floor_before;
};

} // namespace warptile
