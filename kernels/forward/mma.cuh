// The family `decode`: few queries against many keys at the speed of memory, by mma.sync, on every GPU from sm_80 on. The query heads that
// share a key/value head are rows of one tile, so keys are read once for all of them. A team of warps has the rows of the tile, 16 each;
// teams take turns with groups of keys, and share nothing while they read. CTAs share the keys of all sequences evenly (work/share.cuh);
// where there are few tiles, a cluster of CTAs has one (work/cluster_tile.cuh).
#pragma once

#include "forward/mma_result.cuh"
#include "forward/mma_ring.cuh"
#include "work/cluster_tile.cuh"
#include "work/share.cuh"

namespace warptile {

template <class Traits> class MmaAttention {
  public:
    using Block = typename Traits::Keys::Block;

    // `params`: those in `block`. `reads_ahead`: see work/share.cuh.
    __device__ MmaAttention(const Block& block, const Forward& params, unsigned char* shared, bool reads_ahead)
        : params(params), group(params.heads / params.kv_heads), thread(shared),
          schedule(params, group, shared + Traits::SCHEDULE_AT, reads_ahead), ring(params, thread), rows(block, thread, group),
          result(params, thread, group)
    {
    }

    // Nothing, and returns false, if what has been read ahead was wrong. The launch before has ended then.
    __device__ bool run()
    {
        // Each turn describes a segment and computes the one that the turn before has described.
#pragma unroll 1
        for (int number = -1;; number++) {
            if (!compute(number)) return false;
            const Segment& next = thread.segment(number + 1);
            if (number >= 0) {
                result.finish(schedule, thread.segment(number), rows, ring.free_stage(), next);
            } else if (next.is_end()) {
                if (schedule.reads_ahead()) {
                    check();
                    __syncthreads();
                    if (schedule.was_wrong()) return false;
                }
                if constexpr (Traits::Schedule::SHARES_KEYS) result.leave_semaphores(schedule);
            }
            if (next.is_end()) break;
        }
        if constexpr (Traits::Schedule::SHARES_KEYS) result.reset_semaphores(schedule);
        if constexpr (Traits::CLUSTER > 1) result.leave_cluster(schedule);
        return true;
    }

  private:
    __device__ bool compute(int number)
    {
        const Segment& of = thread.segment(number);
        int block = number < 0 ? 0 : thread.first_block(of);
        const int end = number < 0 ? 0 : thread.end_block(of);
        constexpr int NONE = -1;
        int at = NONE; // where stages are freed late: the group that has been waited for
#pragma unroll 1
        while (true) {
            if (described == number && !ring.can_load(number, described) && !describe_next(number)) return false;
            ring.fill(number, described); // also with keys of the next segment
            if (described == number) continue;
            if constexpr (!Traits::frees_late()) {
                if (block >= end) return true;
                rows.add(block * Traits::BLOCK_N + thread.first_key(), ring.wait_for_group(), [&] { ring.sync_team(); });
                ring.release_group();
                block++;
            } else {
                // The stage of the group before has been filled.
                if (at != NONE) {
                    rows.add(block * Traits::BLOCK_N + thread.first_key(), at, [&] { ring.sync_team(); });
                    block++;
                }
                if (block >= end) break;
                at = ring.wait_for_group();
            }
        }
        if constexpr (Traits::frees_late())
            if (at != NONE) ring.release_group();
        return true;
    }

    // All that is not needed for the first loads comes after them. False if what has been read ahead was wrong.
    __device__ bool describe_next(int number)
    {
        if constexpr (Traits::prepares_early()) return describe_next_early(number);
        const bool checks = number == 0 && schedule.reads_ahead();
        if (checks) check();
        if (threadIdx.x == 0) thread.segment(number + 1) = schedule.next();
        ring.wait_for_segment();
        __syncthreads();
        if (checks && schedule.was_wrong()) return false;
        described = number + 1;
        if (number >= 0) {
            rows.start(number);
            if constexpr (Traits::Schedule::SHARES_KEYS)
                if (thread.segment(number + 1).is_end()) result.leave_semaphores_early(schedule, thread.segment(number));
        } else {
            if (schedule.reads_ahead()) ring.read_first_pages();
            grid_dependency_wait();
            if (schedule.reads_ahead()) schedule.ask_again();
        }
        ring.load_segment(number + 1, group, number < 0 && schedule.reads_ahead());
        return true;
    }

    // Here nothing but queries, keys and values, and what is asked for again, may be what the launch before writes, so all the rest comes
    // ahead of the wait for it: two segments are described, the first keys are on their way to L2, and the rows begin.
    __device__ bool describe_next_early(int number)
    {
        const bool checks = number == 0 && schedule.reads_ahead();
        if (checks) check();
        const int last = number < 0 ? 1 : number + 1;
        if (threadIdx.x == 0 && number != 0)
#pragma unroll 1
            for (int i = number + 1; i <= last; i++) thread.segment(i) = schedule.next();
        ring.wait_for_segment();
        __syncthreads();
        if (checks && schedule.was_wrong()) return false;
        described = number + 1;
        if (number < 0) {
            if constexpr (!Traits::is_dense()) {
                if (!schedule.reads_ahead()) grid_dependency_wait();
                ring.read_first_pages();
            }
            ring.prefetch_first_groups();
        }
        if (number != 0) rows.start(max(number, 0));
        if (number >= 0) {
            rows.take_queries();
            if constexpr (Traits::has_lengths())
                if (thread.segment(number + 1).is_end()) result.leave_semaphores_early(schedule, thread.segment(number));
        }
        ring.load_segment_early(number + 1, group, number < 0 && schedule.reads_ahead(), [&] { schedule.ask_again(); });
        return true;
    }

    // Checks what this thread has read ahead, once the second read has arrived.
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

template <class Traits> __device__ void mma_attention(const typename Traits::Keys::Block& block)
{
    extern __shared__ __align__(128) unsigned char shared[];
    grid_dependency_launch();
    const Forward& params = Traits::Keys::forward(block);
    bool reads_ahead = Traits::Schedule::can_read_ahead(params);
#pragma unroll 1
    while (!MmaAttention<Traits>(block, params, shared, reads_ahead).run()) {
        reads_ahead = false;
        cp_async_wait<0>();
        __syncthreads();
        Ring<Traits>::end(MmaThread<Traits>(shared));
    }
}

} // namespace warptile
