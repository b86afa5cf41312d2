// Element types of the tensors, and the only places where a value changes its precision. All arithmetic is fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace warptile {

// One 16-byte copy; the unit in which tiles move between global and shared memory.
constexpr int CHUNK_BYTES = 16;
template <class Element> constexpr int CHUNK = CHUNK_BYTES / (int)sizeof(Element); // elements per chunk

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rounds to nearest even.
template <class Element> __device__ Element narrow(float x);
template <> __device__ inline float narrow<float>(float x) { return x; }
template <> __device__ inline __half narrow<__half>(float x) { return __float2half_rn(x); }
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// The largest sum of a lane's weights against a maximum that is kept though larger scores have come. Each weight has all its bits then, and products
// with values are far from the range of fp32.
template <class Element> constexpr float MAX_GROWTH = 0x1p15f; // f16 is finite up to 65504
template <> constexpr float MAX_GROWTH<__nv_bfloat16> = 0x1p24f;

// Two neighbouring elements in one word, the first in its lower half.
template <class Element> __device__ unsigned narrow2(float first, float second);
template <> __device__ inline unsigned narrow2<__half>(float first, float second)
{
    const __half2 pair = __floats2half2_rn(first, second);
    return reinterpret_cast<const unsigned&>(pair);
}
template <> __device__ inline unsigned narrow2<__nv_bfloat16>(float first, float second)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return reinterpret_cast<const unsigned&>(pair);
}

// Four neighbouring elements as fp32, by one vector load. `source` is aligned to four elements.
__device__ inline float4 widen4(const float* source) { return *reinterpret_cast<const float4*>(source); }
__device__ inline float4 widen4(const __half* source)
{
    const uint2 bits = *reinterpret_cast<const uint2*>(source);
    const float2 low = __half22float2(reinterpret_cast<const __half2&>(bits.x));
    const float2 high = __half22float2(reinterpret_cast<const __half2&>(bits.y));
    return {low.x, low.y, high.x, high.y};
}
__device__ inline float4 widen4(const __nv_bfloat16* source)
{
    // A bfloat16 is the upper half of the fp32 of the same value.
    const uint2 bits = *reinterpret_cast<const uint2*>(source);
    return {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u), __uint_as_float(bits.y << 16),
            __uint_as_float(bits.y & 0xffff0000u)};
}

} // namespace warptile
