// The image of the gradient of sinks; the build names the element type, the warps and the entry.
#include "backward/sinks.cuh"

using Params = warptile::SinkGradient;
using Instance = warptile::SinkTraits<WARPTILE_ELEMENT, WARPTILE_WARPS>;

WARPTILE_IMAGE(warptile::sum_sinks<Instance>(params))
