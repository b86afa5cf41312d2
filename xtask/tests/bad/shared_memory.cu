// 100 KB of dynamic shared memory: too much for sm_86, sm_89 and sm_120, not for the others.
#include "sample.cuh"

struct Large : Instance {
    static constexpr int SHARED_BYTES = 100 * 1024;
};

SAMPLE_RECORD(Large);

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    extern __shared__ float shared[];
    shared[threadIdx.x] = params.scoring.scale;
    __syncthreads();
    params.lse[threadIdx.x] = shared[threadIdx.x ^ 1];
}
