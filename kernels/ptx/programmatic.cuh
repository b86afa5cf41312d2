// Launches that begin before their predecessor has ended. PTX ISA 8.7, "Parallel Synchronization and Communication Instructions:
// griddepcontrol"; from sm_90 on. Does nothing in a launch without the attribute.
#pragma once

namespace warptile {

// Lets the next launch begin as soon as there is room for it, then waits until the one before has ended and all it wrote can be seen.
__device__ inline void wait_for_predecessor()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

} // namespace warptile
