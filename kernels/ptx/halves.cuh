// Words that one thread of a warpgroup tells another through shared memory, and 16-bit halves of words.
#pragma once

namespace warptile {

__device__ inline void tell(unsigned address, unsigned word) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory"); }
__device__ inline void tell_byte(unsigned address, unsigned byte) { asm volatile("st.shared.b8 [%0], %1;" ::"r"(address), "r"(byte) : "memory"); }

__device__ inline unsigned told(unsigned address)
{
    unsigned word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
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
