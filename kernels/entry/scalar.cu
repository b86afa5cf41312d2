// One image of the `scalar` family; `cargo xtask build-kernels` names the element type, the tiling and the entry.
#include "forward/scalar.cuh"

using Plain = warptile::ScalarTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS, WARPTILE_STAGES>;
#ifdef WARPTILE_VARIANT_DROPOUT
using Params = warptile::ForwardDropout;
using Instance = warptile::Dropping<Plain>;
#define PLAIN params.forward
#else
using Params = warptile::Forward;
using Instance = Plain;
#define PLAIN params
#endif

WARPTILE_IMAGE(warptile::scalar_attention<Instance>(PLAIN))
