// Dynamic shared memory that would fit alone, plus static shared memory.
#include "sample.cuh"

struct Large : Instance {
    static constexpr int SHARED_BYTES = 98 * 1024;
};

SAMPLE_RECORD(Large);

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    extern __shared__ float shared[];
    __shared__ float more[512];
    shared[threadIdx.x] = params.scoring.scale;
    more[threadIdx.x] = params.scoring.softcap;
    __syncthreads();
    params.lse[threadIdx.x] = shared[threadIdx.x ^ 1] + more[threadIdx.x ^ 1];
}
