// Which keys a CTA reads, for kernels whose grid is the number of tiles: those that its tile sees.
#pragma once

#include "work/order.cuh"
#include "work/segment.cuh"

namespace warptile {

// `AHEAD`: lengths may be read before the launch before has ended.
template <class Traits, bool AHEAD = false> class OneTile {
  public:
    static constexpr bool SHARES_KEYS = false;
    static constexpr unsigned SCHEDULE = SCHEDULE_ONE_GROUP_TILE;

    __device__ OneTile(const Forward& params, int group) : OneTile(params, group, blockIdx.x, false) {}
    __device__ OneTile(const Forward& params, int group, unsigned number, bool reads_ahead)
        : params(params), group(group), number(number)
    {
        if (reads_lengths(params.sequences) && !reads_ahead) grid_dependency_wait();
    }

    // All of the tile's keys in one segment, or the end if the tile does not exist. One thread calls it for all, so that they agree even if
    // lengths on the device change.
    __device__ Segment segment() const
    {
        Segment segment;
        segment.batch = Segment::END;
        const TilePlace place = tile_place<Traits::BLOCK_M, AHEAD>(params, number, params.kv_heads, group);
        if (!place.template exists<Traits::BLOCK_M>(group)) return segment;
        const int first_row = place.tile * Traits::BLOCK_M;
        segment.batch = place.batch;
        segment.kv_head = place.head;
        segment.first_query = of_group(first_row);
        segment.first_head = first_row - segment.first_query * group;
        segment.q = place.q;
        segment.k = place.k;
        const Mask mask(params.scoring, place.q.len, place.k.len);
        const int queries = of_group(segment.first_head + Traits::BLOCK_M - 1) + 1;
        segment.first_key = mask.first_key(segment.first_query);
        segment.end_key = mask.end_key(segment.first_query, queries);
        return segment;
    }

  private:
    // Whose row it is. All threads wait for the one that asks, and a division takes long.
    __device__ int of_group(int row) const
    {
        if (group == 1) return row;
        return row / group;
    }

    const Forward& params;
    const int group; // query heads a key/value head
    const unsigned number; // of the tile
};

} // namespace warptile
