#pragma once
#include "base/element.cuh"
#include "memory/copy_number.cuh"
namespace warptile {
inline void cp_async_16(void* shared, const void* source, bool valid) { copies[threadIdx.x].ask(shared, source, 16, valid); }
inline void cp_async_16(unsigned to, const void* source, bool valid) { cp_async_16(shared + to, source, valid); }
inline void cp_async_16_once(unsigned to, const void* source, bool valid) { cp_async_16(to, source, valid); }
inline void cp_async_commit() { copies[threadIdx.x].commit(); }
template <int PENDING> void cp_async_wait() { copies[threadIdx.x].wait(PENDING); }
}
// As memory/copy.cuh has them.
namespace warptile {
template <class Element> struct Rows {
    Element* base;
    long long stride;
    bool in_chunks;
    Rows(Element* base, long long stride)
        : base(base), stride(stride), in_chunks(reinterpret_cast<size_t>(base) % 16 == 0 && stride * sizeof(Element) % 16 == 0)
    {
    }
};
template <int THREADS, int TILE_ROWS, int HEAD_DIM, int SHARED_STRIDE, class Element>
void copy_tile_async(Element* to, const Rows<const Element>& rows, int first_row, int row_count, int head_dim)
{
    constexpr int ACROSS = HEAD_DIM / CHUNK<Element>;
    for (int chunk = threadIdx.x; chunk < TILE_ROWS * ACROSS; chunk += THREADS) {
        const int row = chunk / ACROSS, column = chunk % ACROSS * CHUNK<Element>;
        Element* const there = to + row * SHARED_STRIDE + column;
        const Element* const from = rows.base + (first_row + row) * rows.stride + column;
        const bool valid = first_row + row < row_count && column < head_dim;
        if (rows.in_chunks)
            cp_async_16(there, from, valid);
        else if (valid)
            memcpy(there, from, CHUNK_BYTES);
        else
            memset(there, 0, CHUNK_BYTES);
    }
}
}
