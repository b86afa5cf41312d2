// A second parameter: the block the host fills is not what the entry reads.
#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ Params params, int extra)
{
    params.lse[threadIdx.x] = params.scoring.scale * extra;
}
