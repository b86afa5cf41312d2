// Columns of a product's result that become minus infinity, by one more step of the product: 2^127 times -2^127 in bf16 is minus infinity in
// fp32, and 0 times either is 0. So whether a column is hidden takes nothing of the threads that wait for the result.
//
// All rows of the left side are the same: 2^127 in one of 8 numbers, the slot. The right side has 8 numbers for each column: -2^127 in the
// slot of a hidden one. So several products share the right side's memory, each with a slot of its own. A step is 16 deep, and each side
// is taken twice.
#pragma once

#include "ptx/wgmma.cuh"

namespace warptile {

enum : int {
    HIDING_SLOTS = 8,
    HIDING_ROW_BYTES = HIDING_SLOTS * 2,
    HIDING_LEFT_BYTES = 8 * HIDING_ROW_BYTES, // of a slot
};

// "Matrix Descriptor Format", without a swizzle: 8 rows of 16 bytes lie one after the other, and the next 8 rows `stride` bytes further on.
// The second half of 16 columns is the first once more.
__device__ inline unsigned long long hiding_descriptor(unsigned address, unsigned stride)
{
    return (unsigned long long)(stride >> 4) << 32 | (address & 0x3ffff) >> 4;
}

// Adds the step of a slot, whose left side lies at `left`.
template <int N> __device__ inline void hide_columns(float (&scores)[N / 2], unsigned left, unsigned right, bool add = true)
{
    Wgmma<N>::template shared<__nv_bfloat16>(scores, hiding_descriptor(left, 0), hiding_descriptor(right, 8 * HIDING_ROW_BYTES), add);
}

// Writes the left sides of the first slots, and clears the right side, by a warp.
__device__ inline void begin_hiding(unsigned char* left, int slots, unsigned char* right, int columns)
{
    unsigned short* const lefts = reinterpret_cast<unsigned short*>(left);
    unsigned short* const rights = reinterpret_cast<unsigned short*>(right);
    for (int i = threadIdx.x % 32; i < slots * HIDING_LEFT_BYTES / 2; i += 32)
        lefts[i] = i % HIDING_SLOTS == i / (HIDING_LEFT_BYTES / 2) ? 0x7f00 : 0;
    for (int i = threadIdx.x % 32; i < columns * HIDING_SLOTS; i += 32) rights[i] = 0;
}

// Hides those of the 32 columns from `first` on whose bits are set, and no others, by a warp. `fence_shared_for_async` is left to the caller.
__device__ inline void set_hidden(unsigned char* right, int slot, int first, unsigned hidden)
{
    const int lane = threadIdx.x % 32;
    reinterpret_cast<unsigned short*>(right)[(first + lane) * HIDING_SLOTS + slot] = hidden >> lane & 1 ? 0xff00 : 0;
}

} // namespace warptile
