// One image of the merge of results; the build names the element type, the warps and the entry.
#include "ops/merge.cuh"

using Params = warptile::Merge;
using Instance = warptile::RowTraits<WARPTILE_ELEMENT, WARPTILE_WARPS, warptile::ROLE_COMBINE>;

WARPTILE_IMAGE(warptile::merge_results<Instance>(params))
