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
    static constexpr int COUNT = Traits::BLOCK_N / 2; // weights of a thread
    // A random number is for a cell: a thread's weights of two rows and of 4 keys that are 8 apart. Neighbouring keys have others.
    static constexpr int GROUP = 32, CELL = 8, CELLS = COUNT / CELL;
    static_assert(Traits::BLOCK_N % GROUP == 0 && !Traits::GROUPS, "whole groups of keys, and rows of one head");

  public:
    // What random numbers follow from is read once.
    __device__ explicit DroppedWeights(const ForwardTma& params)
        : dropout(dropout_of<ForwardTmaDropout>(params)), mask(dropout, 0)
    {
        for (unsigned* const word : {&mask.first, &mask.second, &mask.sequence, &mask.head, &mask.query, &mask.key})
            *word = (unsigned)uniform((int)*word);
    }

    // Replaces the weights that are dropped by 0.
    __device__ void drop_of(float (&weights)[COUNT], const Tile& tile, int first_row, int first_key) const
    {
        DropoutMask of_sequence = mask;
        of_sequence.sequence += uniform(tile.batch);
        const int head = uniform(tile.head), query = first_row + lane_row(), key = first_key + lane_column();
        const auto cell_of = [&](int number) { return of_sequence.cell(head, query, key + number / 2 * GROUP + number % 2); };
#pragma unroll
        for (int number = 0; number < CELLS; number++) {
            const DropoutCell cell = cell_of(number);
#pragma unroll
            for (int i = 0; i < CELL; i++) clear_unless(cell.keeps(i % 2, i / 2), weight_of(weights, number, i));
        }
    }

    __device__ void scale_kept(float (&factors)[ROWS_PER_THREAD]) const
    {
#pragma unroll
        for (float& one : factors) one *= dropout.factor;
    }

  private:
    // Of a cell's weights, those of two rows with one key after the other.
    __device__ static float& weight_of(float (&weights)[COUNT], int cell, int i)
    {
        return weights[cell / 2 * (GROUP / 2) + i / 2 * 4 + i % 2 * 2 + cell % 2];
    }

    const Dropout& dropout;
    DropoutMask mask; // of sequence 0
};

} // namespace warptile
