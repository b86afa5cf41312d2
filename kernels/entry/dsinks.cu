// The image of the gradient of sinks; the build names the element type, the warps and the entry.
#include "backward/sinks.cuh"

using Params = warptile::SinkGradient;
using Instance = warptile::SinkTraits<WARPTILE_ELEMENT, WARPTILE_WARPS>;

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    warptile::sum_sinks<Instance>(params);
}
