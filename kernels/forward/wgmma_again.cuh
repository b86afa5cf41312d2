// The scores of a block once more, 16 keys at a time, by a warp for itself: wgmma would need the other three. Of a plain block whose
// weights took the scores' place before one of them proved to be infinite or not a number, or whose rows had no maximum yet: weights that are
// only too large are lowered (forward/wgmma_softmax.cuh). That is rare, so it takes few registers rather than little time.
#pragma once

#include "forward/wgmma_layout.cuh"
#include "ptx/mma.cuh"

namespace warptile {

template <class Traits> class ScoresAgain {
  public:
    static constexpr int KEYS = 2 * FRAGMENT_COLUMNS;
    static constexpr int COUNT = KEYS / 2; // scores a thread

    // `queries` and `keys`: the warpgroup's rows and the block in shared memory, in slabs of 64 columns. Chunks of 16 bytes are swizzled:
    // a chunk's number is xored with the row's last three bits.
    __device__ ScoresAgain(unsigned queries, unsigned keys)
    {
        const int lane = thread_index() % 32, warp = thread_index() % WARPGROUP_THREADS / 32;
        // Where the lane's row of the matrices begins, at its chunk of the first step.
        const auto place = [](int row, int chunk) { return row * SWIZZLE_BYTES + (row % 8 ^ chunk) * 16; };
        queries_at = queries + place(warp * FRAGMENT_ROWS + lane % 16, lane / 16);
        keys_at = keys + place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    }

    // Those of the calling warp's 16 rows and the keys from `first_key` on, laid out as wgmma does.
    __device__ void multiply(int first_key, float (&scores)[COUNT]) const
    {
        constexpr int STEPS_PER_SLAB = SLAB_COLUMNS / FRAGMENT_DEPTH, STEP_BYTES = FRAGMENT_DEPTH * (int)sizeof(Element);
        float sums[2][4] = {};
#pragma unroll 1
        for (int step = 0; step < Traits::HEAD_DIM / FRAGMENT_DEPTH; step++) {
            const int slab = step / STEPS_PER_SLAB;
            const unsigned chunks = step % STEPS_PER_SLAB * STEP_BYTES; // the first of two is an even one
            unsigned left[4], right[4];
            load_matrices(left, (queries_at ^ chunks) + slab * Traits::QUERY_SLAB_BYTES);
            load_matrices(right, (keys_at ^ chunks) + slab * Traits::KEY_SLAB_BYTES + first_key * SWIZZLE_BYTES);
            mma<Element>(sums[0], left, right[0], right[1]);
            mma<Element>(sums[1], left, right[2], right[3]);
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) scores[i] = sums[i / 4][i % 4];
    }

  private:
    using Element = typename Traits::Element;
    unsigned queries_at, keys_at; // the lane's row of the first matrices
};

} // namespace warptile
