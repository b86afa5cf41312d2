// One image of the gradient of queries on wgmma; the build names the element type, the tiling, the entry and, for a variant, its name.
#include "backward/wgmma_queries.cuh"

#ifndef WARPTILE_VARIANT
#define WARPTILE_VARIANT PLAIN
#endif

using Plain =
    warptile::QueryGradientTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;
using Chosen = warptile::GradientImage<Plain, warptile::QueryDroppingOf, warptile::GradientVariant::WARPTILE_VARIANT>;
using Instance = Chosen::Traits;
using Params = Chosen::Params;

WARPTILE_IMAGE(warptile::gradients_of_queries<Instance>(warptile::plain_block(params)))
