// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs, where to change it.
#pragma once

#include "base/abi_backward_tma.cuh"
#include "base/abi_dropout.cuh"

namespace warptile {

// Block of the kernels of the backward pass for Hopper with dropout.
struct alignas(64) BackwardTmaDropout {
    BackwardTma tma; // Everything else.
    Dropout dropout; // Dropout.
    int padding[12]; // Unused.
};
static_assert(sizeof(BackwardTmaDropout) == 1088);

#ifdef WARPTILE_VARIANT_DROPOUT
template <> constexpr unsigned long long BLOCK_HASH<BackwardTmaDropout> = 0x3b1dca15bdb32ceb;
#endif

} // namespace warptile
