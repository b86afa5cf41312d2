#pragma once
#include "base/element.cuh"
#include "numbers.h"
// Products read shared memory from when they are asked for to the wait for them. Each row of a slab stands for one
// number. The first lane has columns 0 and 1 of each 8, of rows 0 and 8 of its warp's 16; of the output's columns the
// first one of each slab is computed.
namespace warptile {
constexpr int MMA_ROWS = 64, MMA_K = 16, SWIZZLE_BYTES = 128, SWIZZLE_GROUP_BYTES = 8 * SWIZZLE_BYTES;
template <class Element> constexpr bool IS_HALF = true;
template <class Element> unsigned pack(float low, float high) { return narrow2<Element>(low, high); }
inline unsigned long long matrix_descriptor(unsigned address, unsigned leading_bytes) { return (unsigned long long)leading_bytes << 32 | address; }
inline unsigned long long advance_descriptor(unsigned long long descriptor, unsigned bytes) { return descriptor + bytes; }
inline void wgmma_fence() {}
inline void wgmma_commit()
{
    emulation::Warp& warp = emulation::launch.warp();
    warp.product_groups.push_back(std::move(warp.products));
    warp.products.clear();
    emulation::launch.step();
}
template <int PENDING> void wgmma_wait()
{
    emulation::launch.step();
    auto& groups = emulation::launch.warp().product_groups;
    while (groups.size() > PENDING) {
        for (const emulation::Product& product : groups.front())
            if (product.is_wrong) std::fill_n(product.scores, product.count, NAN);
        groups.pop_front();
    }
}
template <class T, int COUNT> void pin(T (&)[COUNT]) {}

// Records a read by wgmma. Without `scores` the memory must be there. With them it need not be, but then they may not be used.
inline void multiply_from(unsigned begin, unsigned bytes, float* scores = nullptr, int count = 0)
{
    const emulation::Range range = {begin, begin + bytes};
    const bool is_there = emulation::launch.is_there(emulation::launch.cta(), range);
    if (!scores) emulation::launch.must_be_there(emulation::launch.cta(), range);
    auto& products = emulation::launch.warp().products;
    if (!products.empty() && !scores && products.back().range.end == begin)
        products.back().range.end = range.end;
    else
        products.push_back({range, scores, count, !is_there});
}

inline float number_at(unsigned address)
{
    unsigned long long tag;
    memcpy(&tag, emulation::launch.cta().memory + address, sizeof tag);
    return numbers::number(tag);
}
// Two rows of queries against two keys.
inline void add_scores(float* sums, unsigned queries, unsigned keys)
{
    for (int i = 0; i < 4; i++) sums[i] += number_at(queries + i / 2 * 8 * SWIZZLE_BYTES) * number_at(keys + i % 2 * SWIZZLE_BYTES);
}

template <int N> struct Wgmma {
    template <class Element> static void shared(float (&d)[N / 2], unsigned long long a, unsigned long long b, bool add)
    {
        const unsigned queries = (unsigned)a, keys = (unsigned)b;
        if (!add) std::fill_n(d, N / 2, 0.0f);
        if (queries % SWIZZLE_BYTES != 0) return;
        multiply_from(queries, MMA_ROWS * SWIZZLE_BYTES, d, N / 2);
        multiply_from(keys, N * SWIZZLE_BYTES, d, N / 2);
        const unsigned own = queries + threadIdx.x / 32 % 4 * 16 * SWIZZLE_BYTES;
        for (int block = 0; block < N / 8; block++) add_scores(d + 4 * block, own, keys + block * 8 * SWIZZLE_BYTES);
    }
    template <class Element> static void from_registers(float (&d)[N / 2], const unsigned* weights, unsigned long long b, bool)
    {
        const unsigned values = (unsigned)b, slab_bytes = (unsigned)(b >> 32);
        for (int slab = 0; slab * 64 < N; slab++) {
            const unsigned from = values + slab * slab_bytes;
            multiply_from(from, MMA_K * SWIZZLE_BYTES);
            for (int half = 0; half < 2; half++)
                for (int i = 0; i < 4; i++) {
                    Element two[2];
                    memcpy(two, &weights[i / 2 * 2 + half], sizeof two);
                    const float weight = widen(two[i % 2]);
                    if (weight != 0) d[slab * 32 + 2 * half] += weight * number_at(from + (i / 2 * 8 + i % 2) * SWIZZLE_BYTES);
                }
        }
    }
};
}
