// Dropout in the kernels on wgmma: a thread's weights of a block, those of two rows 8 apart and of two keys of every 8.
#pragma once

#include "forward/wgmma_softmax.cuh"
#include "ptx/clear.cuh"

namespace warptile {

template <class Traits, bool DROPS = drops<Traits>()> class DroppedWeights {
  public:
    __device__ explicit DroppedWeights(const ForwardTma&) {}
    template <class Factors> __device__ void scale_kept(Factors&) const {}
};

template <class Traits> class DroppedWeights<Traits, true> {
    using Kept = KeptByBytes<typename Traits::Element>;
    static constexpr int COUNT = Traits::BLOCK_N / 4; // pairs of a thread's weights
    static constexpr int CELL = 8;                    // those of a cell
    static_assert(Traits::BLOCK_N % DropoutCell::STRIDE == 0 && !Traits::GROUPS, "whole cells, and rows of one head");

  public:
    // What random numbers follow from is read once.
    __device__ explicit DroppedWeights(const ForwardTma& params)
        : dropout(dropout_of<ForwardTmaDropout>(params)), mask(dropout, 0)
    {
        for (unsigned* const word : {&mask.first, &mask.second, &mask.sequence, &mask.head, &mask.query, &mask.key})
            *word = (unsigned)uniform((int)*word);
        if constexpr (Traits::HOLDS_CELLS) {
            if (thread_index() % 32 == 0) held<DropoutMask>(Traits::MASKS_AT, warp()) = mask;
            __syncwarp();
        }
    }

    // Before the weights of a tile. `first_row` is the warpgroup's.
    __device__ void begin(const Tile& tile, int first_row)
    {
        DropoutMask of_sequence = kept_mask();
        of_sequence.sequence += uniform(tile.batch);
        const DropoutCells own(of_sequence, uniform(tile.head), first_row + lane_row());
        if constexpr (Traits::HOLDS_CELLS) {
            __syncwarp(); // those of the tile before have been read
            if (thread_index() % 4 == 0) held_row() = {own, of_sequence.key};
            __syncwarp();
        } else
            cells = own;
    }

    // Replaces the weights of a block that are dropped by 0.
    __device__ void drop_of(unsigned (&weights)[COUNT], int first_key) const
    {
        const Row row = Traits::HOLDS_CELLS ? held_row() : Row{cells, mask.key};
        const unsigned first_cell = (row.key + first_key) / 8 + thread_index() % 4, dropped = Traits::HOLDS_CELLS ? dropout.dropped : mask.dropped, threshold = dropped >> 8;
        const unsigned least = uniform(Kept::least(threshold) * 0x10001u), raised = uniform(Kept::least(threshold + 1) * 0x10001u);
#pragma unroll
        for (int number = 0; number < COUNT / CELL; number++) {
            const DropoutCell cell = {row.cells.words(first_cell + number * (DropoutCell::STRIDE / 8)), dropped};
            const unsigned of_cell = cell.is_raised() ? raised : least;
#pragma unroll
            for (int i = 0; i < CELL; i++) {
                const unsigned numbers = __byte_perm(cell.word(i / 2), Kept::HIGH, i % 2 == 0 ? 0x4140 : 0x4342);
                unsigned& two = weights[number * CELL + i];
                two = Kept::kept(two, Kept::compared(numbers, of_cell));
            }
        }
    }

    __device__ void scale_kept(float (&factors)[ROWS_PER_THREAD]) const
    {
#pragma unroll
        for (float& one : factors) one *= dropout.factor;
    }

  private:
    struct alignas(16) Row {
        DropoutCells cells;
        unsigned key; // of the sequence's first
    };

    // In shared memory, where registers have no room: a warp's mask, and its 8 rows. Those 8 further have the same cells.
    template <class T> __device__ static T& held(int at, int number)
    {
        return *reinterpret_cast<T*>(dynamic_shared<SWIZZLE_GROUP_BYTES>() + at + number * Traits::HELD_BYTES);
    }
    __device__ static int warp() { return thread_index() / 32 - WARPGROUP_WARPS; }
    __device__ static Row& held_row() { return held<Row>(Traits::CELLS_AT, thread_index() / 4 - WARPGROUP_THREADS / 4); }
    __device__ const DropoutMask& kept_mask() const
    {
        if constexpr (Traits::HOLDS_CELLS) return held<DropoutMask>(Traits::MASKS_AT, warp());
        return mask;
    }

    const Dropout& dropout;
    DropoutMask mask;   // of sequence 0
    DropoutCells cells; // those of the thread's rows
};

} // namespace warptile
