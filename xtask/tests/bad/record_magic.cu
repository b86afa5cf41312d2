// A record of the right size that is something else.
#include "sample.cuh"

extern "C" __device__ const warptile::RecordWords warptile_record = {1, 2, 3};

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    params.lse[threadIdx.x] = params.scoring.scale;
}
