#pragma once
#include "ptx/wgmma.cuh"
namespace warptile {
template <int N> struct WgmmaRows {
    template <class Element> static void shared(float (&d)[N / 2], unsigned long long a, unsigned long long b, bool add)
    {
        multiply<N>(d, add, [=](int row, int k) { return along_k<Element>(a, row, k); },
                    [=](int column, int k) { return along_rows_of_k<Element>(b, column, k); });
    }
};
}
