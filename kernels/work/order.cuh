// Which number a tile has. A tile has BLOCK_M rows of a head; of kernels whose rows are queries with each of the heads that share a
// key/value head, these are rows of a key/value head, and a query is several. Heads are taken `heads_at_once` at a time; among those the
// last tile of every head comes first, then the last but one of every head: under a causal mask the last ones see the most keys, and CTAs
// that work at the same time share keys and values.
//
// Dense: every head of every batch entry has `query_tiles` tiles. Packed: a head has `query_tiles` slots for all sequences
// together: rows / BLOCK_M + batch. The slots of sequence b start at its first row / BLOCK_M + b, and there are as many as it has
// tiles, or one more. So slots depend on shapes only, an uneven batch costs what its rows cost, and no lengths have to be summed.
#pragma once

#include "work/lengths.cuh"

namespace warptile {

struct TilePlace {
    int batch;
    int head;
    int tile; // of the sequence's own; one that it does not have is to be skipped
    Extent q;
    Extent k;

    // Returns true if the sequence has this tile. Invalid offsets may give any number.
    template <int BLOCK_M> __device__ bool exists(int rows_of_query = 1) const
    {
        return tile >= 0 && tile < (q.len * rows_of_query + BLOCK_M - 1) / BLOCK_M;
    }
};

// The last sequence whose slots begin at or before `slot`. It ends after log2(batch) steps even if offsets are invalid.
template <int BLOCK_M>
__device__ inline int sequence_of(const Sequences& sequences, int slot, int rows_of_query, int& first_slot)
{
    const auto first_slot_of = [&](int batch) {
        return clamped_offset(sequences.query_offsets, batch, sequences.query_rows) * rows_of_query / BLOCK_M + batch;
    };
    int low = 0, high = sequences.batch;
    first_slot = first_slot_of(0);
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        const int begin = first_slot_of(middle);
        if (begin <= slot) {
            low = middle;
            first_slot = begin;
        } else {
            high = middle;
        }
    }
    return low;
}

// `AHEAD`: the length of keys may be written until the launch before has ended (work/share.cuh), and is read past L1.
template <int BLOCK_M, bool AHEAD = false>
__device__ inline TilePlace tile_place(const Forward& params, unsigned number, int heads, int rows_of_query = 1)
{
    const Work& work = params.work;
    const bool packed = params.sequences.query_offsets;
    const unsigned all_heads = packed ? heads : heads * params.sequences.batch;
    const unsigned tiles_at_once = (unsigned)work.heads_at_once * work.query_tiles;
    const unsigned group = number / tiles_at_once;
    const unsigned first_head = group * work.heads_at_once;
    const unsigned group_heads = min((unsigned)work.heads_at_once, all_heads - first_head);
    const unsigned rest = number - group * tiles_at_once;
    const unsigned row = rest / group_heads;
    const int batch_head = first_head + rest - row * group_heads;
    const int slot = work.query_tiles - 1 - row;

    TilePlace place;
    if (packed) {
        int first_slot;
        place.batch = sequence_of<BLOCK_M>(params.sequences, slot, rows_of_query, first_slot);
        place.head = batch_head;
        place.tile = slot - first_slot;
    } else {
        place.batch = batch_head / heads;
        place.head = batch_head - place.batch * heads;
        place.tile = slot;
    }
    place.q = queries_of(params.sequences, place.batch);
    const bool ahead = AHEAD && params.sequences.key_lengths && !params.sequences.key_offsets;
    place.k = ahead ? Extent{0, key_length_ahead(params.sequences, place.batch)} : keys_of(params.sequences, place.batch);
    return place;
}

} // namespace warptile
