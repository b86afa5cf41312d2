// Where a sequence begins and how long it is. Offsets and lengths on the device are not validated. Every number read here is clamped
// to the limits that the host gave, so that no address lies outside of the tensors.
//
// They may even change during a launch: a CTA reads them once, and hands what it read to all its threads. Where it reads ahead
// (work/share.cuh), the launch before may still be writing them: then it reads them again when that has ended.
#pragma once

#include "base/abi.cuh"

namespace warptile {

// One side of a sequence.
struct Extent {
    int first; // row in the tensor; 0 for dense ones, whose batch entries have a stride
    int len;
};

__device__ inline int clamped_length(int length, int bound) { return min(bound, max(length, 0)); }
__device__ inline int clamped_offset(const int* offsets, int index, int rows) { return clamped_length(offsets[index], rows); }

__device__ inline Extent extent_of(const int* offsets, const int* lengths, int bound, int rows, int batch)
{
    Extent extent = {0, bound};
    if (offsets) {
        extent.first = clamped_offset(offsets, batch, rows);
        extent.len = min(max(clamped_offset(offsets, batch + 1, rows) - extent.first, 0), bound);
    }
    if (lengths) extent.len = clamped_length(lengths[batch], extent.len);
    return extent;
}

__device__ inline Extent queries_of(const Sequences& sequences, int batch)
{
    return extent_of(sequences.query_offsets, sequences.query_lengths, sequences.query_len, sequences.query_rows, batch);
}

// Past L1, so that what is read once more after the launch before has ended is what it wrote.
__device__ inline int key_length_ahead(const Sequences& sequences, int batch)
{
    return clamped_length(__ldcg(sequences.key_lengths + batch), sequences.key_len);
}

__device__ inline Extent keys_of(const Sequences& sequences, int batch)
{
    return extent_of(sequences.key_offsets, sequences.key_lengths, sequences.key_len, sequences.key_rows, batch);
}

// Returns true if offsets or lengths lie on the device and have to be read.
__device__ inline bool reads_lengths(const Sequences& sequences) { return sequences.ragged & RAGGED; }

// Returns true if a sequence's last row of k and v may be followed by rows of another sequence, or by unused rows.
__device__ inline bool keys_are_followed(const Sequences& sequences) { return sequences.ragged & RAGGED_KEYS; }

} // namespace warptile
