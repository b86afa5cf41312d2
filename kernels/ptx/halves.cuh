// 16-bit halves of words.
#pragma once

namespace warptile {

__device__ inline void store_half(unsigned address, unsigned half)
{
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"((unsigned short)half) : "memory");
}

__device__ inline unsigned load_half(unsigned address)
{
    unsigned short half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address) : "memory");
    return half;
}

// All bits of each half are its highest one. PTX ISA, "Data Movement and Conversion Instructions: prmt": 8 more than a byte's number is its
// sign.
__device__ inline unsigned highest_of_halves(unsigned word)
{
    unsigned bits;
    asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(bits) : "r"(word));
    return bits;
}

} // namespace warptile
