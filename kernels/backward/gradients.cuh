// The kernel for an element type.
#pragma once

#include "backward/scalar.cuh"

namespace warptile {

template <class Element, int HEAD_DIM, int BLOCK_M, int BLOCK_N, int WARPS, int STAGES, bool OF_KEYS> struct GradientTraits {
    using Type = PairTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES, OF_KEYS>;
};
template <int HEAD_DIM, int BLOCK_M, int BLOCK_N, int WARPS, int STAGES, bool OF_KEYS>
struct GradientTraits<float, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES, OF_KEYS> {
    using Type = ScalarPairTraits<float, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES, OF_KEYS>;
};

template <class Traits> __device__ inline void gradients(const Backward& params)
{
    if constexpr (sizeof(typename Traits::Element) == 4)
        scalar_gradients<Traits>(params);
    else
        pair_gradients<Traits>(params);
}

} // namespace warptile
