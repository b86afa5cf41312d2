// Numbers of a gradient, from registers to where they belong: rounded or as fp32, also on top of what is there.
#pragma once

#include "base/abi_backward.cuh"
#include "base/element.cuh"
#include "memory/chunk.cuh"
#include "ptx/transpose.cuh"

namespace warptile {

template <class Element> __device__ inline void write_pair(const Tensor& to, int gradients, long long at, float first, float second)
{
    if (gradients & GRADIENTS_F32) {
        float2& pair = *reinterpret_cast<float2*>(static_cast<float*>(to.address) + at);
        if (gradients & GRADIENTS_ADD) first += pair.x, second += pair.y;
        pair = {first, second};
    } else {
        Element* const pair = static_cast<Element*>(to.address) + at;
        if (gradients & GRADIENTS_ADD) first += widen(pair[0]), second += widen(pair[1]);
        *reinterpret_cast<unsigned*>(pair) = narrow2<Element>(first, second);
    }
}

// Returns true if rows of a gradient are written 16 bytes at a time: rounded ones that replace the old contents.
template <class Element> __device__ inline bool writes_chunks(const Tensor& to, int gradients, int dim)
{
    return gradients == 0 && dim % CHUNK<Element> == 0 && in_chunks<Element>(to);
}

// Writes four groups of eight columns, from `column` on. Each of four lanes holds two numbers of each group, as a matrix product leaves
// them. All lanes of a warp call this; `exists` is true if the lane's row, which begins at `row`, is to be written. AT_ONCE: 16 bytes are
// surely one store, where the compiler would make four of the first ones (docs/notebook/backward.md).
template <class Element, bool AT_ONCE = false>
__device__ inline void write_groups(const Tensor& to, int gradients, bool chunks, long long row, bool exists, int column, int dim, const float2 (&pairs)[4])
{
    const int lane = threadIdx.x % 4;
    if (chunks) {
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = narrow2<Element>(pairs[i].x, pairs[i].y);
        transpose_among_four(words);
        if (exists && column + 8 * lane < dim) {
            uint4* const place = reinterpret_cast<uint4*>(static_cast<Element*>(to.address) + row + column + 8 * lane);
            if constexpr (AT_ONCE)
                __stcg(place, {words[0], words[1], words[2], words[3]});
            else
                *place = {words[0], words[1], words[2], words[3]};
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = column + 8 * i + 2 * lane;
            if (exists && at < dim) write_pair<Element>(to, gradients, row + at, pairs[i].x, pairs[i].y);
        }
    }
}

} // namespace warptile
