// One image of dQ of its sums; the build names the element type, the tiling and the entry.
#include "backward/sums.cuh"

using Params = warptile::Backward;
using Instance = warptile::SumTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS>;

WARPTILE_IMAGE(warptile::write_sums<Instance>(params))
