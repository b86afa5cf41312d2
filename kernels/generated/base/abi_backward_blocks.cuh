// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs, where to change it.
#pragma once

#include "base/abi_backward.cuh"
#include "base/abi_blocks.cuh"

namespace warptile {

// Block of the kernels of the backward pass with lists of blocks.
struct BackwardBlocks {
    Backward backward; // Everything else.
    BlockLists blocks; // The lists.
};
static_assert(sizeof(BackwardBlocks) == 536);

#ifdef WARPTILE_VARIANT_BLOCKS
template <> constexpr unsigned long long BLOCK_HASH<BackwardBlocks> = 0xe0d70a6361b3ca28;
#endif

} // namespace warptile
