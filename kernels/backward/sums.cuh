// dQ of the sums that the one-pass kernels have added up: times the scale, rounded. A CTA has a tile of the pre-pass. Blocks of queries that no tile of
// keys visits have no sum, and get 0.
#pragma once

#include "backward/row_tile.cuh"
#include "backward/span.cuh"
#include "backward/write.cuh"
#include "base/record.cuh"
#include "ops/traits.cuh"

namespace warptile {

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_> struct SumTraits : RowTraits<Element_, WARPS_, ROLE_QUERY_SUMS> {
    static constexpr int HEAD_DIM = HEAD_DIM_, BLOCK_M = BLOCK_M_, BLOCK_N = BLOCK_N_, STAGES = 1;
    static constexpr unsigned FEATURES = GRADIENT_FEATURES;
    static_assert(BLOCK_M == PREPASS_ROWS && WARPS_ == 4, "a warpgroup's sums of a block, as wgmma has them");
};

template <class Traits> __device__ inline void write_sums(const Backward& params)
{
    using Element = typename Traits::Element;
    begin_in_order();
    const RowTile tile = row_tile(params.sequences, params.heads, params.rows.query_tiles, blockIdx.x);
    // Of a tile that the sequence does not have. Garbage offsets may give any number.
    if (tile.first < 0 || tile.first >= tile.q.len) return;
    const Extent k = keys_of(params.sequences, tile.batch);
    const Visits<Traits::BLOCK_M, Traits::BLOCK_N> visits = {Mask(params.scoring, tile.q.len, k.len)};
    const bool has_sum = visits.is_visited(tile.first / Traits::BLOCK_M);
    const int row = tile.first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const float4* const sums = reinterpret_cast<const float4*>(params.rows.dq_sum) + (long long)blockIdx.x * (PREPASS_ROWS * Traits::HEAD_DIM / 4) + threadIdx.x;
    const float scale = params.scoring.scale;
    const bool chunks = writes_chunks<Element>(params.dq, params.gradients, params.head_dim);
#pragma unroll
    for (int i = 0; i < Traits::HEAD_DIM / 8; i += 4) {
        if (8 * i >= params.head_dim) break;
        float2 pairs[2][4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 sum = has_sum ? sums[(i + j) * 128] : float4{0, 0, 0, 0};
            pairs[0][j] = {sum.x * scale, sum.y * scale};
            pairs[1][j] = {sum.z * scale, sum.w * scale};
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const long long at = tile.entry * params.dq.batch + (tile.q.first + row + 8 * half) * params.dq.row + tile.head * params.dq.head;
            write_groups<Element, true>(params.dq, params.gradients, chunks, at, row + 8 * half < tile.q.len, 8 * i, params.head_dim, pairs[half]);
        }
    }
}

} // namespace warptile
