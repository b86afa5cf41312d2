// The entry has a name of its own.
#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void attention(const __grid_constant__ Params params)
{
    params.lse[threadIdx.x] = params.scoring.scale;
}
