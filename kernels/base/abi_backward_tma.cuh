// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs, where to change it.
#pragma once

#include "base/abi_backward.cuh"

namespace warptile {

// Block of the one-pass kernels, which read and write through tensor maps as those of [`ForwardTma`]: the boxes are BOX_COLUMNS x the
// rows that the tilings say. What has no map (dq, rows of a packed sequence's end) goes through the addresses of `backward`.
struct alignas(64) BackwardTma {
    TensorMap q_map; // Queries.
    TensorMap k_map; // Keys.
    TensorMap v_map; // Values.
    TensorMap d_out_map; // The gradient of the output.
    TensorMap dk_map; // The gradient of the keys.
    TensorMap dv_map; // The gradient of the values.
    Backward backward; // Everything else.
    int padding[4]; // Unused.
};
static_assert(sizeof(BackwardTma) == 1280);

template <> constexpr unsigned long long BLOCK_HASH<BackwardTma> = 0xbd1e35517ea7af3c;

} // namespace warptile
