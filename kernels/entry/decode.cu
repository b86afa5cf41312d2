// One image of the decode family; the build names the element types, the tiling and the entry.
#include "forward/mma.cuh"

#ifdef WARPTILE_CACHE_E4M3
using Keys = warptile::E4m3Keys<WARPTILE_ELEMENT>;
#else
using Keys = warptile::SameKeys<WARPTILE_ELEMENT>;
#endif

#if defined(WARPTILE_VARIANT_CLUSTER)
#define SCHEDULE warptile::ClusterTile
#elif defined(WARPTILE_VARIANT_DENSE_WARPS) || defined(WARPTILE_VARIANT_PAGED_WARPS)
#define WARPTILE_WARPS_ARE_WORKERS
#define SCHEDULE warptile::AmongWarps<WARPTILE_WARPS>::template Share
#else
#define SCHEDULE warptile::Share
#endif

// Less code: dense problems without options; steps of serving without options.
#if defined(WARPTILE_VARIANT_DENSE) || defined(WARPTILE_VARIANT_DENSE_WARPS)
constexpr unsigned OPTIONS = 0;
#elif defined(WARPTILE_VARIANT_PAGED) || defined(WARPTILE_VARIANT_PAGED_WARPS)
constexpr unsigned OPTIONS = warptile::FEATURE_PAGED | warptile::FEATURE_DEVICE_LENGTHS;
#else
constexpr unsigned OPTIONS = warptile::OPTIONAL_FEATURES;
#endif

using Params = Keys::Block;
#ifdef WARPTILE_WARPS_ARE_WORKERS
using Instance = warptile::MmaTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N / WARPTILE_WARPS, 1, WARPTILE_STAGES,
                                     SCHEDULE, Keys, OPTIONS>;
#undef SCHEDULE
// Of the CTA.
struct Image : Instance {
    static constexpr unsigned SCHEDULE = warptile::AmongWarps<WARPTILE_WARPS>::schedule();
    static constexpr int WARPS = WARPTILE_WARPS, THREADS = 32 * WARPS, BLOCK_N = WARPTILE_BLOCK_N, SHARED_BYTES = WARPS * Instance::worker_bytes();
};
#else
using Instance = warptile::MmaTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS,
                                     WARPTILE_STAGES, SCHEDULE, Keys, OPTIONS>;
using Image = Instance;
#endif

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Image, Params>();

extern "C" __global__ void __launch_bounds__(Image::THREADS, Image::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    warptile::mma_attention<Instance>(params);
}
