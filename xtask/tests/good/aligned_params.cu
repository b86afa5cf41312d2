// A block aligned as tensor maps are.
#include "sample.cuh"

extern "C" __device__ const warptile::RecordWords warptile_record =
    warptile::image_record<Instance, warptile::ForwardTma>();

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ warptile::ForwardTma params)
{
    params.forward.lse[threadIdx.x] = params.forward.scoring.scale;
}
