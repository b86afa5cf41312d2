// A parameter block of a family's own, aligned as tensor maps are.
#include "sample.cuh"

struct alignas(64) AlignedParams {
    unsigned char tensor_map[128];
    warptile::AttentionParams attention;
};

extern "C" __device__ const warptile::ImageRecord warptile_record = {warptile::tiling_record<Instance, AlignedParams>(),
                                                                     WARPTILE_PARAMS_RECORD(AlignedParams, attention.)};

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ AlignedParams params)
{
    params.attention.lse[threadIdx.x] = params.attention.scale;
}
