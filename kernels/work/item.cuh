// The work of one CTA: BLOCK_M query rows of one head of one sequence.
#pragma once

#include "memory/copy.cuh"
#include "rule/score.cuh"
#include "work/order.cuh"

namespace warptile {

template <class Element> struct WorkItem {
    Rows<const Element> q;
    Rows<const Element> k;
    Rows<const Element> v;
    Rows<Element> out;
    float* lse;      // of query row 0; null when not wanted
    HeadTerms terms;
    int batch;
    int head;
    int first_query; // first row of the tile
    int query_len;   // of this sequence
    int key_len;     // of this sequence
};

// The CTA's tile, for kernels whose grid is the number of tiles. All threads call it, once. One thread reads the lengths on the device
// and hands them to the others through `shared`, so that all threads agree even if the lengths change.
template <int BLOCK_M> __device__ inline TilePlace place_of_cta(const Forward& params, TilePlace& shared)
{
    if (!reads_lengths(params.sequences)) return tile_place<BLOCK_M>(params, blockIdx.x, params.heads);
    if (threadIdx.x == 0) shared = tile_place<BLOCK_M>(params, blockIdx.x, params.heads);
    __syncthreads();
    return shared;
}

// Computes the tile's place again from an opaque copy of its number, so that the compiler does not keep the place in registers.
template <int BLOCK_M> __device__ inline TilePlace place_again(const Forward& params, const TilePlace& shared)
{
    if (reads_lengths(params.sequences)) return shared;
    unsigned number = blockIdx.x;
    asm volatile("" : "+r"(number));
    return tile_place<BLOCK_M>(params, number, params.heads);
}

template <int BLOCK_M, class Element>
__device__ inline WorkItem<Element> work_item(const Forward& params, const TilePlace& place)
{
    const int kv_head = place.head / (params.heads / params.kv_heads);
    const auto rows = [&](const Tensor& tensor, int head, int first) {
        return static_cast<Element*>(tensor.address) + place.batch * tensor.batch + head * tensor.head + first * tensor.row;
    };
    return {
        {rows(params.q, place.head, place.q.first), params.q.row},
        {rows(params.k, kv_head, place.k.first), params.k.row},
        {rows(params.v, kv_head, place.k.first), params.v.row},
        {rows(params.out, place.head, place.q.first), params.out.row},
        params.lse ? params.lse + place.batch * params.lse_batch + place.head * params.lse_head + place.q.first : nullptr,
        HeadTerms::of(params.scoring, place.batch, place.head),
        place.batch,
        place.head,
        place.tile * BLOCK_M,
        place.q.len,
        place.k.len,
    };
}

} // namespace warptile
