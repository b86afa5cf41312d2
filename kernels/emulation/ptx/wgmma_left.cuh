#pragma once
#include "ptx/wgmma.cuh"
namespace warptile {
template <class Element> void wgmma_left(float (&d)[32], const unsigned (&a)[4], unsigned long long b, bool add)
{
    multiply_left<64, Element>(d, a, [=](int column, int k) { return along_k<Element>(b, column, k); }, add);
}
}
