// One image of all gradients in one pass; the build names the element type, the tiling and the entry.
#include "backward/wgmma.cuh"

using Plain =
    warptile::OnePassTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;
#ifdef WARPTILE_VARIANT_DROPOUT
using Params = warptile::BackwardTmaDropout;
using Instance = warptile::OnePassDropping<Plain>;
#else
using Params = warptile::BackwardTma;
#if defined(WARPTILE_VARIANT_SOFTCAP)
using Instance = warptile::OnePassWith<Plain, warptile::FEATURE_SOFTCAP>;
#elif defined(WARPTILE_VARIANT_ALIBI)
using Instance = warptile::OnePassWith<Plain, warptile::FEATURE_ALIBI>;
#else
using Instance = Plain;
#endif
#endif

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
#ifdef WARPTILE_VARIANT_DROPOUT
    warptile::all_gradients<Instance>(params.tma);
#else
    warptile::all_gradients<Instance>(params);
#endif
}
