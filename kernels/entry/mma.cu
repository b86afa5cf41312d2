// One image of the mma family; the build names the element type, the tiling, the entry and, for a variant, its name.
#ifdef WARPTILE_VARIANT_DROPOUT_UNALIGNED
#define WARPTILE_VARIANT_DROPOUT
#include "forward/mma_tile_dropout_unaligned.cuh"
#endif
#include "forward/mma_tile.cuh"

#if defined(WARPTILE_VARIANT_DROPOUT_UNALIGNED)
#define WARPTILE_TRAITS DroppingUnalignedTileTraits
using Params = warptile::ForwardDropout;
#elif defined(WARPTILE_VARIANT_DROPOUT)
#define WARPTILE_TRAITS DroppingTileTraits
using Params = warptile::ForwardDropout;
#else
#if defined(WARPTILE_VARIANT_TENSORS)
#define WARPTILE_TRAITS TensorTileTraits
#elif defined(WARPTILE_VARIANT_UNALIGNED)
#define WARPTILE_TRAITS UnalignedTileTraits
#else
#define WARPTILE_TRAITS TileTraits
#endif
using Params = warptile::Forward;
#endif

using Instance =
    warptile::WARPTILE_TRAITS<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
#ifdef WARPTILE_VARIANT_DROPOUT
    warptile::tile_attention<Instance>(params.forward);
#else
    warptile::tile_attention<Instance>(params);
#endif
}
