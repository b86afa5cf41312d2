// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.
#pragma once

#include "base/abi_backward_dropout.cuh"

namespace warptile {

enum : unsigned { ROLE_BIAS_GRADIENTS = 12 };

// Block of the gradient of a bias, which has a tile of it for each CTA. An extent of 1 stands for all: CTAs sum over it, batch entry
// by batch entry, head by head, and block by block of queries and keys.
struct BiasGradient {
    BackwardDropout dropping; // The backward pass; `work` has the number of tiles alone.
    void* d_bias; // The gradient; keys are neighbours.
    long long batch_step; // Its elements between batch entries.
    long long row_step; // Its elements between queries.
    long long head_step; // Its elements between query heads.
    int batch; // Its batch entries.
    int rows; // Its queries.
    int heads; // Its query heads.
    int keys; // Its keys.
};
static_assert(sizeof(BiasGradient) == 560);

template <> constexpr unsigned long long BLOCK_HASH<BiasGradient> = 0x14ed6f49b5660fb7;

} // namespace warptile
