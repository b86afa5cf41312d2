// The family `mma` with lists of blocks: a tile has queries of one head, and no more of them than a block of a list, so its rows see the same
// blocks. One warp notes those that come next, and all compute them; then it notes others.
#pragma once

#include "forward/mma_tile.cuh"

namespace warptile {

// All keys of a tile of one query head, which its `kv_head` is here.
template <class Traits> class HeadTile {
  public:
    static constexpr bool SHARES_KEYS = false;
    static constexpr unsigned SCHEDULE = SCHEDULE_ONE_TILE;

    // As of OneTile, but that blocks are counted from key 0, as lists count them.
    __device__ static Segment segment(const Forward& params)
    {
        Segment segment;
        segment.batch = Segment::END;
        const TilePlace place = tile_place<Traits::BLOCK_M>(params, blockIdx.x, params.heads);
        if (!place.template exists<Traits::BLOCK_M>()) return segment;
        segment.batch = place.batch;
        segment.kv_head = place.head;
        segment.first_query = place.tile * Traits::BLOCK_M;
        segment.first_head = 0;
        segment.q = place.q;
        segment.k = place.k;
        segment.first_key = 0;
        segment.end_key = Mask(params.scoring, place.q.len, place.k.len).end_key(segment.first_query, Traits::BLOCK_M);
        return segment;
    }
};

// Traits for lists of blocks, besides all that the variant with tensors takes but pages.
template <class Element, int HEAD_DIM, int BLOCK_M, int BLOCK_N, int WARPS, int STAGES>
struct ListedTileTraits : TensorTileTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES> {
    using Others = TensorTileTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES>;
    using Schedule = HeadTile<ListedTileTraits>;
    static constexpr unsigned SCHEDULE = Schedule::SCHEDULE;
    static constexpr unsigned FEATURES = Others::FEATURES & ~FEATURE_PAGED | FEATURE_BLOCKS;
    // How many registers that takes was found by compiling.
    static constexpr int FOR_LISTS = HEAD_DIM == 256 ? 4 : 0;
    static constexpr int HELD_STEPS = Others::held_in(Others::ROOM - Others::FOR_TENSORS - FOR_LISTS);
    static constexpr int NOTES = 128; // blocks, behind how many there are
    static constexpr int COUNT_AT = Others::SHARED_BYTES, NOTES_AT = COUNT_AT + (int)sizeof(int);
    static constexpr int SHARED_BYTES = NOTES_AT + NOTES * (int)sizeof(int);
    static_assert(LISTED_BOX_ROWS % BLOCK_M == 0 && LISTED_BOX_ROWS % BLOCK_N == 0, "of one block of a list");
};

// Loads blocks of lists: any may be a sequence's last one, which may lack rows.
template <class Traits> class ListedLoader : public TileLoader<Traits> {
  public:
    using TileLoader<Traits>::TileLoader;

    // Asks for a block's keys, its values or both as a group of cp.async; for nothing if there is none.
    template <bool KEYS, bool VALUES> __device__ void load(int stage, int block) const
    {
        const int rows = min(this->tile.end_key - block * Traits::BLOCK_N, Traits::BLOCK_N);
        if (block >= 0) TileLoader<Traits>::template load<KEYS, VALUES>(stage, block, rows);
        cp_async_commit();
    }
};

// Notes the blocks of BLOCK_N keys that a tile sees.
template <class Traits> class NotedBlocks {
  public:
    __device__ NotedBlocks(const ForwardBlocks& block, const Segment& tile, unsigned char* shared)
        : lists(block.blocks), tile(tile), count(*reinterpret_cast<int*>(shared + Traits::COUNT_AT)),
          notes(reinterpret_cast<int*>(shared + Traits::NOTES_AT)),
          first_key(Mask(block.forward.scoring, tile.q.len, tile.k.len).first_key(tile.first_query))
    {
        if (threadIdx.x >= 32) return;
        const int row = tile.first_query / lists.queries;
        if (row >= lists.rows) return;
        const long long list = (long long)tile.batch * lists.batch_step + (long long)tile.kv_head * lists.head_step;
        const int* const offsets = lists.offsets + list * lists.rows + row;
        at = max(offsets[0], 0);
        end = min(offsets[1], lists.count);
    }

    // Notes the next ones, and returns how many: 0 if there are no more. All threads come here.
    __device__ int note()
    {
        __syncthreads(); // nobody reads those of before
        if (threadIdx.x < 32) {
            const int noted = note_by_warp(threadIdx.x);
            if (threadIdx.x == 0) count = noted;
        }
        __syncthreads();
        return count;
    }
    __device__ int operator[](int i) const { return notes[i]; }

  private:
    static_assert(Traits::NOTES % 32 == 0, "a warp notes 32 at once");

    // A lane takes BLOCK_N keys of a block of a list. A number below 0 ends the list.
    __device__ int note_by_warp(int lane)
    {
        const int steps = lists.keys / Traits::BLOCK_N, own = lane / steps;
        int noted = 0;
        while (at < end && noted <= Traits::NOTES - 32) {
            const int block = own < end - at ? lists.indices[at + own] : -1;
            const unsigned ended = __ballot_sync(0xffffffff, block < 0);
            const bool exists = !(ended << 31 - lane) && block <= (tile.end_key - 1) / lists.keys;
            const int first = exists ? block * lists.keys + lane % steps * Traits::BLOCK_N : 0;
            const bool sees = exists && first < tile.end_key && first + Traits::BLOCK_N > first_key;
            const unsigned seen = __ballot_sync(0xffffffff, sees);
            if (sees) notes[noted + __popc(seen & (1u << lane) - 1)] = first / Traits::BLOCK_N;
            noted += __popc(seen);
            at = ended ? end : at + 32 / steps;
        }
        return noted;
    }

    const BlockLists& lists;
    const Segment& tile;
    int& count;
    int* const notes;
    const int first_key;
    int at = 0, end = 0; // in the list
};

template <class Traits> __device__ void listed_tile_attention(const ForwardBlocks& block)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned address = kept((unsigned)__cvta_generic_to_shared(shared));
    const Forward& params = block.forward;
    constexpr int GROUP = 1; // heads of a tile
    grid_dependency_wait();
    Segment& tile = *reinterpret_cast<Segment*>(shared + Traits::TILE_AT);
    if (threadIdx.x == 0) tile = Traits::Schedule::segment(params);
    __syncthreads();
    if (tile.is_end()) return;
    ListedLoader<Traits> loader(params, address, tile, 0);
    loader.load_queries(GROUP);
    cp_async_commit();
    NotedBlocks<Traits> blocks(block, tile, shared);
    TileRows<Traits> rows(params, address, tile, GROUP);
    int count = blocks.note();
    cp_async_wait<0>();
    __syncthreads(); // queries are there, also if no block is seen: results take their place
    rows.take_queries();
    constexpr int AHEAD = Traits::STAGES - 1; // blocks
    constexpr bool IN_TURN = AHEAD == 0;      // keys and values arrive in turn
#pragma unroll 1
    for (; count > 0; count = blocks.note()) {
        const auto number = [&](int i) { return i < count ? blocks[i] : -1; };
        const auto stage = [](int i) { return i % Traits::STAGES * Traits::STAGE_BYTES; };
        if constexpr (IN_TURN)
            loader.template load<true, false>(0, number(0));
        else
            for (int i = 0; i < AHEAD; i++) loader.template load<true, true>(stage(i), number(i));
#pragma unroll 1
        for (int i = 0; i < count; i++) {
            cp_async_wait<IN_TURN ? 0 : AHEAD - 1>();
            __syncthreads(); // the block is there, or its keys, and all have computed the one before
            if constexpr (IN_TURN)
                loader.template load<false, true>(0, number(i));
            else
                loader.template load<true, true>(stage(i + AHEAD), number(i + AHEAD));
            rows.add(number(i), address + stage(i), [&] {
                if constexpr (!IN_TURN) return;
                cp_async_wait<0>();
                __syncthreads(); // the values are there, and all have the keys' scores
                loader.template load<true, false>(0, number(i + 1));
            });
        }
    }
    cp_async_wait<0>();
    write_rows(params, shared, tile, GROUP, rows);
}

} // namespace warptile
