// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs, where to change it.
#pragma once

#include "base/abi.cuh"

namespace warptile {

// Block of the kernels that read a bias or a key mask through a tensor map: of dimensions (key, query, head, batch), with boxes of
// BOX_COLUMNS x QUERY_BOX_ROWS whose rows are swizzled over all of their bytes. It has one head or batch entry where the tensor does not
// depend on it.
struct alignas(64) ForwardTmaBoxes {
    ForwardTma tma; // Everything else.
    TensorMap boxes_map; // The tensor, which starts at a multiple of 16 bytes.
    int before; // Columns of the map in front of the first key: 0, or all of them where the tensor is not given.
    int padding[15]; // Unused.
};
static_assert(sizeof(ForwardTmaBoxes) == 2176);

#if defined(WARPTILE_VARIANT_BIAS) || defined(WARPTILE_VARIANT_MASK)
template <> constexpr unsigned long long BLOCK_HASH<ForwardTmaBoxes> = 0x38fef62b10f52e4c;
#endif

} // namespace warptile
