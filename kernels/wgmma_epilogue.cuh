// Writes a finished tile: normalized output and log-sum-exp, straight from registers.
#pragma once

#include "wgmma_softmax.cuh"

namespace warptile {

// Transposes four words across the four lanes of a quad: word `c` of lane `l` goes to word `l` of lane `c`.
__device__ inline void transpose_in_quad(unsigned (&words)[4])
{
    const unsigned lane = thread_index() % 4;
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2) {
        const bool upper = lane & distance;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & distance)
                continue;
            const unsigned sent = upper ? words[i] : words[i + distance];
            const unsigned received = __shfl_xor_sync(0xffffffff, sent, distance);
            if (upper)
                words[i] = received;
            else
                words[i + distance] = received;
        }
    }
}

// Where one thread writes: rows `first_row` and 8 below it of a head of a sequence.
template <class Traits> struct OutputRows {
    using Element = typename Traits::Element;

    Element* pointer;           // of the first row
    float* lse = nullptr;       // of the first row; null if not wanted
    int rows;                   // from the first row to the end of the sequence

    __device__ OutputRows(const AttentionParams& params, const Tile& tile, int warpgroup)
    {
        const int first_row = tile.first_query + warpgroup * MMA_ROWS + lane_row();
        pointer = static_cast<Element*>(params.out) + tile.batch * params.out_stride.batch +
                  tile.head * params.out_stride.head + (long long)(tile.query_offset + first_row) * params.out_stride.row;
        rows = tile.query_len - first_row;
        if (params.lse)
            lse = params.lse + tile.batch * params.lse_batch_stride + tile.head * params.lse_head_stride +
                  tile.query_offset + first_row;
    }

    __device__ bool has(int row) const { return 8 * row < rows; }

    // A lane holds two neighbouring columns of every 8; after the exchange it holds all 8 of every fourth group, which is
    // one 16-byte store, and a quad stores 64 bytes in a row.
    __device__ void write(const AttentionParams& params, const float (&output)[Traits::HEAD_DIM / 2],
                          const float (&inverse)[ROWS_PER_THREAD]) const
    {
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
#pragma unroll
            for (int group = 0; group < Traits::HEAD_DIM / 32; group++) {
                unsigned words[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int at = (4 * group + i) * 4 + 2 * row;
                    words[i] = pack<Element>(output[at] * inverse[row], output[at + 1] * inverse[row]);
                }
                transpose_in_quad(words);
                const int column = group * 32 + thread_index() % 4 * 8;
                if (has(row) && column < params.head_dim)
                    *reinterpret_cast<uint4*>(pointer + 8 * row * params.out_stride.row + column) = {
                        words[0], words[1], words[2], words[3]};
            }
    }

    // Log-sum-exp of both rows, written by the first lane of each quad.
    __device__ void write_lse(const float (&values)[ROWS_PER_THREAD]) const
    {
        if (lse && thread_index() % 4 == 0)
#pragma unroll
            for (int row = 0; row < ROWS_PER_THREAD; row++)
                if (has(row))
                    lse[8 * row] = values[row];
    }

    __device__ void write_zeros(const AttentionParams& params) const
    {
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            for (int column = thread_index() % 4 * 8; has(row) && column < params.head_dim; column += 32)
                *reinterpret_cast<uint4*>(pointer + 8 * row * params.out_stride.row + column) = {0, 0, 0, 0};
    }
};

} // namespace warptile
