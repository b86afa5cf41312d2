// CTAs that stay, of a kernel that does not wait for the launch before.
#include "sample.cuh"

struct Staying : Instance {
    static constexpr unsigned SCHEDULE = warptile::SCHEDULE_PERSISTENT;
};

SAMPLE_RECORD(Staying);

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    params.lse[threadIdx.x] = params.scoring.scale;
}
