// One image of the merge of results; the build names the element type, the warps and the entry.
#include "ops/merge.cuh"

using Params = warptile::Merge;
using Instance = warptile::RowTraits<WARPTILE_ELEMENT, WARPTILE_WARPS, warptile::ROLE_COMBINE>;

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    warptile::merge_results<Instance>(params);
}
