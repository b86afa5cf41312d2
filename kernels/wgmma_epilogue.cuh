// Writes a finished tile: normalized output and log-sum-exp, straight from registers.
#pragma once

#include "wgmma_softmax.cuh"

namespace warptile {

// Transposes four words across the four lanes of a quad: word `c` of lane `l` goes to word `l` of lane `c`.
__device__ inline void transpose_in_quad(unsigned (&words)[4])
{
    const unsigned lane = threadIdx.x % 4;
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

template <class Traits> class Epilogue {
  public:
    using Element = typename Traits::Element;

    __device__ Epilogue(const AttentionParams& params, const Tile& tile, int warpgroup)
        : params(params), tile(tile), first_row(tile.first_query + warpgroup * MMA_ROWS + lane_row())
    {
    }

    __device__ void write_output(const float (&output)[Traits::HEAD_DIM / 2],
                                 const float (&inverse)[ROWS_PER_THREAD]) const
    {
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            write_row(output, row, inverse[row]);
    }

    __device__ void write_lse(const float (&lse)[ROWS_PER_THREAD]) const
    {
        if (!params.lse || threadIdx.x % 4 != 0)
            return;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            if (has_row(row))
                params.lse[tile.batch * params.lse_batch_stride + tile.head * params.lse_head_stride +
                           tile.query_offset + first_row + 8 * row] = lse[row];
    }

    // Rows that see no key at all.
    __device__ void write_empty() const
    {
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            if (has_row(row))
                for (int column = threadIdx.x % 4 * 8; column < params.head_dim; column += 32)
                    *reinterpret_cast<uint4*>(row_pointer(row) + column) = {0, 0, 0, 0};
        write_lse({negative_infinity(), negative_infinity()});
    }

  private:
    __device__ bool has_row(int row) const { return first_row + 8 * row < tile.query_len; }

    __device__ Element* row_pointer(int row) const
    {
        const long long position = tile.query_offset + first_row + 8 * row;
        return static_cast<Element*>(params.out) + tile.batch * params.out_stride.batch +
               tile.head * params.out_stride.head + position * params.out_stride.row;
    }

    // A lane holds two neighbouring columns of every 8; after the exchange it holds all 8 of every fourth group, which is
    // one 16-byte store, and a quad stores 64 bytes in a row.
    __device__ void write_row(const float (&output)[Traits::HEAD_DIM / 2], int row, float inverse) const
    {
        Element* pointer = row_pointer(row);
        const int lane_column = threadIdx.x % 4 * 8;
#pragma unroll
        for (int group = 0; group < Traits::HEAD_DIM / 32; group++) {
            unsigned words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = (4 * group + i) * 4 + 2 * row;
                words[i] = pack<Element>(output[at] * inverse, output[at + 1] * inverse);
            }
            transpose_in_quad(words);
            const int column = group * 32 + lane_column;
            if (has_row(row) && column < params.head_dim)
                *reinterpret_cast<uint4*>(pointer + column) = {words[0], words[1], words[2], words[3]};
        }
    }

    const AttentionParams& params;
    const Tile& tile;
    int first_row;
};

} // namespace warptile
