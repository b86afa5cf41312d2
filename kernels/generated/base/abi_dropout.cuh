// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.
#pragma once

#include "base/abi.cuh"

namespace warptile {

enum : unsigned { FEATURE_DROPOUT = 8192 };

// Which weights are dropped.
struct Dropout {
    const unsigned* state; // The words of a [`DropoutState`](crate::DropoutState). They are not validated: kernels clear the low bits of the last two.
    unsigned dropped; // 2^16 times the probability that a weight is dropped. The weights of a cell share a threshold of 8 bits: its upper byte, and one more as often as the lower byte says.
    float factor; // Factor of weights that are kept.
};
static_assert(sizeof(Dropout) == 16);

// Block of the kernels with dropout that read through addresses.
struct ForwardDropout {
    Forward forward; // Everything else.
    Dropout dropout; // Dropout.
};
static_assert(sizeof(ForwardDropout) == 448);

// Block of the kernels with dropout that read through tensor maps.
struct alignas(64) ForwardTmaDropout {
    ForwardTma tma; // Everything else.
    Dropout dropout; // Dropout.
    int padding[12]; // Unused.
};
static_assert(sizeof(ForwardTmaDropout) == 2048);

#ifdef WARPTILE_VARIANT_DROPOUT
template <> constexpr unsigned long long BLOCK_HASH<ForwardDropout> = 0x3f52d5d63f77153d;
template <> constexpr unsigned long long BLOCK_HASH<ForwardTmaDropout> = 0xbc6c37df10b30454;
#endif

} // namespace warptile
