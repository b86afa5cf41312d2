// One image of the wmma family; the build names the element type, the tiling and the entry.
#include "forward/wmma.cuh"

using Params = warptile::Forward;
using Instance = warptile::WmmaTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N,
                                        WARPTILE_WARPS, WARPTILE_STAGES>;

WARPTILE_IMAGE(warptile::wmma_attention<Instance>(params))
