// The record of a kernel without tiles: CTAs share rows, and each thread takes one chunk.
#pragma once

#include "base/abi_ops.cuh"
#include "base/record.cuh"
#include "ptx/launch.cuh"

namespace warptile {

template <class Element_, int WARPS_, unsigned ROLE_> struct RowTraits {
    using Element = Element_;
    static constexpr unsigned ROLE = ROLE_;
    static constexpr unsigned SCHEDULE = SCHEDULE_ONE_TILE;
    static constexpr unsigned FEATURES = FEATURE_UNALIGNED;
    static constexpr int WARPS = WARPS_, THREADS = 32 * WARPS, MIN_CTAS = 1;
    static constexpr int BLOCK_M = 0, BLOCK_N = 0, HEAD_DIM = 0, STAGES = 0, K_STRIDE = 0, V_STRIDE = 0;
    static constexpr int SHARED_BYTES = 0;
};

// Waits for the previous launch, whose output such a kernel may read: it begins early only to be resident when that launch ends. Then it
// lets the next launch begin, which is most of the gain if that is attention (docs/notebook/decode.md, "Writes that begin early").
__device__ inline void begin_in_order()
{
    grid_dependency_wait();
    grid_dependency_launch();
}

} // namespace warptile
