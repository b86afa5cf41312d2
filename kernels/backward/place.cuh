// The tile of keys or queries of a CTA of the backward pass. Tiles are numbered as in forward (work/order.cuh). Heads are taken
// `heads_at_once` at a time, and their longest tiles come first: under a causal mask the first keys, and the last queries. A remainder
// of heads comes before the full groups, so that the last tiles are short ones of many heads.
#pragma once

#include "base/abi_backward.cuh"
#include "work/order.cuh"

namespace warptile {

struct GradientPlace {
    int batch;
    int head;  // of keys a key/value head
    int first; // row of the sequence
    Extent q, k;
    long long numbers; // of head 0: where `delta` and `scaled_lse` have the sequence's first row

    // Where a head's are.
    __device__ long long numbers_of(const Backward& params, int q_head) const
    {
        return numbers + (long long)q_head * params.rows.query_tiles * PREPASS_ROWS;
    }
    // Returns true if the sequence has the tile: its first row is not past the end. Invalid offsets may give any number.
    __device__ bool exists(bool of_keys) const { return first >= 0 && first < (of_keys ? k.len : q.len); }
};

template <int BLOCK, bool OF_KEYS> __device__ inline GradientPlace gradient_place(const Backward& params, unsigned number)
{
    const BackwardWork& work = params.work;
    const int heads = OF_KEYS ? params.kv_heads : params.heads;
    Sequences side = params.sequences;
    if (OF_KEYS) {
        side.query_offsets = side.key_offsets;
        side.query_rows = side.key_rows;
    }
    const bool packed = side.query_offsets;
    const unsigned all_heads = packed ? heads : heads * side.batch;
    const unsigned at_once = work.heads_at_once, missing = (at_once - all_heads % at_once) % at_once;
    const unsigned group = (number + missing * work.head_tiles) / (at_once * work.head_tiles);
    const unsigned first_head = group == 0 ? 0 : group * at_once - missing;
    const unsigned group_heads = group == 0 ? at_once - missing : at_once;
    const unsigned rest = number - first_head * work.head_tiles;
    const unsigned row = rest / group_heads;
    const int batch_head = first_head + rest - row * group_heads;
    const int slot = OF_KEYS ? row : work.head_tiles - 1 - row;

    GradientPlace place;
    int tile = slot;
    if (packed) {
        int first_slot;
        place.batch = sequence_of<BLOCK>(side, slot, 1, first_slot);
        place.head = batch_head;
        tile = slot - first_slot;
    } else {
        place.batch = batch_head / heads;
        place.head = batch_head - place.batch * heads;
    }
    place.first = tile * BLOCK;
    place.q = queries_of(params.sequences, place.batch);
    place.k = keys_of(params.sequences, place.batch);
    const long long tiles = params.sequences.query_offsets ? place.q.first / PREPASS_ROWS + place.batch
                                                           : (long long)place.batch * params.heads * params.rows.query_tiles;
    place.numbers = tiles * PREPASS_ROWS;
    return place;
}

} // namespace warptile
