// Two bf16 in a word. PTX ISA, "Half Precision Floating Point Instructions: max" and "Half Precision Comparison Instructions: set".
#pragma once

namespace warptile {

// Numbers that are not below `least`, except that -inf stays -inf and NaN stays NaN.
__device__ inline unsigned at_least(unsigned numbers, unsigned least)
{
    unsigned larger, infinite;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(numbers), "r"(least));
    asm("set.eq.u32.bf16x2 %0, %1, %2;" : "=r"(infinite) : "r"(numbers), "r"(0xff80ff80));
    return (numbers & infinite) | (larger & ~infinite);
}

} // namespace warptile
