// One image of the gradient of queries on wgmma; the build names the element type, the tiling and the entry.
#include "backward/wgmma_queries.cuh"

using Plain =
    warptile::QueryGradientTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;
#ifdef WARPTILE_VARIANT_DROPOUT
using Params = warptile::BackwardTmaDropout;
using Instance = warptile::QueryDropping<Plain>;
#define PLAIN params.tma
#else
using Params = warptile::BackwardTma;
using Instance = Plain;
#define PLAIN params
#endif

WARPTILE_IMAGE(warptile::gradients_of_queries<Instance>(PLAIN))
