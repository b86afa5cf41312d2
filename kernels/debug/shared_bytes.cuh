// The shared memory that a launch asked for.
#pragma once

namespace warptile {

__device__ inline unsigned dynamic_shared_bytes()
{
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

} // namespace warptile
