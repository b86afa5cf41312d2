// A ring's keys and values by the copy engine, in place of cp.async: a lane of each warp asks for boxes of BOX_ROWS whole rows, and whoever waits for a
// group waits at a barrier of its stage. That takes a few instructions a group, where copies by lanes take several hundred.
//
// A box lies in one page, so pages are of a multiple of BOX_ROWS rows, and rows are as long as those of the tile. A box may have rows that
// the segment does not have: of others, or that nobody has written. Their scores are masked, and their values are made zeros, as a
// weight of 0 times what is not a number is not 0.
#pragma once

#include "forward/mma_layout.cuh"
#include "memory/keys.cuh"
#include "ptx/sm90.cuh"

namespace warptile {

template <class Traits, bool = Traits::BOXES> class Boxes {
  public:
    __device__ Boxes(const typename Traits::Params&, const MmaThread<Traits>&) {}
};
template <class Traits> class Boxes<Traits, true> {
  public:
    using Element = typename Traits::Element;

    // The CTA meets before the first box is asked for.
    __device__ Boxes(const ForwardTma& params, const MmaThread<Traits>& thread) : params(params), thread(thread)
    {
        if (threadIdx.x % Traits::TEAM_THREADS != 0) return;
#pragma unroll
        for (int stage = 0; stage < Traits::STAGES; stage++) barrier_init(full(stage), 1);
        fence_barrier_init();
    }

    // Asks for a warp's keys and values, but not for boxes without any key of the segment. A lane knows the page of key
    // first_key + lane % WARP_KEYS.
    __device__ void load(const Segment& of, const KeyRows<Element>& rows, int first_key, int page, int stage) const
    {
        const int first_of_group = thread.row_warp() * Traits::WARP_KEYS;
        const unsigned to = thread.address_of(thread.stage_at(stage)) + first_of_group * Traits::ROW_BYTES;
#pragma unroll
        for (int i = 0; i < Traits::WARP_KEYS; i += Traits::BOX_ROWS) {
            const int page_of_box = Traits::WARP_KEYS == Traits::BOX_ROWS ? page : __shfl_sync(0xffffffff, page, i);
            if (thread.lane != 0) continue;
            if (i == 0 && thread.row_warp() == 0)
                barrier_arrive_expect_bytes(full(stage), count(of, first_key) * 2 * Traits::BOX_BYTES);
            if (!has_keys(of, first_key + i)) continue;
            const auto at = rows.place(params.forward, first_key + i, page_of_box);
            copy_rows_box(to + i * Traits::ROW_BYTES, params.k_map, full(stage), at.row, of.kv_head, at.page);
            copy_rows_box(to + i * Traits::ROW_BYTES + Traits::GROUP_BYTES, params.v_map, full(stage), at.row, of.kv_head, at.page);
        }
    }

    // Waits for the group that begins with `first_key`. Whether values have been written, which the team has to wait for.
    __device__ bool wait(const Segment& of, int first_key, int stage, unsigned parity) const
    {
        wait(stage, parity);
        const int low = of.first_key - first_key, high = of.end_key - first_key;
        if (low <= 0 && high >= Traits::KEYS) return false;
        const int first_of_group = thread.row_warp() * Traits::WARP_KEYS;
        unsigned char* const values = thread.shared + thread.stage_at(stage) + Traits::GROUP_BYTES;
#pragma unroll 1
        for (int i = anew(thread.lane); i < Traits::WARP_KEYS * Traits::ROW_CHUNKS; i += 32) {
            const int row = first_of_group + i / Traits::ROW_CHUNKS;
            if (row < low || row >= high)
                *reinterpret_cast<uint4*>(values + thread.key_chunk(row, i % Traits::ROW_CHUNKS)) = {0, 0, 0, 0};
        }
        fence_shared_for_async(); // boxes come here again
        return true;
    }

    __device__ void wait(int stage, unsigned parity) const { barrier_wait(full(stage), parity); }
    // Leaves plain memory, where the CTA has met since it last used the barriers.
    __device__ void end() const
    {
        if (threadIdx.x % Traits::TEAM_THREADS != 0) return;
#pragma unroll
        for (int stage = 0; stage < Traits::STAGES; stage++) barrier_end(full(stage));
    }

  private:
    __device__ unsigned full(int stage) const
    {
        return thread.address_of(Traits::FULL_AT + (thread.team() * Traits::STAGES + stage) * BARRIER_BYTES);
    }
    __device__ static bool has_keys(const Segment& of, int first_key)
    {
        return first_key < of.end_key && first_key + Traits::BOX_ROWS > of.first_key;
    }
    // Of the team's group, whose first key is this.
    __device__ static int count(const Segment& of, int first_key)
    {
        int count = 0;
#pragma unroll
        for (int i = 0; i < Traits::KEYS; i += Traits::BOX_ROWS) count += has_keys(of, first_key + i);
        return count;
    }

    const ForwardTma& params;
    const MmaThread<Traits> thread;
};

} // namespace warptile
