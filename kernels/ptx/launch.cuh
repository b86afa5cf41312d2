// Synchronization of threads in a CTA, of CTAs in a launch, and of consecutive launches.
#pragma once

namespace warptile {

// Lets the next launch begin as soon as there is room for it, up to where it waits itself. Does nothing in a launch without the
// attribute. PTX ISA 8.7, "Parallel Synchronization and Communication Instructions: griddepcontrol"; from sm_90 on.
__device__ inline void grid_dependency_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// True where a launch may begin before the previous one has ended (programmatic dependent launch).
#if __CUDA_ARCH__ >= 900
constexpr bool BEGINS_EARLY = true;
#else
constexpr bool BEGINS_EARLY = false;
#endif

// Waits until the launch before has ended and all it wrote can be seen.
__device__ inline void grid_dependency_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// "Parallel Synchronization and Communication Instructions: bar": hardware barrier `id` (0 is __syncthreads) of `threads` threads, a
// whole number of warps.
__device__ inline void named_barrier_wait(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Adds 1 to a counter, or resets it to 0 if it was `last`; returns the old value. Acquire and release at GPU scope: callers that come
// later see everything that this CTA wrote before its last barrier. PTX ISA, "atom", operation .inc, and "Memory Consistency Model".
__device__ inline unsigned increment_and_wrap(unsigned* counter, unsigned last)
{
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

// Relaxed variant of `increment_and_wrap`: it orders no other memory accesses. Only data dependencies on earlier reads hold.
__device__ inline unsigned increment_and_wrap_relaxed(unsigned* counter, unsigned last)
{
    unsigned before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

} // namespace warptile
