// One image of the gradient of a bias; the build names the element type, the tiling and the entry.
#include "backward/bias.cuh"

using Params = warptile::BiasGradient;
using Instance = warptile::BiasTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    warptile::bias_gradient<Instance>(params);
}
