// One image of the pre-pass of the backward pass; the build names the element type, the warps and the entry.
#include "backward/prepass.cuh"

using Params = warptile::Prepass;
using Instance = warptile::RowTraits<WARPTILE_ELEMENT, WARPTILE_WARPS, warptile::ROLE_PREPASS>;

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    warptile::prepare_rows<Instance>(params);
}
