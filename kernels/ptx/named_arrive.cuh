// "Parallel Synchronization and Communication Instructions: bar": arrival without a wait.
#pragma once

namespace warptile {

// Arrives at the hardware barrier `id` of `threads` threads, which others wait at (`named_barrier_wait`).
__device__ inline void named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

} // namespace warptile
