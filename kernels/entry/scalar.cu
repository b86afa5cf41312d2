// One image of the `scalar` family; `cargo xtask build-kernels` names the element type, the tiling and the entry.
#include "forward/scalar.cuh"

using Plain = warptile::ScalarTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;
#ifdef WARPTILE_VARIANT_DROPOUT
using Params = warptile::ForwardDropout;
using Instance = warptile::Dropping<Plain>;
#else
using Params = warptile::Forward;
using Instance = Plain;
#endif

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
#ifdef WARPTILE_VARIANT_DROPOUT
    warptile::scalar_attention<Instance>(params.forward);
#else
    warptile::scalar_attention<Instance>(params);
#endif
}
