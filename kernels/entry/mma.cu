// One image of the mma family; the build names the element type, the tiling, the entry and, for a variant, its name.
#ifdef WARPTILE_VARIANT_DROPOUT_UNALIGNED
#define WARPTILE_VARIANT_DROPOUT
#include "forward/mma_tile_dropout_unaligned.cuh"
#endif
#ifdef WARPTILE_VARIANT_BLOCKS
#include "forward/mma_listed.cuh"
#endif
#include "forward/mma_tile.cuh"

#if defined(WARPTILE_VARIANT_BLOCKS)
#define WARPTILE_TRAITS ListedTileTraits
#define ATTENTION listed_tile_attention<Instance>(params)
using Params = warptile::ForwardBlocks;
#elif defined(WARPTILE_VARIANT_DROPOUT)
#ifdef WARPTILE_VARIANT_DROPOUT_UNALIGNED
#define WARPTILE_TRAITS DroppingUnalignedTileTraits
#else
#define WARPTILE_TRAITS DroppingTileTraits
#endif
#define ATTENTION tile_attention<Instance>(params.forward)
using Params = warptile::ForwardDropout;
#else
#if defined(WARPTILE_VARIANT_TENSORS)
#define WARPTILE_TRAITS TensorTileTraits
#elif defined(WARPTILE_VARIANT_UNALIGNED)
#define WARPTILE_TRAITS UnalignedTileTraits
#else
#define WARPTILE_TRAITS TileTraits
#endif
#define ATTENTION tile_attention<Instance>(params)
using Params = warptile::Forward;
#endif

using Instance =
    warptile::WARPTILE_TRAITS<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;

WARPTILE_IMAGE(warptile::ATTENTION)
