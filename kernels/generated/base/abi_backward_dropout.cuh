// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs, where to change it.
#pragma once

#include "base/abi_backward.cuh"
#include "base/abi_dropout.cuh"

namespace warptile {

// Block of the kernels of the backward pass with dropout that read through addresses.
struct BackwardDropout {
    Backward backward; // Everything else.
    Dropout dropout; // Dropout.
};
static_assert(sizeof(BackwardDropout) == 512);

#ifdef WARPTILE_VARIANT_DROPOUT
template <> constexpr unsigned long long BLOCK_HASH<BackwardDropout> = 0x7765f00ee943c96b;
#endif

} // namespace warptile
