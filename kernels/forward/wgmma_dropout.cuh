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
    }

    // Before the weights of a tile. `first_row` is the warpgroup's.
    __device__ void begin(const Tile& tile, int first_row)
    {
        if constexpr (Traits::drops_under_scores()) cells = cells_of(tile, first_row);
    }

    // Replaces the weights of a block that are dropped by 0.
    __device__ void drop_of(unsigned (&weights)[COUNT], const Tile& tile, int first_row, int first_key) const
    {
        const DropoutCells cells = Traits::drops_under_scores() ? this->cells : cells_of(tile, first_row);
        const unsigned first_cell = (mask.key + first_key) / 8 + thread_index() % 4, threshold = mask.dropped >> 8;
        const unsigned least = uniform(Kept::least(threshold) * 0x10001u), raised = uniform(Kept::least(threshold + 1) * 0x10001u);
#pragma unroll
        for (int number = 0; number < COUNT / CELL; number++) {
            const DropoutCell cell = {cells.words(first_cell + number * (DropoutCell::STRIDE / 8)), mask.dropped};
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
    // Those of the thread's rows.
    __device__ DropoutCells cells_of(const Tile& tile, int first_row) const
    {
        DropoutMask of_sequence = mask;
        of_sequence.sequence += uniform(tile.batch);
        return DropoutCells(of_sequence, uniform(tile.head), first_row + lane_row());
    }

    const Dropout& dropout;
    DropoutMask mask; // of sequence 0
    DropoutCells cells;
};

} // namespace warptile
