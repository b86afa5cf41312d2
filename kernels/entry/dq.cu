// One image of the gradients of queries; the build names the element type, the tiling and the entry.
#include "backward/gradients.cuh"

#ifdef WARPTILE_VARIANT_DROPOUT
using Params = warptile::BackwardDropout;
#else
using Params = warptile::Backward;
#endif
using Plain = warptile::GradientTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS,
                                          WARPTILE_STAGES, false>::Type;
#ifdef WARPTILE_VARIANT_DROPOUT
using Instance = warptile::Dropping<Plain>;
#else
using Instance = Plain;
#endif

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
#ifdef WARPTILE_VARIANT_DROPOUT
    warptile::gradients<Instance>(params.backward);
#else
    warptile::gradients<Instance>(params);
#endif
}
