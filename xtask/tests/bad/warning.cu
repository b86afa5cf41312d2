// An ordinary compiler warning.
#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    int unused;
    params.lse[threadIdx.x] = params.scoring.scale;
}
