// Which blocks of queries a tile of keys visits in the one-pass backward kernels, and which tile of keys adds to a block of dQ first. A
// tile visits a block if the mask lets a query of the block see a key of the tile, as far as first and last rows tell; so the tiles that
// visit a block are neighbours, and each knows its turn.
#pragma once

#include "rule/mask.cuh"

namespace warptile {

// Blocks [first, end).
struct BlockSpan {
    int first, end;
    __device__ int count() const { return max(end - first, 0); }
};

template <int BLOCK_M, int BLOCK_N> struct Visits {
    const Mask mask;

    __device__ BlockSpan blocks_of(int first_key) const
    {
        const int last_key = min(first_key + BLOCK_N, mask.key_len) - 1;
        const int first = first_key - mask.shift - mask.right, last = min(last_key - mask.shift + mask.left, mask.query_len - 1);
        if (last_key < first_key || first >= mask.query_len || last < 0) return {0, 0};
        return {max(first, 0) / BLOCK_M, last / BLOCK_M + 1};
    }
    // Only of a block that some tile visits does it mean anything.
    __device__ int first_tile(int block) const { return max(block * BLOCK_M + mask.shift - mask.left, 0) / BLOCK_N; }
    __device__ bool is_visited(int block) const
    {
        const int first_key = first_tile(block) * BLOCK_N;
        if (first_key >= mask.key_len) return false;
        const BlockSpan span = blocks_of(first_key);
        return block >= span.first && block < span.end;
    }
};

} // namespace warptile
