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
    // `reads_ahead`: see work/share.cuh.
    __device__ MmaAttention(const typename Traits::Params& params, unsigned char* shared, bool reads_ahead)
        : params(forward_of(params)), group(forward_of(params).heads / forward_of(params).kv_heads), thread(shared),
          schedule(forward_of(params), group, shared + Traits::SCHEDULE_AT, reads_ahead), ring(params, thread),
          rows(forward_of(params), thread, group), result(forward_of(params), thread, group)
    {
    }

    // Nothing, and returns false, if what has been read ahead was wrong. The launch before has ended then.
    __device__ bool run()
    {
        // Each turn describes a segment and computes the one that the turn before has described.
#pragma unroll 1
        for (int number = -1;; number++) {
            if (!compute(number)) {
                ring.drop_groups();
                return false;
            }
            const Segment& next = thread.segment(number + 1);
            if (number >= 0) {
                result.finish(schedule, thread.segment(number), rows, ring.free_stage(), next);
            } else if (next.is_end()) {
                if (schedule.reads_ahead()) {
                    check();
                    __syncthreads();
                    if (schedule.was_wrong()) {
                        ring.drop_groups();
                        return false;
                    }
                }
                if constexpr (Traits::ADDS_UP) result.leave_semaphores(schedule);
            }
            if (next.is_end()) break;
        }
        if constexpr (Traits::ADDS_UP) result.reset_semaphores(schedule);
        return true;
    }

  private:
    __device__ bool compute(int number)
    {
        const Segment& of = thread.segment(number);
        int block = number < 0 ? 0 : thread.first_block(of);
        const int end = number < 0 ? 0 : thread.end_block(of);
#pragma unroll 1
        while (true) {
            if (described == number && !ring.can_load(number, described) && !describe_next(number)) return false;
            ring.fill(number, described); // also with keys of the next segment
            if (described == number) continue;
            if (block >= end) return true;
            rows.add(block * Traits::BLOCK_N + thread.first_key(), ring.wait_for_group(of, block));
            ring.release_group();
            block++;
        }
    }

    // All that is not needed for the first loads comes after them. False if what has been read ahead was wrong.
    __device__ bool describe_next(int number)
    {
        const bool checks = number == 0 && schedule.reads_ahead();
        if (checks) check();
        if (threadIdx.x == 0) thread.segment(number + 1) = schedule.next();
        ring.wait_for_segment();
        __syncthreads();
        if (checks && schedule.was_wrong()) return false;
        described = number + 1;
        if (number >= 0) {
            rows.start(number);
            if constexpr (Traits::ADDS_UP)
                if (thread.segment(number + 1).is_end()) result.leave_semaphores_early(schedule, thread.segment(number));
        } else {
            if (schedule.reads_ahead()) ring.read_first_pages();
            wait_for_predecessor();
            if (schedule.reads_ahead()) schedule.ask_again();
        }
        ring.load_segment(number + 1, group, number < 0 && schedule.reads_ahead());
        return true;
    }

    // What this thread has read ahead, when it has come again.
    __device__ void check()
    {
        ring.wait_for_segment();
        if (!schedule.was_right() || !ring.was_right()) schedule.note_wrong();
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

template <class Traits> __device__ void mma_attention(const typename Traits::Params& params)
{
    extern __shared__ __align__(Traits::RING_ALIGNMENT) unsigned char shared[];
    if constexpr (Traits::BOXES)
        if (threadIdx.x == 0) {
            prefetch_map(params.k_map);
            prefetch_map(params.v_map);
        }
    let_successor_begin();
    bool reads_ahead = Traits::Schedule::can_read_ahead(forward_of(params));
#pragma unroll 1
    while (!MmaAttention<Traits>(params, shared, reads_ahead).run()) {
        reads_ahead = false;
        cp_async_wait<0>();
        __syncthreads();
    }
}

} // namespace warptile
