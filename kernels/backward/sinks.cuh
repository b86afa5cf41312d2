// The gradient of sinks: for each head the sum of -exp(sink - lse) * delta over all query rows. Each thread adds its rows in their order,
// and the threads' sums are added in a fixed order, so the bits do not depend on the launch. Numbers that stand for no row add 0.
#pragma once

#include "base/abi_backward.cuh"
#include "base/math.cuh"
#include "ops/traits.cuh"

namespace warptile {

template <class Element, int WARPS> struct SinkTraits : RowTraits<Element, WARPS, ROLE_SINK_GRADIENTS> {
    static constexpr int SHARED_BYTES = WARPS * (int)sizeof(float);
};

template <class Traits> __device__ inline void sum_sinks(const SinkGradient& params)
{
    extern __shared__ __align__(128) unsigned char shared[];
    float* const sums = reinterpret_cast<float*>(shared); // of warps
    begin_in_order();
    const int head = blockIdx.x;
    const long long numbers = (long long)params.rows.query_tiles * PREPASS_ROWS;
    const float sink = params.sinks[head] * LOG2_E;
    float sum = 0;
    for (int entry = 0; entry < params.entries; ++entry) {
        const long long first = ((long long)entry * params.heads + head) * numbers;
        for (long long i = threadIdx.x; i < numbers; i += Traits::THREADS)
            sum -= exp2_approximate(sink - params.rows.scaled_lse[first + i]) * params.rows.delta[first + i];
    }
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffff, sum, apart);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    sum = params.gradients & GRADIENTS_ADD ? params.d_sinks[head] : 0;
    for (int warp = 0; warp < Traits::WARPS; ++warp) sum += sums[warp];
    params.d_sinks[head] = sum;
}

} // namespace warptile
