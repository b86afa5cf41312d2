// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.
#pragma once

#include "base/abi.cuh"

namespace warptile {

enum : unsigned { FEATURE_BLOCKS = 16384 };
enum : int { LISTED_BOX_ROWS = 64 };

// Which blocks of keys each block of queries sees: row r of list l is `indices` from `offsets[l * rows + r]` to the next offset. Numbers
// on the device are not validated: kernels clamp offsets to `count`, an index below 0 ends a row, and one past the last block of a
// sequence's keys is left out.
struct BlockLists {
    const int* offsets; // Where each row begins, and the end of the last one.
    const int* indices; // Numbers of blocks of keys.
    int rows; // Rows of a list.
    int count; // Indices there are.
    int batch_step; // Lists between those of neighbouring sequences.
    int head_step; // Lists between those of neighbouring query heads.
    int queries; // Queries of a block.
    int keys; // Keys of a block.
};
static_assert(sizeof(BlockLists) == 40);

// Block of the kernels with lists of blocks that read through addresses.
struct ForwardBlocks {
    Forward forward; // Everything else.
    BlockLists blocks; // The lists.
};
static_assert(sizeof(ForwardBlocks) == 472);

// Block of the kernels with lists of blocks that read through tensor maps. Boxes of keys and values have LISTED_BOX_ROWS rows.
struct alignas(64) ForwardTmaBlocks {
    ForwardTma tma; // Everything else.
    BlockLists blocks; // The lists.
    int padding[6]; // Unused.
};
static_assert(sizeof(ForwardTmaBlocks) == 2048);

#ifdef WARPTILE_VARIANT_BLOCKS
template <> constexpr unsigned long long BLOCK_HASH<ForwardBlocks> = 0x3af3ad65c0e8fd18;
template <> constexpr unsigned long long BLOCK_HASH<ForwardTmaBlocks> = 0xbf6bac3935358668;
#endif

} // namespace warptile
