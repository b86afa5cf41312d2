// Barriers in shared memory for some threads of a CTA, from sm_80 on. PTX ISA 8.7, "Parallel Synchronization and Communication
// Instructions: mbarrier". A phase ends when `arrivals` threads have arrived (and, where bytes are
// expected, these too); waiting names the parity (0, 1, 0, ...) of the phase waited for.
#pragma once

namespace warptile {

constexpr int BARRIER_BYTES = 8;

__device__ inline void barrier_init(unsigned barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Before the place is initialized again, or used for anything else. Nobody arrives or waits any more.
__device__ inline void barrier_invalidate(unsigned barrier) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory"); }

// Releases what this thread has written and seen.
__device__ inline void barrier_arrive(unsigned barrier)
{
    asm volatile("{\n"
                 ".reg .b64 state;\n"
                 "mbarrier.arrive.shared::cta.b64 state, [%0];\n"
                 "}" ::"r"(barrier)
                 : "memory");
}

// Returns true if the phase has ended; does not wait. Acquires the writes that the arriving threads released.
__device__ inline bool barrier_test(unsigned barrier, unsigned parity)
{
    unsigned done;
    asm volatile("{\n"
                 ".reg .pred complete;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, complete;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

// Like `barrier_test`, but may suspend the thread for a limited time; before sm_90 it does not wait either.
__device__ inline bool barrier_try_wait(unsigned barrier, unsigned parity)
{
#if __CUDA_ARCH__ >= 900
    unsigned done;
    asm volatile("{\n"
                 ".reg .pred complete;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, complete;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
#else
    return barrier_test(barrier, parity);
#endif
}

__device__ inline void barrier_wait(unsigned barrier, unsigned parity)
{
    // Debug images look at how often it has asked.
    for (unsigned polls = 0; !barrier_try_wait(barrier, parity); polls++) {
#if __CUDA_ARCH__ < 900
        asm volatile("nanosleep.u32 32;"); // leaves the SM to those who are waited for
#endif
    }
}

} // namespace warptile
