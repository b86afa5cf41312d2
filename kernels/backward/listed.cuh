// The portable pair with lists of blocks: a tile goes over those blocks of columns that some list has. It has no more rows than a block of a list, so its
// rows see the same ones. Lists are of each block of queries, so a tile of keys looks for its own among them: a thread a block of queries.
// What is found is noted, and computed when there is no room for more.
#pragma once

#include "backward/pair.cuh"
#include "base/abi_backward_blocks.cuh"

namespace warptile {

// A block of columns that a tile sees: of which query head, and its first column.
struct ListedBlock {
    int head, first;
};

template <class Plain> struct Listing : Plain {
    static constexpr unsigned FEATURES = Plain::FEATURES | FEATURE_BLOCKS;
    static constexpr int NOTES = 2 * Plain::THREADS;
    static constexpr int COUNTS_AT = Plain::SHARED_BYTES + 7 & -8, NOTES_AT = COUNTS_AT + Plain::WARPS * (int)sizeof(int) + 7 & -8;
    static constexpr int SHARED_BYTES = NOTES_AT + NOTES * (int)sizeof(ListedBlock);
    static_assert(LISTED_BOX_ROWS % Plain::ROWS == 0 && LISTED_BOX_ROWS % Plain::COLUMNS == 0, "of one block of a list");
};

// Returns true if a list has the key block for the query block. As in forward the order of a list does not matter; a number below 0 ends it.
__device__ inline bool is_listed(const BlockLists& lists, long long list, int query_block, int key_block)
{
    if (!lists.offsets) return true;
    if (query_block >= lists.rows) return false;
    const int* const offsets = lists.offsets + list * lists.rows + query_block;
    const int end = min(offsets[1], lists.count);
    constexpr int AT_ONCE = 4;
    for (int first = max(offsets[0], 0); first < end; first += AT_ONCE) {
        int listed[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) listed[i] = i < end - first ? lists.indices[first + i] : -1;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (listed[i] < 0 || listed[i] == key_block) return listed[i] >= 0;
    }
    return false;
}

// Notes the blocks that a tile sees, by the heads and the blocks of `Moving`, in order.
template <class Traits> class ListedBlocks {
  public:
    __device__ ListedBlocks(const BackwardBlocks& block, const GradientPlace& place, const Moving& moving, unsigned char* shared)
        : lists(block.blocks), place(place), moving(moving), counts(reinterpret_cast<int*>(shared + Traits::COUNTS_AT)),
          notes(reinterpret_cast<ListedBlock*>(shared + Traits::NOTES_AT))
    {
    }

    // Notes the next ones, and returns how many: 0 if there are no more. All threads come here.
    __device__ int note()
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        int count = 0;
        __syncthreads(); // nobody reads those of before
        while (moving.blocks > 0 && head < moving.heads && count + Traits::THREADS <= Traits::NOTES) {
            const int own = block + threadIdx.x;
            const bool sees = own < moving.blocks && is_seen(moving.first_head + head, (moving.first_block + own) * Traits::COLUMNS);
            const unsigned seen = __ballot_sync(0xffffffff, sees);
            if (lane == 0) counts[warp] = __popc(seen);
            __syncthreads();
            int before = count;
            for (int i = 0; i < Traits::WARPS; i++) {
                if (i < warp) before += counts[i];
                count += counts[i];
            }
            if (sees)
                notes[before + __popc(seen & (1u << lane) - 1)] = {moving.first_head + head, (moving.first_block + own) * Traits::COLUMNS};
            __syncthreads();
            block += Traits::THREADS;
            if (block >= moving.blocks) {
                block = 0;
                head++;
            }
        }
        return count;
    }
    __device__ const ListedBlock& operator[](int i) const { return notes[i]; }

  private:
    __device__ bool is_seen(int of_head, int first) const
    {
        const long long list = (long long)place.batch * lists.batch_step + (long long)of_head * lists.head_step;
        const int query = Traits::OF_KEYS ? first : place.first, key = Traits::OF_KEYS ? place.first : first;
        return is_listed(lists, list, query / max(lists.queries, 1), key / max(lists.keys, 1));
    }

    const BlockLists& lists;
    const GradientPlace& place;
    const Moving moving;
    int* const counts; // of each warp
    ListedBlock* const notes;
    int head = 0, block = 0; // the next one
};

template <class Traits> __device__ void listed_gradients(const BackwardBlocks& params)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    const Backward& backward = params.backward;
    grid_dependency_wait();
    GradientPlace& place = *reinterpret_cast<GradientPlace*>(shared + Traits::PLACE_AT);
    if (threadIdx.x == 0) place = gradient_place<Traits::ROWS, Traits::OF_KEYS>(backward, blockIdx.x);
    __syncthreads();
    if (!place.exists(Traits::OF_KEYS)) return;
    load_tile<Traits>(shared, backward, place);
    cp_async_commit(); // also if no block is seen: results take the place of these rows
    PairWarp<Traits> warp(backward, address, place);
    ListedBlocks<Traits> blocks(params, place, moving_of<Traits>(backward, place), shared);
    constexpr int AHEAD = Traits::STAGES == 1 ? 1 : Traits::STAGES - 1; // blocks
#pragma unroll 1
    while (const int count = blocks.note()) {
        const auto load = [&](int i) {
            if (i < count) load_block<Traits>(shared, address, backward, place, i % Traits::STAGES, blocks[i].head, blocks[i].first);
            cp_async_commit();
        };
        for (int i = 0; i < AHEAD; i++) load(i);
#pragma unroll 1
        for (int i = 0; i < count; i++) {
            cp_async_wait<AHEAD - 1>();
            __syncthreads(); // the block is there, and all have added the one before
            if constexpr (Traits::STAGES > 1) load(i + AHEAD);
            warp.add(address + Traits::STAGES_AT + i % Traits::STAGES * Traits::STAGE_BYTES, blocks[i].head, blocks[i].first);
            if constexpr (Traits::STAGES == 1) {
                __syncthreads();
                load(i + 1);
            }
        }
    }
    grid_dependency_launch();
    cp_async_wait<0>();
    warp.write(reinterpret_cast<float*>(shared));
}

} // namespace warptile
