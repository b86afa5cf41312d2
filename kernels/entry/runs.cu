// The image of the runs of keys that a padding mask shows; the build names the element type, the warps and the entry.
#include "ops/runs.cuh"

using Params = warptile::KeyRuns;
using Instance = warptile::RunTraits<WARPTILE_ELEMENT, WARPTILE_WARPS>;

WARPTILE_IMAGE(warptile::find_runs<Instance>(params))
