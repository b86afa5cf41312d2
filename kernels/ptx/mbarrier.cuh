// Barriers in shared memory for some warps of a CTA, from sm_80 on. PTX ISA 8.7, "Parallel Synchronization and Communication
// Instructions: mbarrier". (compute-sanitizer's racecheck loses track of __syncthreads where hardware barriers of some warps are used
// beside it.)
#pragma once

namespace warptile {

// A phase ends when `arrivals` threads have arrived; waiting names the parity (0, 1, 0, ...) of the phase waited for.
__device__ inline void mbarrier_init(unsigned barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Releases what this thread has written and seen.
__device__ inline void mbarrier_arrive(unsigned barrier)
{
    asm volatile("{\n"
                 ".reg .b64 state;\n"
                 "mbarrier.arrive.shared.b64 state, [%0];\n"
                 "}" ::"r"(barrier)
                 : "memory");
}

// Acquires what those who arrived have released.
__device__ inline void mbarrier_wait(unsigned barrier, unsigned parity)
{
    unsigned done;
    do {
        asm volatile("{\n"
                     ".reg .pred complete;\n"
                     "mbarrier.test_wait.parity.shared.b64 complete, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, complete;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}

} // namespace warptile
