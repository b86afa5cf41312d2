// Parts of a tile whose keys several CTAs share. Each computing warpgroup stores its part, and the last one to arrive adds them up, in
// the order of the keys, so that the result does not depend on which one is last. No warpgroup waits.
#pragma once

#include "forward/wgmma_softmax.cuh"
#include "ptx/launch.cuh"
#include "rule/partial.cuh"

namespace warptile {

// The parts of one tile and warpgroup. A part lies in the workspace as the threads hold it, 16 bytes of one thread after those of
// another: first the output, not yet divided, then the maxima and sums of their rows, each thread's over its own columns.
template <class Traits> class Parts {
  public:
    __device__ Parts(const Forward& params, const Part& part, int warpgroup)
        : work(params.work), first((part.tile * params.work.splits) * Traits::CONSUMERS + warpgroup), own(part.split),
          semaphore(part.tile * Traits::CONSUMERS + warpgroup)
    {
    }

    // Stores this part. Without `has_output` no row has seen a key: the output is not written, and not read later.
    __device__ void leave(const float (&output)[Traits::VALUE_DIM / 2], const RowState<Traits>& state, bool has_output) const
    {
        float4* const to = words_of(own);
        __stcg(to + CHUNKS * WARPGROUP_THREADS, {-state.offset[0], state.sum[0], -state.offset[1], state.sum[1]});
        if (has_output)
#pragma unroll
            for (int i = 0; i < CHUNKS; i++)
                __stcg(to + i * WARPGROUP_THREADS, {output[4 * i], output[4 * i + 1], output[4 * i + 2], output[4 * i + 3]});
    }

    // Called by one thread once all have left theirs. The semaphore is 0 again when the last part has come.
    __device__ unsigned arrive() const { return increment_and_wrap(work.semaphores + semaphore, work.splits - 1); }
    __device__ bool is_last(unsigned arrived) const { return arrived == work.splits - 1; }

    __device__ void add_up(float (&output)[Traits::VALUE_DIM / 2], RowState<Traits>& state) const
    {
        float max[ROWS_PER_THREAD] = {negative_infinity(), negative_infinity()};
#pragma unroll 1
        for (int split = 0; split < work.splits; split++) {
            const float4 rows = __ldcg(words_of(split) + CHUNKS * WARPGROUP_THREADS);
            max[0] = fmaxf(max[0], rows.x);
            max[1] = fmaxf(max[1], rows.z);
        }
#pragma unroll
        for (int i = 0; i < Traits::VALUE_DIM / 2; i++) output[i] = 0;
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            state.offset[row] = -max[row];
            state.sum[row] = 0;
        }
#pragma unroll
        for (int begin = 0; begin < CHUNKS; begin += CHUNKS_AT_ONCE)
#pragma unroll 1
            for (int split = 0; split < work.splits; split++) {
                const float4* const from = words_of(split);
                const float4 rows = __ldcg(from + CHUNKS * WARPGROUP_THREADS);
                // Neither row has seen a key. A NaN is one.
                if (fmaxf(rows.x, rows.z) == negative_infinity() && rows.y + rows.w == 0) continue;
                const float take[ROWS_PER_THREAD] = {rescale(rows.x, max[0]), rescale(rows.z, max[1])};
                if (begin == 0) {
                    state.sum[0] += rows.y * take[0];
                    state.sum[1] += rows.w * take[1];
                }
#pragma unroll
                for (int i = begin; i < begin + CHUNKS_AT_ONCE; i++) {
                    const float4 words = __ldcg(from + i * WARPGROUP_THREADS);
                    output[4 * i] += words.x * take[0];
                    output[4 * i + 1] += words.y * take[0];
                    output[4 * i + 2] += words.z * take[1];
                    output[4 * i + 3] += words.w * take[1];
                }
            }
    }

    // The word in which all parts of the tile and warpgroup are counted.
    __device__ unsigned* semaphore_word() const { return work.semaphores + semaphore; }

    __device__ float4* words_of(int split, int thread) const
    {
        return reinterpret_cast<float4*>(work.partials) + (unsigned long long)(first + split * Traits::CONSUMERS) * WORDS + thread;
    }

    static constexpr int CHUNKS = Traits::VALUE_DIM / 8; // of 8 columns, 16 bytes a thread

  private:
    // Chunks that are added up at a time. ptxas keeps all their loads in flight, and at head size 256 the output leaves few registers.
    static constexpr int CHUNKS_AT_ONCE = Traits::VALUE_DIM == 256 ? 8 : CHUNKS;
    static constexpr int WORDS = (CHUNKS + 1) * WARPGROUP_THREADS; // a part's, of 16 bytes
    static_assert(WORDS * sizeof(float4) == MMA_ROWS * (Traits::VALUE_DIM + abi::SPLIT_PART_SUMS) * sizeof(float), "as the host makes room for it");

    __device__ float4* words_of(int split) const { return words_of(split, thread_index() % WARPGROUP_THREADS); }

    const Work& work;
    const int first; // part in the workspace; the next one of the warpgroup is CONSUMERS further on
    const int own;
    const int semaphore;
};

} // namespace warptile
