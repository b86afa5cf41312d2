#pragma once
#include "base/e4m3.cuh"
#pragma GCC push_options
#pragma GCC optimize("O2")
namespace warptile {
// By definition: sign, exponent against 7, fraction; without infinities.
inline float widen(E4m3 x)
{
    const int exponent = x.bits >> 3 & 15, fraction = x.bits & 7;
    const float size = (x.bits & 0x7f) == 0x7f ? NAN : exponent ? ldexpf(8 + fraction, exponent - 10) : ldexpf(fraction, -9);
    return x.bits & 0x80 ? -size : size;
}
template <class Element> void widen_e4m3_to(unsigned four, unsigned (&words)[2])
{
    float x[4];
    for (int i = 0; i < 4; i++) x[i] = widen(E4m3{(unsigned char)(four >> 8 * i)});
    for (int i = 0; i < 2; i++) words[i] = narrow2<Element>(x[2 * i], x[2 * i + 1]);
}
inline void widen_e4m3(unsigned four, unsigned (&words)[2]) { widen_e4m3_to<__half>(four, words); }
inline unsigned even_bytes_first(unsigned word) { return (word & 0xff0000ffu) | (word >> 8 & 0xff00u) | (word << 8 & 0xff0000u); }
}
#pragma GCC pop_options
