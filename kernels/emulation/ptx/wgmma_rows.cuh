#pragma once
#include "ptx/wgmma.cuh"
namespace warptile {
template <int N> struct WgmmaRows {
    template <class Element> static void shared(float (&d)[N / 2], unsigned long long a, unsigned long long b, bool add)
    {
        float rows[2][MMA_K];
        Columns<N> columns;
        read_rows<Element>(a, rows);
        columns.template read_along_rows<Element>(b);
        multiply<N>(d, add, rows, columns);
    }
};
}
