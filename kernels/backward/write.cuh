// Two neighbouring numbers of a gradient, from registers to where they belong: rounded or as fp32, also on top of what is there.
#pragma once

#include "base/abi_backward.cuh"
#include "base/element.cuh"

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

} // namespace warptile
