// The result over some keys of a row, and how results over different keys are added up: in a fixed order, so that the sum's bits do
// not depend on who computed what. A result over no key changes no bit.
#pragma once

#include "rule/score.cuh"

namespace warptile {

// The maximum of some scores of a row, in exponents of 2, and the sum of their weights against it.
struct RowSum {
    float max; // -inf: no key was seen
    float sum;
};

// What a row's weights are multiplied by when they count against the larger maximum `to` instead of `from`.
__device__ inline float rescale(float from, float to) { return exp2_approximate(__fadd_rn(from, -finite_max(to))); }

// Four neighbouring columns of a row, not yet divided by the sum.
struct Partial {
    RowSum row = {negative_infinity(), 0};
    float values[4] = {0, 0, 0, 0};

    // `more` is whatever lies there if its row has seen no key.
    __device__ void add(RowSum other, float4 more)
    {
        if (other.max == negative_infinity()) return;
        const float largest = fmaxf(row.max, other.max);
        const float keep = rescale(row.max, largest), take = rescale(other.max, largest);
        row = {largest, row.sum * keep + other.sum * take};
        values[0] = values[0] * keep + more.x * take;
        values[1] = values[1] * keep + more.y * take;
        values[2] = values[2] * keep + more.z * take;
        values[3] = values[3] * keep + more.w * take;
    }
};

} // namespace warptile
