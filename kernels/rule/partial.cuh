// The result over some keys of a row, and how results over different keys are added up: in a fixed order, so that the sum's bits do
// not depend on who computed what. A result over no key changes no bit.
#pragma once

#include "rule/score.cuh"

namespace warptile {

// The maximum of some scores of a row, in exponents of 2, and the sum of their weights against it.
struct RowSum {
    float max; // -inf where no score is a number
    float sum;

    // Otherwise the largest score weighs 1, and NaN stays NaN.
    __device__ bool saw_no_key() const { return sum == 0; }
};

// Factor that rescales a row's weights from the running maximum `from` to the larger maximum `to`.
__device__ inline float rescale(float from, float to) { return exp2_approximate(__fadd_rn(from, -finite_max(to))); }

// Four neighbouring columns of a row, not yet divided by the sum.
struct Partial {
    RowSum row = {negative_infinity(), 0};
    float values[4] = {0, 0, 0, 0};

    // Adds COUNT more partial results. Where `sums` says that a row has seen no key, its `columns` are not initialized and are ignored.
    template <int COUNT> __device__ void add(const RowSum (&sums)[COUNT], const float4 (&columns)[COUNT])
    {
        float largest = row.max;
#pragma unroll
        for (int i = 0; i < COUNT; i++) largest = fmaxf(largest, sums[i].max);
        const float keep = rescale(row.max, largest);
        row = {largest, row.sum * keep};
#pragma unroll
        for (int i = 0; i < 4; i++) values[i] *= keep;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (sums[i].saw_no_key()) continue;
            const float take = rescale(sums[i].max, largest);
            row.sum += sums[i].sum * take;
            values[0] += columns[i].x * take;
            values[1] += columns[i].y * take;
            values[2] += columns[i].z * take;
            values[3] += columns[i].w * take;
        }
    }
};

} // namespace warptile
