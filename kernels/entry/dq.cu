// One image of the gradients of queries; the build names the element type, the tiling and the entry.
#include "backward/gradients.cuh"

using Plain = warptile::GradientTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS,
                                          WARPTILE_STAGES, false>::Type;
#ifdef WARPTILE_VARIANT_DROPOUT
using Params = warptile::BackwardDropout;
using Instance = warptile::Dropping<Plain>;
#define PLAIN params.backward
#else
using Params = warptile::Backward;
using Instance = Plain;
#define PLAIN params
#endif

WARPTILE_IMAGE(warptile::gradients<Instance>(PLAIN))
