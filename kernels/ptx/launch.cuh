// What threads of a CTA, CTAs of a launch, and launches in a row tell each other.
#pragma once

namespace warptile {

// Lets the next launch begin as soon as there is room for it, up to where it waits itself. Does nothing in a launch without the
// attribute. PTX ISA 8.7, "Parallel Synchronization and Communication Instructions: griddepcontrol"; from sm_90 on.
__device__ inline void let_successor_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Whether a launch may begin before the one ahead of it has ended.
#if __CUDA_ARCH__ >= 900
constexpr bool BEGINS_EARLY = true;
#else
constexpr bool BEGINS_EARLY = false;
#endif

// Waits until the launch before has ended and all it wrote can be seen.
__device__ inline void wait_for_predecessor()
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

// Adds 1 to a counter of the whole GPU, or makes it 0 if it was `last`, and returns what it was. Those who come later see what this CTA wrote
// before the barrier ahead of this. PTX ISA, "atom", operation .inc, and "Memory Consistency Model".
__device__ inline unsigned increment_and_wrap(unsigned* counter, unsigned last)
{
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

// The same without an order among what is read and written before and after, but for what the values that were read before decide.
__device__ inline unsigned increment_and_wrap_relaxed(unsigned* counter, unsigned last)
{
    unsigned before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

} // namespace warptile
