// One image of the decode family; the build names the element type, the tiling and the entry.
#include "forward/mma.cuh"

#if defined(WARPTILE_VARIANT_CLUSTER)
#define SCHEDULE warptile::ClusterTile
#else
#define SCHEDULE warptile::Share
#endif

using Params = warptile::Forward;
using Instance = warptile::MmaTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS,
                                     WARPTILE_STAGES, SCHEDULE>;

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    warptile::mma_attention<Instance>(params);
}
