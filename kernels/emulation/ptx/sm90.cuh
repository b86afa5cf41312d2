#pragma once
#include "base/abi.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/bulk.cuh"
#pragma GCC push_options
#pragma GCC optimize("O2")
// The copy engine, by tensor maps as the stand-in driver writes them. hopper/ has other ones, for kernels whose waits are looked at.
namespace warptile {
inline unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }
template <int ALIGNMENT> unsigned char* dynamic_shared() { return shared; }
inline int uniform(int x) { return x; }
inline unsigned thread_index() { return threadIdx.x; }
inline void fence_barrier_init() {}
inline void fence_shared_for_async() {}
template <int> void setmaxnreg_dec() {}
template <int> void setmaxnreg_inc() {}
// Where a byte lies, of rows of 128 bytes in the 128-byte swizzle.
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }
inline void copy_box(unsigned to, const TensorMap& map, unsigned barrier, int column, int row, int head, int batch)
{
    const auto* words = reinterpret_cast<const unsigned long long*>(&map);
    const char* const base = reinterpret_cast<const char*>(words[0]);
    const unsigned columns = words[9], rows = words[10];
    if (columns != 64 || words[11] != 1 || words[12] != 1) end("a box of other heads than one\n");
    for (unsigned r = 0; r < rows; r++)
        for (unsigned c = 0; c < columns; c++) {
            const unsigned long long at[4] = {column + c, row + r, (unsigned)head, (unsigned)batch};
            uint16_t element = 0;
            if (at[0] < words[2] && at[1] < words[3] && at[2] < words[4] && at[3] < words[5])
                memcpy(&element, base + at[0] * 2 + at[1] * words[6] + at[2] * words[7] + at[3] * words[8], 2);
            memcpy(shared + swizzled(to + r * 128 + c * 2), &element, 2);
        }
    bytes_came(barrier, rows * columns * 2);
}
}
#pragma GCC pop_options
