// Rows of a head of which the pre-pass leaves numbers: tiles of 64, by heads, and of a packed call's sequences as many as their lengths may need.
#pragma once

#include "base/abi_backward.cuh"
#include "work/order.cuh"

namespace warptile {

struct RowTile {
    int batch, entry, head; // `entry`: where batch entries have strides
    int first;              // row of the sequence
    Extent q;
};

__device__ inline RowTile row_tile(const Sequences& sequences, int heads, int tiles, int number)
{
    const int slot = number % tiles, of_all = number / tiles;
    RowTile rows;
    int tile = slot;
    if (sequences.query_offsets) {
        int first_slot;
        rows.entry = 0;
        rows.head = of_all;
        rows.batch = sequence_of<PREPASS_ROWS>(sequences, slot, 1, first_slot);
        tile = slot - first_slot;
    } else {
        rows.entry = rows.batch = of_all / heads;
        rows.head = of_all % heads;
    }
    rows.first = tile * PREPASS_ROWS;
    rows.q = queries_of(sequences, rows.batch);
    return rows;
}

} // namespace warptile
