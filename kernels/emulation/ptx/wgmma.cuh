#pragma once
#include "base/element.cuh"
#include "ptx/sm90.cuh"
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
// Number i of 16 along K of a row of an operand: K is contiguous, or rows are.
template <class Element> float along_k(unsigned long long descriptor, int row, int k)
{
    Element element;
    memcpy(&element, shared + swizzled((unsigned)descriptor + row * SWIZZLE_BYTES + k * 2), 2);
    return widen(element);
}
template <class Element> float along_rows_of_k(unsigned long long descriptor, int column, int k)
{
    Element element;
    memcpy(&element, shared + swizzled((unsigned)descriptor + (unsigned)(descriptor >> 32) * (column / 64) + k * SWIZZLE_BYTES + column % 64 * 2), 2);
    return widen(element);
}
// Calls use(accumulator, row of the warpgroup, column) for each accumulator of the calling thread.
template <int N, class Use> void each_accumulator(float (&d)[N / 2], Use use)
{
    const int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16 + lane / 4, column = lane % 4 * 2;
    for (int i = 0; i < N / 2; i++) use(d[i], first + i % 4 / 2 * 8, i / 4 * 8 + column + i % 2);
}
// Multiplies the part of the operands that a thread needs: two rows of a, and a pair of columns in each 8 of b.
template <int N, class A, class B> void multiply(float (&d)[N / 2], bool add, A a, B b)
{
    const int lane = threadIdx.x % 32;
    float rows[2][MMA_K], columns[N / 4][MMA_K];
    for (int k = 0; k < MMA_K; k++) {
        for (int half = 0; half < 2; half++) rows[half][k] = a(threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * half, k);
        for (int i = 0; i < N / 4; i++) columns[i][k] = b(i / 2 * 8 + lane % 4 * 2 + i % 2, k);
    }
    for (int i = 0; i < N / 2; i++) {
        float sum = add ? d[i] : 0;
        for (int k = 0; k < MMA_K; k++) sum += rows[i % 4 / 2][k] * columns[i / 4 * 2 + i % 2][k];
        d[i] = sum;
    }
}
// Likewise, with the words of the left operand that the lanes of a warp have.
template <int N, class Element, class B> void multiply_left(float (&d)[N / 2], const unsigned* a, B b, bool add)
{
    auto& rows = EX.product.a;
    const int row = LANE / 4, k = LANE % 4 * 2;
    for (int i = 0; i < 4; i++) {
        Element two[2];
        memcpy(two, &a[i], 4);
        for (int j = 0; j < 2; j++) rows[row + 8 * (i % 2)][k + 8 * (i / 2) + j] = widen(two[j]);
    }
    WB();
    multiply<N>(d, add, [&](int row, int k) { return rows[row % 16][k]; }, b);
    WB();
}
template <int N> struct Wgmma {
    template <class Element> static void shared(float (&d)[N / 2], unsigned long long a, unsigned long long b, bool add)
    {
        multiply<N>(d, add, [=](int row, int k) { return along_k<Element>(a, row, k); }, [=](int column, int k) { return along_k<Element>(b, column, k); });
    }
    template <class Element> static void from_registers(float (&d)[N / 2], const unsigned* a, unsigned long long b, bool add)
    {
        multiply_left<N, Element>(d, a, [=](int column, int k) { return along_rows_of_k<Element>(b, column, k); }, add);
    }
};
}
