// Clearing of numbers in 16 bits by arithmetic, which has units of its own beside those of logic. A word has two of them, of which bytes decide.
// PTX ISA, "Half Precision Floating Point Instructions: sub, mul, fma".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace warptile {

// Keeps numbers from 0 on, or NaN, whose bytes are not below a threshold from 0 to 256, and makes 0 of others. A byte becomes a number that
// grows with it by HIGH as its upper byte. `least` of the threshold is compared with it, and `kept` takes `compared`.
template <class Element> struct KeptByBytes;

// From 1024 on; 1 or 0 is multiplied with.
template <> struct KeptByBytes<__half> {
    enum : unsigned { HIGH = 0x64 };
    __device__ static unsigned least(unsigned threshold) { return 0x63ff + threshold - (threshold == 0); } // 1023 and more
    __device__ static unsigned compared(unsigned numbers, unsigned least)
    {
        unsigned factors;
        asm("sub.sat.f16x2 %0, %1, %2;" : "=r"(factors) : "r"(numbers), "r"(least));
        return factors;
    }
    __device__ static unsigned kept(unsigned numbers, unsigned factors)
    {
        unsigned kept;
        asm("mul.f16x2 %0, %1, %2;" : "=r"(kept) : "r"(numbers), "r"(factors));
        return kept;
    }
};

// From 2^107 on; 2^100 and more is subtracted, and what is below 0 is 0.
template <> struct KeptByBytes<__nv_bfloat16> {
    enum : unsigned { HIGH = 0x75 };
    __device__ static unsigned least(unsigned threshold) { return 0x7500 + threshold; }
    __device__ static unsigned compared(unsigned numbers, unsigned least) { return kept(least, numbers); }
    __device__ static unsigned kept(unsigned numbers, unsigned subtracted)
    {
        unsigned kept;
        asm("fma.rn.relu.bf16x2 %0, %1, %2, %3;" : "=r"(kept) : "r"(subtracted), "r"(0xbf80bf80), "r"(numbers));
        return kept;
    }
};

} // namespace warptile
