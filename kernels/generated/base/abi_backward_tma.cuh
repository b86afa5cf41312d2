// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs, where to change it.
#pragma once

#include "base/abi_backward.cuh"

namespace warptile {

// Block of the kernels of the backward pass for Hopper, which read through tensor maps as those of [`ForwardTma`] do: the boxes are
// BOX_COLUMNS x QUERY_BOX_ROWS (q, d_out) or BLOCK_N (k, v). They write through the addresses of `backward`.
struct alignas(64) BackwardTma {
    TensorMap q_map; // Queries.
    TensorMap k_map; // Keys.
    TensorMap v_map; // Values.
    TensorMap d_out_map; // The gradient of the output.
    Backward backward; // Everything else.
    int padding[4]; // Unused.
};
static_assert(sizeof(BackwardTma) == 1024);

template <> constexpr unsigned long long BLOCK_HASH<BackwardTma> = 0xe3c32c2a304b1d98;

} // namespace warptile
