// One image of the gradient of a bias; the build names the element type, the tiling and the entry.
#include "backward/bias.cuh"

using Params = warptile::BiasGradient;
using Instance = warptile::BiasTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;

WARPTILE_IMAGE(warptile::bias_gradient<Instance>(params))
