// Numbers of query rows that the backward pass begins with: the sum over a row of the output times its gradient, less the gradient of the
// row's lse, and the lse to base 2.
//
// A CTA has 64 rows of a head. Some lanes share a row, 16 bytes at a time, and add up their sums in fp32 in a fixed order, so the bits do
// not depend on the launch. A row that saw no key has a lse of -inf: its probabilities are to become 0, so it gets +inf. So does a row whose
// lse has no digits behind the point, as those of rows of the lowest bias have, and so do rows past a sequence's end, which are not read,
// whatever they hold.
#pragma once

#include "backward/row_tile.cuh"
#include "base/math.cuh"
#include "memory/chunk.cuh"
#include "ops/traits.cuh"

namespace warptile {

constexpr float LARGEST_LSE = 8388608; // `Prepass::LARGEST_LSE`

template <class Traits> __device__ inline void prepare_rows(const Prepass& params)
{
    using Element = typename Traits::Element;
    static_assert(PREPASS_ROWS % 32 == 0, "a warp has rows or has none");
    begin_in_order();
    const RowTile place = row_tile(params.sequences, params.heads, params.query_tiles, blockIdx.x);
    if (threadIdx.x == 0 && params.turns) params.turns[blockIdx.x] = 0;
    const int lanes = params.lanes, lane = threadIdx.x % lanes;
    const bool aligned = in_chunks<Element>(params.out) && in_chunks<Element>(params.d_out);

    // As often for all lanes of a warp, whatever lengths on the device they have read.
    for (int number = threadIdx.x / lanes; number < PREPASS_ROWS; number += Traits::THREADS / lanes) {
        const int row = place.first + number;
        const bool exists = row >= 0 && row < place.q.len;
        float sum = 0;
        if (exists) {
            const Element* out = row_of<const Element>(params.out, place.entry, place.q.first + row, place.head);
            const Element* d_out = row_of<const Element>(params.d_out, place.entry, place.q.first + row, place.head);
            for (int column = lane * CHUNK<Element>; column < params.head_dim; column += lanes * CHUNK<Element>) {
                const int count = min(CHUNK<Element>, params.head_dim - column);
                const bool whole = aligned && count == CHUNK<Element>;
                const Chunk<Element> x = load_chunk(out + column, whole, count), y = load_chunk(d_out + column, whole, count);
#pragma unroll
                for (int i = 0; i < CHUNK<Element>; ++i) sum = fmaf(widen(x.elements[i]), widen(y.elements[i]), sum);
            }
        }
        for (int apart = lanes / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffff, sum, apart);
        if (lane != 0) continue;
        float scaled = positive_infinity();
        if (exists) {
            const long long of_row = place.entry * params.lse_batch + place.head * params.lse_head + place.q.first + row;
            const float lse = params.lse[of_row];
            if (!(fabsf(lse) > LARGEST_LSE)) { // also NaN
                scaled = lse * LOG2_E;
                if (params.d_lse) sum -= params.d_lse[of_row];
            }
        }
        const long long at = (long long)blockIdx.x * PREPASS_ROWS + number;
        params.delta[at] = sum;
        params.scaled_lse[at] = scaled;
    }
}

} // namespace warptile
