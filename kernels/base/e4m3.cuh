// e4m3, the element type of a cache in 8 bits: a sign, 4 bits of exponent, 3 of fraction (OCP 8-bit Floating Point Specification, "E4M3").
// It has no infinities, and its largest number is 448; 0x7f and 0xff are NaN.
#pragma once

#include "base/element.cuh"

namespace warptile {

struct E4m3 {
    unsigned char bits;
};
static_assert(sizeof(E4m3) == 1);

constexpr float E4M3_MAX = 448;
constexpr unsigned E4M3_NAN = 0x7f;

// The nearest number, ties to even; the largest one beyond it. NaN loses its sign.
__device__ inline E4m3 to_e4m3(float x)
{
    const unsigned sign = __float_as_uint(x) >> 24 & 0x80;
    const float size = fminf(fabsf(x), E4M3_MAX); // E4M3_MAX for NaN
    unsigned bits;
    if (size < 0.015625f) {
        // Below 2^-6 they are multiples of 2^-9, and so are the fp32 from 2^14 on.
        bits = __float_as_uint(__fadd_rn(size, 16384.0f)) - __float_as_uint(16384.0f);
    } else {
        const unsigned wide = __float_as_uint(size); // of whose 23 bits of fraction 3 stay
        bits = ((wide + 0x7ffff + (wide >> 20 & 1)) >> 20) - (127 - 7) * 8;
    }
    return {(unsigned char)(x != x ? E4M3_NAN : sign | bits)};
}

} // namespace warptile
