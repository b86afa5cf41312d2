// One image of the wgmma family. The build passes the element type, the tiling, the entry's name and, for a variant, its name.
#include "base/record.cuh"
#include "forward/wgmma.cuh"

#ifndef WARPTILE_VARIANT
#define WARPTILE_VARIANT PLAIN
#endif

// Values have the head size of keys unless the row names another one.
#ifndef WARPTILE_VALUE_DIM
#define WARPTILE_VALUE_DIM WARPTILE_HEAD_DIM
#endif

using Instance = warptile::WgmmaTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_VALUE_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N,
                                       WARPTILE_WARPS, WARPTILE_STAGES, warptile::Variant::WARPTILE_VARIANT>;
using Params = warptile::ParamsOf<warptile::Variant::WARPTILE_VARIANT>::Type;

WARPTILE_IMAGE(warptile::wgmma_attention<Instance>(warptile::plain_block(params)))
