// Lists of blocks: which keys a block of queries sees, as `BlockList` in crates/spec/src/blocks.rs has them. The mask holds inside.
#pragma once

#include "base/abi_blocks.cuh"

namespace warptile {

// True of traits whose kernels walk over lists.
template <class Traits> __device__ constexpr bool lists_blocks() { return Traits::FEATURES & FEATURE_BLOCKS; }

// The lists of a block that such a kernel was given.
template <class Block, class Params> __device__ inline const BlockLists& lists_of(const Params& params)
{
    return reinterpret_cast<const Block&>(params).blocks;
}

// The keys of a row's listed blocks, STEP at a time, in the list's order. Blocks outside of [first_key, end_key) are left out. What lies on the
// device is not validated: nothing is read outside of the lists.
template <int STEP> class ListedKeys {
  public:
    static constexpr int NONE = -1;
    static_assert(LISTED_BOX_ROWS % STEP == 0, "blocks are whole steps");

    __device__ ListedKeys() {}
    __device__ ListedKeys(const BlockLists& lists, int batch, int head, int query, int first_key, int end_key)
        : indices(lists.indices), keys(lists.keys), first_block(first_key / keys), end_block(end_key > 0 ? (end_key - 1) / keys + 1 : 0),
          key(0), end_of_block(0)
    {
        const long long list = (long long)batch * lists.batch_step + head * lists.head_step;
        const int* const offsets = lists.offsets + list * lists.rows + query / lists.queries;
        at = min(max(offsets[0], 0), lists.count);
        end = min(max(offsets[1], at), lists.count);
        look_ahead();
    }

    // The first of the next keys, or NONE after the last.
    __device__ int next()
    {
        while (key == end_of_block) {
            if (at >= end) return NONE;
            const int block = ahead;
            at = block < 0 ? end : at + 1; // a number below 0 ends the row
            look_ahead();
            if (block < first_block || block >= end_block) continue;
            key = block * keys;
            end_of_block = key + keys;
        }
        key += STEP;
        return key - STEP;
    }

    // Blocks that are still to come, at most.
    __device__ int left() const { return end - at; }

  private:
    // The next number is asked for before it is needed.
    __device__ void look_ahead() { ahead = at < end ? indices[at] : NONE; }

    const int* indices;
    int at, end, ahead; // in the list
    int keys, first_block, end_block;
    int key, end_of_block; // in the block
};

} // namespace warptile
