// Tiles of keys of the backward kernels for Hopper. A persistent CTA draws one after the other.
#pragma once

#include "backward/place.cuh"
#include "backward/span.cuh"
#include "base/abi_backward_tma.cuh"
#include "ptx/bulk.cuh"
#include "ptx/sm90.cuh"
#include "ptx/wgmma.cuh"
#include "rule/dropout.cuh"

namespace warptile {

// A tile of keys, and the blocks of queries that it visits, for each head that shares the keys.
struct KeyTile {
    int exists; // else there are no more; with dropout and ALiBi also the sequence's number, from 1 on
    int query_entry, key_entry, kv_head, first_key; // entries: where batch entries have strides
    Extent q, k;
    int first_block, end_block;
    int row_tile; // of the pre-pass: block 0 of the first head that shares the keys
    int heads;    // that share the keys

    __device__ Mask mask(const Backward& params) const { return Mask(params.scoring, q.len, k.len); }
    // Where the tile's own rows are.
    __device__ int own_entry() const { return key_entry; }
    __device__ int own_head() const { return kv_head; }
    __device__ const Extent& own() const { return k; }
};

// Draws a tile, and describes it. Each CTA draws once in vain, so the counter is 0 again behind the last draw of the launch.
template <class Traits> __device__ inline void draw_tile(const Backward& params, KeyTile& tile)
{
    const unsigned number = increment_and_wrap_relaxed(params.work.counter, params.work.tiles + gridDim.x - 1);
    tile.exists = number < params.work.tiles;
    if (!tile.exists) return;
    const GradientPlace place = gradient_place<Traits::BLOCK_N, true>(params, number);
    const int heads = params.heads / params.kv_heads;
    BlockSpan span = {0, 0};
    if (place.exists(true)) span = Visits<Traits::BLOCK_M, Traits::BLOCK_N>{Mask(params.scoring, place.q.len, place.k.len)}.blocks_of(place.first);
    tile.query_entry = params.sequences.query_offsets ? 0 : place.batch;
    tile.key_entry = params.sequences.key_offsets ? 0 : place.batch;
    tile.kv_head = place.head;
    // Nothing is written of a tile that the sequence does not have.
    tile.first_key = place.exists(true) ? place.first : place.k.len;
    tile.q = place.q;
    tile.k = place.k;
    tile.first_block = span.first;
    tile.end_block = span.end;
    tile.row_tile = place.numbers_of(params, place.head * heads) / PREPASS_ROWS;
    tile.heads = heads;
    if constexpr (drops<Traits>() || Traits::FEATURES & FEATURE_ALIBI) tile.exists += place.batch;
}

} // namespace warptile
