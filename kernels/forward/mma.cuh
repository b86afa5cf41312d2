// Attention by mma.sync, for every GPU from sm_80 on. The query heads that share a key/value head are rows of one tile, so keys are read
// once for all of them. A team of warps has the rows of the tile, 16 each; teams take turns with groups of keys, and share nothing
// while they read. Two families:
//
// `decode`: CTAs share the keys of all sequences evenly (work/share.cuh), for few queries against many keys at the speed of memory.
// `mma`: a tile a CTA (work/one_tile.cuh), for many queries.
#pragma once

#include "forward/mma_result.cuh"
#include "forward/mma_ring.cuh"
#include "work/one_tile.cuh"
#include "work/share.cuh"

namespace warptile {

template <class Traits> class MmaAttention {
  public:
    __device__ MmaAttention(const Forward& params, unsigned char* shared)
        : params(params), group(params.heads / params.kv_heads), thread(shared), schedule(params, group, shared + Traits::SCHEDULE_AT),
          ring(params, thread), rows(params, thread, group), result(params, thread, group)
    {
    }

    __device__ void run()
    {
        // Each turn describes a segment and computes the one that the turn before has described.
#pragma unroll 1
        for (int number = -1;; number++) {
            compute(number);
            const Segment& next = thread.segment(number + 1);
            if (number >= 0)
                result.finish(schedule, thread.segment(number), rows, ring.free_stage(), next);
            else if constexpr (Traits::ADDS_UP)
                if (next.is_end()) result.leave_semaphores(schedule);
            if (next.is_end()) break;
        }
        if constexpr (Traits::ADDS_UP) result.reset_semaphores(schedule);
    }

  private:
    __device__ void compute(int number)
    {
        const Segment& of = thread.segment(number);
        int block = number < 0 ? 0 : thread.first_block(of);
        const int end = number < 0 ? 0 : thread.end_block(of);
#pragma unroll 1
        while (Traits::ADDS_UP || described == number || block < end) {
            ring.fill(number, described); // also with keys of the next segment
            if (described == number) {
                describe_next(number);
                continue;
            }
            if (Traits::ADDS_UP && block >= end) return;
            rows.add(block * Traits::BLOCK_N + thread.first_key(), ring.wait_for_group());
            ring.release_group();
            block++;
        }
    }

    // All that is not needed for the first loads comes after them.
    __device__ void describe_next(int number)
    {
        if (threadIdx.x == 0) thread.segment(number + 1) = schedule.next();
        ring.wait_for_older();
        __syncthreads();
        described = number + 1;
        if (number >= 0)
            rows.start(number);
        else if (!reads_lengths(params.sequences)) // otherwise `schedule` has waited
            wait_for_predecessor();
        ring.load_first_pages(number + 1);
        ring.load_queries(number + 1, group);
    }

    const Forward& params;
    const int group; // query heads a key/value head
    const MmaThread<Traits> thread;
    typename Traits::Schedule schedule;
    Ring<Traits> ring;
    Rows16<Traits> rows;
    Result<Traits> result;
    int described = -1; // the last segment that is known
};

template <class Traits> __device__ void mma_attention(const Forward& params)
{
    extern __shared__ __align__(128) unsigned char shared[];
    let_successor_begin();
    MmaAttention<Traits>(params, shared).run();
}

} // namespace warptile
