// A kernel that passes every gate.
#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void __launch_bounds__(32 * Instance::WARPS) WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    extern __shared__ float shared[];
    shared[threadIdx.x] = params.scoring.scale * threadIdx.x;
    __syncthreads();
    params.lse[threadIdx.x] = shared[threadIdx.x ^ 1];
}
