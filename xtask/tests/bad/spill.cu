// More live values than the launch bounds leave registers for.
#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void __launch_bounds__(1024, 2) WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    float values[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) values[i] = params.lse[i * params.heads];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 96; ++i) params.lse[i * params.heads + 1] = values[i] * values[i * 7 % 96];
}
