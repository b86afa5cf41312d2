// Loads of what other CTAs have written. They are asked for in the order in which they are written, before anything is computed with one
// of them: the compiler might otherwise wait for some before it asks for the others. PTX ISA 8.7, "Data Movement and Conversion
// Instructions: ld".
#pragma once

// Defines a load of two and one of four floats: the state space and cache operator of `ld`, the constraint of an address, then the names
// of the functions and the types of their addresses.
#define WARPTILE_LOADS_OF_FLOATS(SPACE, ADDRESS, TWO, FROM_TWO, FOUR, FROM_FOUR) \
    __device__ inline float2 TWO(FROM_TWO from) \
    { \
        float2 value; \
        asm volatile("ld." SPACE ".v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : ADDRESS(from) : "memory"); \
        return value; \
    } \
    __device__ inline float4 FOUR(FROM_FOUR from) \
    { \
        float4 value; \
        asm volatile("ld." SPACE ".v4.f32 {%0, %1, %2, %3}, [%4];" \
                     : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) \
                     : ADDRESS(from) \
                     : "memory"); \
        return value; \
    }

namespace warptile {

// Past L1: cache operator .cg.
WARPTILE_LOADS_OF_FLOATS("global.cg", "l", load_l2, const float2*, load_l2, const float4*)

} // namespace warptile
