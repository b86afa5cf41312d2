#pragma once
#include "base/element.cuh"
#include "ptx/sm90.cuh"
#pragma GCC push_options
#pragma GCC optimize("O3")
// Products end when they are asked for. hopper/ has other ones, for kernels whose waits are looked at.
namespace warptile {
constexpr int MMA_ROWS = 64, MMA_K = 16, SWIZZLE_BYTES = 128, SWIZZLE_GROUP_BYTES = 8 * SWIZZLE_BYTES;
inline unsigned long long matrix_descriptor(unsigned address, unsigned leading_bytes) { return (unsigned long long)leading_bytes << 32 | address; }
inline unsigned long long advance_descriptor(unsigned long long descriptor, unsigned bytes) { return descriptor + bytes; }
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int> void wgmma_wait() { WB(); } // lanes of a warp meet (.sync.aligned)
template <int COUNT> void pin(float (&)[COUNT]) {}
template <int COUNT> void pin(unsigned (&)[COUNT]) {}
template <class Element> unsigned pack(float low, float high) { return narrow2<Element>(low, high); }
// Eight elements of 16 bytes, as numbers.
template <class Element> void widen_chunk(unsigned address, float* to)
{
    Element elements[8];
    memcpy(elements, shared + swizzled(address), sizeof elements);
    for (int i = 0; i < 8; i++) to[i] = widen(elements[i]);
}
// A row of an operand whose K is contiguous.
template <class Element> void read_row(unsigned long long descriptor, int row, float (&to)[MMA_K])
{
    for (int k = 0; k < MMA_K; k += 8) widen_chunk<Element>((unsigned)descriptor + row * SWIZZLE_BYTES + k * 2, to + k);
}
// Of each 8 columns the pair that the calling lane has, for each K.
template <int N> struct Columns {
    float numbers[MMA_K][N / 4];
    template <class Element> void read_along_k(unsigned long long descriptor)
    {
        for (int i = 0; i < N / 4; i++) {
            float column[MMA_K];
            read_row<Element>(descriptor, i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2, column);
            for (int k = 0; k < MMA_K; k++) numbers[k][i] = column[k];
        }
    }
    // Of an operand whose rows are contiguous.
    template <class Element> void read_along_rows(unsigned long long descriptor)
    {
        for (int k = 0; k < MMA_K; k++)
            for (int column = threadIdx.x % 4 * 2; column < N; column += 8) {
                Element two[2];
                const unsigned slab = (unsigned)(descriptor >> 32) * (column / 64);
                memcpy(two, shared + swizzled((unsigned)descriptor + slab + k * SWIZZLE_BYTES + column % 64 * 2), sizeof two);
                for (int i = 0; i < 2; i++) numbers[k][column / 8 * 2 + i] = widen(two[i]);
            }
    }
};
// Calls use(accumulator, row of the warpgroup, column) for each accumulator of the calling thread.
template <int N, class Use> void each_accumulator(float (&d)[N / 2], Use use)
{
    const int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16 + lane / 4, column = lane % 4 * 2;
    for (int i = 0; i < N / 2; i++) use(d[i], first + i % 4 / 2 * 8, i / 4 * 8 + column + i % 2);
}
// Multiplies the part of the operands that a thread needs: two rows of a, and a pair of columns in each 8 of b.
template <int N> void multiply(float (&d)[N / 2], bool add, const float (&rows)[2][MMA_K], const Columns<N>& columns)
{
    for (int half = 0; half < 2; half++) {
        float sums[N / 4];
        for (int i = 0; i < N / 4; i++) sums[i] = add ? d[i / 2 * 4 + half * 2 + i % 2] : 0;
        for (int k = 0; k < MMA_K; k++)
            for (int i = 0; i < N / 4; i++) sums[i] += rows[half][k] * columns.numbers[k][i];
        for (int i = 0; i < N / 4; i++) d[i / 2 * 4 + half * 2 + i % 2] = sums[i];
    }
}
template <class Element> void read_rows(unsigned long long descriptor, float (&rows)[2][MMA_K])
{
    for (int half = 0; half < 2; half++) read_row<Element>(descriptor, threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half, rows[half]);
}
// Likewise, with the words of the left operand that the lanes of a warp have.
template <int N, class Element> void multiply_left(float (&d)[N / 2], bool add, const unsigned* a, const Columns<N>& columns)
{
    EX;
    const int row = LANE / 4, k = LANE % 4 * 2;
    for (int i = 0; i < 4; i++) {
        Element two[2];
        memcpy(two, &a[i], 4);
        for (int j = 0; j < 2; j++) e.product.a[row + 8 * (i % 2)][k + 8 * (i / 2) + j] = widen(two[j]);
    }
    WB();
    float rows[2][MMA_K];
    for (int half = 0; half < 2; half++) memcpy(rows[half], e.product.a[row + 8 * half], sizeof rows[half]);
    multiply<N>(d, add, rows, columns);
}
template <int N> struct Wgmma {
    template <class Element> static void shared(float (&d)[N / 2], unsigned long long a, unsigned long long b, bool add)
    {
        float rows[2][MMA_K];
        Columns<N> columns;
        read_rows<Element>(a, rows);
        columns.template read_along_k<Element>(b);
        multiply<N>(d, add, rows, columns);
    }
    template <class Element> static void from_registers(float (&d)[N / 2], const unsigned* a, unsigned long long b, bool add)
    {
        Columns<N> columns;
        columns.template read_along_rows<Element>(b);
        multiply_left<N, Element>(d, add, a, columns);
    }
};
}
#pragma GCC pop_options
