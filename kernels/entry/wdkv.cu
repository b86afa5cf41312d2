// One image of the gradients of keys and values on wgmma; the build names the element type, the tiling, the entry and, for a variant, its name.
#include "backward/wgmma_keys.cuh"

#ifndef WARPTILE_VARIANT
#define WARPTILE_VARIANT PLAIN
#endif

using Plain =
    warptile::KeyGradientTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;
using Chosen = warptile::GradientImage<Plain, warptile::KeyDroppingOf, warptile::GradientVariant::WARPTILE_VARIANT>;
using Instance = Chosen::Traits;
using Params = Chosen::Params;

WARPTILE_IMAGE(warptile::gradients_of_keys<Instance>(warptile::plain_block(params)))
