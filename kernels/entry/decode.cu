// One image of the decode family; the build names the element types, the tiling and the entry.
#include "forward/mma.cuh"

#ifdef WARPTILE_CACHE_E4M3
using Keys = warptile::E4m3Keys<WARPTILE_ELEMENT>;
#else
using Keys = warptile::SameKeys<WARPTILE_ELEMENT>;
#endif

#if defined(WARPTILE_VARIANT_CLUSTER)
#define SCHEDULE warptile::ClusterTile
#else
#define SCHEDULE warptile::Share
#endif

// Less code: dense problems without options; steps of serving without options. More: a bias and a key mask.
#if defined(WARPTILE_VARIANT_DENSE)
constexpr unsigned OPTIONS = 0;
#elif defined(WARPTILE_VARIANT_TENSORS)
constexpr unsigned OPTIONS = warptile::OPTIONAL_FEATURES | warptile::SCORE_TENSORS;
#elif defined(WARPTILE_VARIANT_PAGED)
constexpr unsigned OPTIONS = warptile::FEATURE_PAGED | warptile::FEATURE_DEVICE_LENGTHS;
#else
constexpr unsigned OPTIONS = warptile::OPTIONAL_FEATURES;
#endif

using Params = Keys::Block;
using Instance = warptile::MmaTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N, WARPTILE_WARPS,
                                     WARPTILE_STAGES, SCHEDULE, Keys, OPTIONS>;

WARPTILE_IMAGE(warptile::mma_attention<Instance>(params))
