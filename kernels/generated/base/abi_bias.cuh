// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.
#pragma once

#include "base/abi.cuh"

namespace warptile {

enum : unsigned { FEATURE_BIAS_F32 = 32768 };

} // namespace warptile
