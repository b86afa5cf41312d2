// The image of the runs of keys that a padding mask shows; the build names the element type, the warps and the entry.
#include "ops/runs.cuh"

using Params = warptile::KeyRuns;
using Instance = warptile::RunTraits<WARPTILE_ELEMENT, WARPTILE_WARPS>;

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    warptile::find_runs<Instance>(params);
}
