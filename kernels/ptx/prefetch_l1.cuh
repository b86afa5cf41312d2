// Bringing memory as near as it gets before it is asked for.
#pragma once

namespace warptile {

// Brings the line of 128 bytes that `address` lies in to L1, and waits for nothing. What is written later may be missed. The address is
// valid. PTX ISA, "Data Movement and Conversion Instructions: prefetch".
__device__ inline void prefetch_to_l1(const void* address) { asm volatile("prefetch.global.L1 [%0];" ::"l"(address) : "memory"); }

} // namespace warptile
