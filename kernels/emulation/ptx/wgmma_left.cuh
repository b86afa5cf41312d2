#pragma once
#include "ptx/wgmma.cuh"
namespace warptile {
template <class Element> void wgmma_left(float (&d)[32], const unsigned (&a)[4], unsigned long long b, bool add)
{
    Columns<64> columns;
    columns.read_along_k<Element>(b);
    multiply_left<64, Element>(d, add, a, columns);
}
}
