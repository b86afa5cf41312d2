// Merges results of attention over disjoint keys: each counts with the share that its keys have of the softmax's denominator. Parts without
// an lse are floats, and are added.
//
// Sums run over the parts in their order, in fp32, so the bits do not depend on the launch. A part whose lse is -inf saw no key, and
// its output is not read. The same holds for +inf, which FlashAttention 2 writes for rows without keys. A NaN propagates to the row's
// output and lse.
#pragma once

#include "base/math.cuh"
#include "memory/chunk.cuh"
#include "ops/traits.cuh"

namespace warptile {

__device__ inline bool saw_keys(float lse) { return !(fabsf(lse) == positive_infinity()); }

// The sums of `count` floats of each part, from `column` on.
template <class Element> __device__ inline Chunk<Element> sum_of_floats(const Merge& params, int batch, int row, int head, int column, int count)
{
    float sums[CHUNK<Element>] = {};
    for (int part = 0; part < params.parts; ++part) {
        const Tensor& addend = params.outs[part];
        const float* const from = row_of<const float>(addend, batch, row, head) + column;
        const bool whole = count == CHUNK<Element> && in_chunks<float>(addend);
#pragma unroll
        for (int i = 0; i < CHUNK<Element>; i += CHUNK<float>) {
            const Chunk<float> chunk = load_chunk(from + i, whole, count - i);
#pragma unroll
            for (int j = 0; j < CHUNK<float>; ++j) sums[i + j] += chunk.elements[j];
        }
    }
    Chunk<Element> result;
#pragma unroll
    for (int i = 0; i < CHUNK<Element>; ++i) result.elements[i] = narrow<Element>(sums[i]);
    return result;
}

template <class Traits> __device__ inline void merge_results(const Merge& params)
{
    using Element = typename Traits::Element;
    begin_in_order();
    const int chunks = (params.head_dim + CHUNK<Element> - 1) / CHUNK<Element>;
    const unsigned row_of_all = blockIdx.x / params.row_ctas;
    const unsigned item = blockIdx.x % params.row_ctas * Traits::THREADS + threadIdx.x;
    const int batch = row_of_all / params.rows, row = row_of_all % params.rows;
    const int head = item / chunks, column = item % chunks * CHUNK<Element>;
    if (head >= params.heads) return;
    const int count = min(CHUNK<Element>, params.head_dim - column);
    const bool stores_whole = count == CHUNK<Element> && in_chunks<Element>(params.out);
    Element* const to = row_of<Element>(params.out, batch, row, head) + column;
    if (!params.lses[0].address) {
        store_chunk(to, sum_of_floats<Element>(params, batch, row, head, column, count), stores_whole, count);
        return;
    }

    float greatest = negative_infinity();
    bool any = false;
    for (int part = 0; part < params.parts; ++part) {
        const float lse = *row_of<float>(params.lses[part], batch, row, head);
        if (!saw_keys(lse)) continue;
        any = true;
        greatest = fmaxf(greatest, lse); // the other one of a NaN
    }

    float sum = 0, sums[CHUNK<Element>] = {};
    for (int part = 0; part < params.parts; ++part) {
        const float lse = *row_of<float>(params.lses[part], batch, row, head);
        if (!saw_keys(lse)) continue;
        const float weight = params.base_two ? exp2f(lse - greatest) : expf(lse - greatest);
        const Tensor& out = params.outs[part];
        const bool whole = count == CHUNK<Element> && in_chunks<Element>(out);
        const Chunk<Element> chunk = load_chunk(row_of<const Element>(out, batch, row, head) + column, whole, count);
        sum += weight;
#pragma unroll
        for (int i = 0; i < CHUNK<Element>; ++i) sums[i] = fmaf(weight, widen(chunk.elements[i]), sums[i]);
    }

    Chunk<Element> merged;
    if (any) {
        const float scale = 1 / sum;
#pragma unroll
        for (int i = 0; i < CHUNK<Element>; ++i) merged.elements[i] = narrow<Element>(sums[i] * scale);
    }
    store_chunk(to, merged, stores_whole, count);
    if (column == 0 && params.lse.address) {
        const float logarithm = params.base_two ? log2f(sum) : logf(sum);
        *row_of<float>(params.lse, batch, row, head) = any ? greatest + logarithm : negative_infinity();
    }
}

} // namespace warptile
