// What one CTA computes: BLOCK_M query rows of one head of one sequence.
#pragma once

#include "memory/copy.cuh"
#include "base/params.cuh"

namespace warptile {

template <class Element> struct WorkItem {
    Rows<const Element> q;
    Rows<const Element> k;
    Rows<const Element> v;
    Rows<Element> out;
    float* lse;      // of query row 0; null when not wanted
    float alibi_slope; // 0 without ALiBi
    int first_query; // first row of the tile
    int query_len;   // of this sequence; the tile is empty when first_query >= query_len
    int key_len;     // of this sequence
};

// The grid is one-dimensional, x = query tile + query_tiles * (head + heads * batch). Tiles are taken from the last to
// the first: under a causal mask the last ones see the most keys, and the longest work should start first.
template <int BLOCK_M, class Element>
__device__ inline WorkItem<Element> work_item(const AttentionParams& params, int block = blockIdx.x)
{
    const int tile = params.query_tiles - 1 - block % params.query_tiles;
    const int head = block / params.query_tiles % params.heads;
    const int batch = block / params.query_tiles / params.heads;
    const int kv_head = head / (params.heads / params.kv_heads);

    // Row offsets of the sequence and its lengths: packed tensors lay sequences end to end, dense ones have a batch stride.
    long long first_q = 0, first_k = 0;
    int query_len = params.query_len, key_len = params.key_len;
    if (params.cu_seqlens_q) {
        first_q = params.cu_seqlens_q[batch];
        query_len = params.cu_seqlens_q[batch + 1] - (int)first_q;
    }
    if (params.cu_seqlens_k) {
        first_k = params.cu_seqlens_k[batch];
        key_len = params.cu_seqlens_k[batch + 1] - (int)first_k;
    }
    const auto offset = [&](const Strides& stride, int head, long long row) {
        return batch * stride.batch + head * stride.head + row * stride.row;
    };
    return {
        {static_cast<const Element*>(params.q) + offset(params.q_stride, head, first_q), params.q_stride.row},
        {static_cast<const Element*>(params.k) + offset(params.k_stride, kv_head, first_k), params.k_stride.row},
        {static_cast<const Element*>(params.v) + offset(params.v_stride, kv_head, first_k), params.v_stride.row},
        {static_cast<Element*>(params.out) + offset(params.out_stride, head, first_q), params.out_stride.row},
        params.lse ? params.lse + batch * params.lse_batch_stride + head * params.lse_head_stride + first_q : nullptr,
        params.alibi_slopes ? params.alibi_slopes[batch * params.alibi_batch_stride + head] : 0.0f,
        tile * BLOCK_M,
        query_len,
        key_len,
    };
}

} // namespace warptile
