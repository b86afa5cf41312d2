// Moving single numbers to shared memory.
#pragma once

#include "base/abi.cuh"

namespace warptile {

// Copies 4 bytes as cp_async_16 does 16, through L1 (cache operator .ca).
__device__ inline void cp_async_4(void* shared, const void* source, bool valid)
{
    const unsigned destination = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(destination), "l"(source), "r"(valid ? 4 : 0) : "memory");
}

} // namespace warptile
