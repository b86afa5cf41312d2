// One image of the gradients of keys and values on wgmma; the build names the element type, the tiling and the entry.
#include "backward/wgmma_keys.cuh"

using Plain =
    warptile::KeyGradientTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;
#ifdef WARPTILE_VARIANT_DROPOUT
using Params = warptile::BackwardTmaDropout;
using Instance = warptile::KeyDropping<Plain>;
#else
using Params = warptile::BackwardTma;
using Instance = Plain;
#endif

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
#ifdef WARPTILE_VARIANT_DROPOUT
    warptile::gradients_of_keys<Instance>(params.tma);
#else
    warptile::gradients_of_keys<Instance>(params);
#endif
}
