// Words by which CTAs of a launch tell each other something.
#pragma once

namespace warptile {

// Replaces a number and returns its old value. It orders nothing else. PTX ISA, "atom", operation .exch.
__device__ inline unsigned exchange(unsigned* number, unsigned by)
{
    unsigned before;
    asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;" : "=r"(before) : "l"(number), "r"(by) : "memory");
    return before;
}

// Waits about a tenth of a microsecond. PTX ISA, "nanosleep".
__device__ inline void pause() { asm volatile("nanosleep.u32 100;" ::: "memory"); }

// A number that others change. The thread sees what was written before the `increment_and_wrap` whose number it sees. PTX ISA, "ld",
// qualifier .acquire.
__device__ inline unsigned load_in_order(const unsigned* number)
{
    unsigned now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(number) : "memory");
    return now;
}

} // namespace warptile
