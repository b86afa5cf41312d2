// Traits of the family `mma` for dropout with rows that start anywhere.
#pragma once

#include "forward/mma_tile_layout.cuh"

namespace warptile {

// How many registers the two take together was found by compiling.
template <class Element, int HEAD_DIM, int BLOCK_M, int BLOCK_N, int WARPS, int STAGES>
struct DroppingUnalignedTileTraits : Dropping<UnalignedTileTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES>> {
    using Others = UnalignedTileTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES>;
    static constexpr int FOR_DROPOUT = DroppingTileTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES>::FOR_DROPOUT;
#if __CUDA_ARCH__ < 890
    static constexpr int FOR_BOTH = HEAD_DIM == 192 ? 28 : 4;
#else
    static constexpr int FOR_BOTH = 4;
#endif
    static constexpr int HELD_STEPS = Others::held_in(Others::ROOM - Others::FOR_TENSORS - FOR_DROPOUT - FOR_BOTH);
};

} // namespace warptile
