// One image of the gradients of keys and values on wgmma; the build names the element type, the tiling and the entry.
#include "backward/wgmma_keys.cuh"

using Plain =
    warptile::KeyGradientTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;
#ifdef WARPTILE_VARIANT_DROPOUT
using Params = warptile::BackwardTmaDropout;
using Instance = warptile::KeyDropping<Plain>;
#define PLAIN params.tma
#else
using Params = warptile::BackwardTma;
using Instance = Plain;
#define PLAIN params
#endif

WARPTILE_IMAGE(warptile::gradients_of_keys<Instance>(PLAIN))
