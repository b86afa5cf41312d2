// From e4m3 to the elements of tensor-core instructions, exactly: both 16-bit types have all its numbers.
#pragma once

#include "base/e4m3.cuh"

namespace warptile {

// Four e4m3 as two words of f16, in order.
__device__ inline void widen_e4m3(unsigned four, unsigned (&words)[2])
{
#if __CUDA_ARCH__ >= 890
    // PTX ISA 8.7, "Data Movement and Conversion Instructions: cvt"; from sm_89 on.
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n"
        "}"
        : "=r"(words[0]), "=r"(words[1])
        : "r"(four));
#else
    // With exponent and fraction moved to where f16 has them, a number is 2^-8 times its value. Only NaN goes wrong and becomes 480:
    // it overflows to infinity when multiplied by 36864, and no other number does.
    constexpr unsigned BYTES[2] = {0x1404, 0x3424}; // which two, each above a zero
    const __half2 unit = __float2half2_rn(256.0f), beyond = __float2half2_rn(36864.0f), zero = __float2half2_rn(0.0f);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned two = __byte_perm(four, 0, BYTES[i]);
        const unsigned bits = (two & 0x80008000u) | (two & 0x7f007f00u) >> 1;
        const __half2 placed = reinterpret_cast<const __half2&>(bits);
        const __half2 number = __hfma2(__hmul2(placed, beyond), zero, __hmul2(placed, unit));
        words[i] = reinterpret_cast<const unsigned&>(number);
    }
#endif
}

// Four e4m3 numbers as two words of Element.
template <class Element> __device__ void widen_e4m3_to(unsigned four, unsigned (&words)[2]);
template <> __device__ inline void widen_e4m3_to<__half>(unsigned four, unsigned (&words)[2]) { widen_e4m3(four, words); }
template <> __device__ inline void widen_e4m3_to<__nv_bfloat16>(unsigned four, unsigned (&words)[2])
{
    widen_e4m3(four, words);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float2 two = __half22float2(reinterpret_cast<const __half2&>(words[i]));
        words[i] = narrow2<__nv_bfloat16>(two.x, two.y);
    }
}

// Bytes 0, 2, 1 and 3 of a word.
__device__ inline unsigned even_bytes_first(unsigned word) { return __byte_perm(word, 0, 0x3120); }

} // namespace warptile
