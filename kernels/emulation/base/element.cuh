#pragma once
#pragma GCC push_options
#pragma GCC optimize("O2")
typedef _Float16 __half; struct __nv_bfloat16 { uint16_t bits; };
namespace warptile {
constexpr int CHUNK_BYTES = 16; template <class Element> constexpr int CHUNK = CHUNK_BYTES / (int)sizeof(Element);
inline float widen(float x) { return x; }
inline float widen(__half x) { return (float)x; }
inline float widen(__nv_bfloat16 x) { return bitsf((unsigned)x.bits << 16); }
template <class E> E narrow(float x);
template <> inline float narrow<float>(float x) { return x; }
template <> inline __half narrow<__half>(float x) { return (__half)x; }
// To nearest even; a NaN keeps a bit of its fraction.
template <> inline __nv_bfloat16 narrow<__nv_bfloat16>(float x)
{
    const unsigned bits = fbits(x);
    if (x != x) return {(uint16_t)(bits >> 16 | 0x40)};
    return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <class Element> constexpr float MAX_GROWTH = 0x1p15f;
template <> constexpr float MAX_GROWTH<__nv_bfloat16> = 0x1p24f;
template<class E> unsigned narrow2(float a,float b);
template<> inline unsigned narrow2<__half>(float a,float b){__half h[2]={(__half)a,(__half)b};unsigned u;memcpy(&u,h,4);return u;}
template<> inline unsigned narrow2<__nv_bfloat16>(float a,float b){return narrow<__nv_bfloat16>(a).bits|(unsigned)narrow<__nv_bfloat16>(b).bits<<16;}
inline float4 widen4(const float* four) { return {four[0], four[1], four[2], four[3]}; }
}
#pragma GCC pop_options
