// Copies of bytes in a row between shared and global memory by the copy engine, sums of them, and turns. PTX ISA 8.7, "Data Movement and
// Conversion Instructions: cp.async.bulk, cp.reduce.async.bulk" and "Memory Consistency Model". Addresses and counts are multiples of 16.
#pragma once

namespace warptile {

// Into shared memory; the bytes count at `barrier`.
__device__ inline void copy_bytes(unsigned destination, const void* source, unsigned bytes, unsigned barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination), "l"(source),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

// To global memory; part of the thread's group of copies.
__device__ inline void store_bytes(void* destination, unsigned source, unsigned bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(source), "r"(bytes) : "memory");
}

// Bulk copy that adds fp32 numbers to those at the destination.
__device__ inline void add_bytes(void* destination, unsigned source, unsigned bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(destination), "r"(source), "r"(bytes)
                 : "memory");
}

// Until what all of the thread's groups have written can be seen. ".read" would only wait for their sources.
__device__ inline void wait_for_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// "fence.proxy.async": orders what the copy engine does to global memory, and what this thread does to it otherwise.
__device__ inline void fence_global_for_async() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Until it is a turn: then what was written before it was passed on can be seen. Or until `polls` have been in vain: then 0 are left, and
// no turn is waited for any more.
__device__ inline void wait_for_turn(const unsigned* turns, unsigned turn, unsigned& polls)
{
#pragma unroll 1
    for (unsigned left = polls;; left--) {
        unsigned now;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turns) : "memory");
        if (now == turn) return;
        if (left == 0) break;
    }
    polls = 0;
}
__device__ inline void pass_turn(unsigned* turns) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(turns) : "memory"); }

} // namespace warptile
