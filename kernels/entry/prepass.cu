// One image of the pre-pass of the backward pass; the build names the element type, the warps and the entry.
#include "backward/prepass.cuh"

using Params = warptile::Prepass;
using Instance = warptile::RowTraits<WARPTILE_ELEMENT, WARPTILE_WARPS, warptile::ROLE_PREPASS>;

WARPTILE_IMAGE(warptile::prepare_rows<Instance>(params))
