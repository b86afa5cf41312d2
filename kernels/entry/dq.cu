// One image of the gradients of queries; the build names the element type, the tiling and the entry.
#include "backward/gradients.cuh"
#include "backward/listed.cuh"

using Plain = warptile::GradientTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS,
                                          WARPTILE_STAGES, false>::Type;
#if defined(WARPTILE_VARIANT_BLOCKS)
using Params = warptile::BackwardBlocks;
using Instance = warptile::Listing<Plain>;
WARPTILE_IMAGE(warptile::listed_gradients<Instance>(params))
#elif defined(WARPTILE_VARIANT_DROPOUT)
using Params = warptile::BackwardDropout;
using Instance = warptile::Dropping<Plain>;
WARPTILE_IMAGE(warptile::gradients<Instance>(params.backward))
#else
using Params = warptile::Backward;
using Instance = Plain;
WARPTILE_IMAGE(warptile::gradients<Instance>(params))
#endif
