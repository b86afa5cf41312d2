// One image of the cache writes; the build names the element types, the warps and the entry.
#include "ops/append.cuh"

#ifdef WARPTILE_CACHE_E4M3
using Cache = warptile::E4m3Cache<WARPTILE_ELEMENT>;
#else
using Cache = warptile::SameCache<WARPTILE_ELEMENT>;
#endif

using Params = Cache::Block;
using Instance = warptile::AppendTraits<WARPTILE_ELEMENT, WARPTILE_WARPS, Cache>;

WARPTILE_IMAGE(warptile::append_rows<Instance>(params))
