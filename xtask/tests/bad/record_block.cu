// A record that names a block as the host does not declare it.
#include "sample.cuh"

__device__ constexpr warptile::RecordWords of_another_block()
{
    warptile::RecordWords record = warptile::image_record<Instance, Params>();
    record.abi_hash ^= 1;
    return record;
}

extern "C" __device__ const warptile::RecordWords warptile_record = of_another_block();

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    params.lse[threadIdx.x] = params.scoring.scale;
}
