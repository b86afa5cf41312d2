// Bringing memory nearer before it is asked for.
#pragma once

namespace warptile {

// Brings the line of 128 bytes that `address` lies in to L2, and waits for nothing. L2 is where all multiprocessors see the same, so what
// is written later is not missed. The address is valid. PTX ISA, "Data Movement and Conversion Instructions: prefetch"; how much one
// brings was measured (docs/notebook/decode.md).
constexpr int PREFETCHED_BYTES = 128;
__device__ inline void prefetch_to_l2(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory"); }

} // namespace warptile
