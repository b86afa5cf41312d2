// Loads of what other CTAs have written, past L1. They are asked for in the order in which they are written, before anything is computed
// with one of them: the compiler might otherwise wait for some before it asks for the others. PTX ISA 8.7, "Data Movement and Conversion
// Instructions: ld", cache operator .cg.
#pragma once

namespace warptile {

__device__ inline float2 load_l2(const float2* from)
{
    float2 value;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(from) : "memory");
    return value;
}

__device__ inline float4 load_l2(const float4* from)
{
    float4 value;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

} // namespace warptile
