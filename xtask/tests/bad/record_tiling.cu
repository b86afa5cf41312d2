// A record whose tiling differs from the requested one.
#include "sample.cuh"

struct Other : Instance {
    static constexpr int BLOCK_N = 2 * Instance::BLOCK_N;
};

SAMPLE_RECORD(Other);

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    params.lse[threadIdx.x] = params.scoring.scale;
}
