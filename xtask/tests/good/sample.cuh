// A minimal version of what a family's header gives its source; the bad kernels start from it too.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/record.cuh"

namespace warptile {

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_> struct SampleTraits {
    using Element = Element_;
    static constexpr int HEAD_DIM = HEAD_DIM_, VALUE_DIM = HEAD_DIM;
    static constexpr int BLOCK_M = BLOCK_M_;
    static constexpr int BLOCK_N = BLOCK_N_;
    static constexpr int WARPS = WARPS_;
    static constexpr int STAGES = STAGES_;
    static constexpr int K_STRIDE = HEAD_DIM + 8;
    static constexpr int V_STRIDE = HEAD_DIM + 8;
    static constexpr int SHARED_BYTES = STAGES * BLOCK_N * (K_STRIDE + V_STRIDE) * (int)sizeof(Element);
    static constexpr int MIN_CTAS = 1;
    static constexpr unsigned ROLE = ROLE_FORWARD, SCHEDULE = SCHEDULE_ONE_TILE, FEATURES = FEATURE_LSE;
};

} // namespace warptile

using Params = warptile::Forward;
using Instance = warptile::SampleTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N,
                                        WARPTILE_WARPS, WARPTILE_STAGES>;

#define SAMPLE_RECORD(Traits)                                                                                          \
    extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Traits, Params>()
