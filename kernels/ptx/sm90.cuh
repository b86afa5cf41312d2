// Hopper's asynchronous machinery, one small function per instruction. Section names are those of the PTX ISA manual 8.7.
#pragma once

#include "base/abi.cuh"
#include "ptx/launch.cuh"
#include "ptx/mbarrier.cuh"

namespace warptile {

// Generic pointer into shared memory -> the 32-bit address that the instructions below take.
__device__ inline unsigned shared_address(const void* pointer)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The CTA's dynamic shared memory.
template <int ALIGNMENT> __device__ inline unsigned char* dynamic_shared()
{
    extern __shared__ __align__(ALIGNMENT) unsigned char shared[];
    return shared;
}

// A value that all lanes of the warp hold, as one that the compiler knows to be uniform: it then keeps what follows from it
// (ring stages, descriptors) in uniform registers.
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }

// True in one thread of the warp, which is whole here. The compiler then knows that a copy has one thread, and makes no loop of it.
// "Parallel Synchronization and Communication Instructions: elect.sync".
__device__ inline bool elect_one()
{
    unsigned elected;
    asm volatile("{\n"
                 ".reg .pred elected;\n"
                 "elect.sync _|elected, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, elected;\n"
                 "}"
                 : "=r"(elected));
    return elected;
}

// threadIdx.x, read from its special register ("Special Registers: %tid"). Rarely used code reads it again here instead of keeping a
// register through the loop.
__device__ inline unsigned thread_index()
{
    unsigned index;
    asm volatile("mov.u32 %0, %tid.x;" : "=r"(index));
    return index;
}

// Arrives, and announces bytes: the phase ends when these have landed too.
__device__ inline void barrier_arrive_expect_bytes(unsigned barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// "membar / fence: fence.mbarrier_init": makes initialized barriers visible to the copy engine.
__device__ inline void fence_barrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// "membar / fence: fence.proxy.async": orders this thread's ordinary accesses to shared memory before later ones to the same
// memory by wgmma or the copy engine.
__device__ inline void fence_shared_for_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// "Data Movement and Conversion Instructions: cp.async.bulk.tensor". Copies the map's box at (column, row, head, batch) to
// `destination`; elements outside the tensor arrive as zeros and count as bytes of `barrier` all the same.
__device__ inline void copy_box(unsigned destination, const TensorMap& map, unsigned barrier, int column, int row, int head,
                                int batch)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(destination),
                 "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

// Copies a box to both CTAs of a cluster of two, at the same offset in their shared memory; its bytes count at the same barrier of
// each. PTX ISA, "cp.async.bulk.tensor", .multicast::cluster.
__device__ inline void copy_box_to_pair(unsigned destination, const TensorMap& map, unsigned barrier, int column, int row,
                                        int head, int batch)
{
    constexpr unsigned short BOTH = 0b11;
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
                 "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "h"(BOTH)
                 : "memory");
}

// Which CTA of its cluster this is. "Special Registers: %cluster_ctarank".
__device__ inline unsigned cluster_rank()
{
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of the cluster that have not exited. Whole warps call it. It orders barriers that were initialized before
// `fence_barrier_init`, and nothing else: a release would wait for all of the thread's accesses to memory.
// "Parallel Synchronization and Communication Instructions: barrier.cluster".
__device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

// Like `cluster_sync`, but also with release: after it, everything that the other CTAs' threads sent before has arrived. So a CTA may
// end, because nothing is on its way to it.
__device__ inline void cluster_leave()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

// Where CTA `rank` of the cluster has what this one has at `address`; both in shared memory. "mapa".
__device__ inline unsigned address_in(unsigned address, unsigned rank)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// Arrives at a barrier of any CTA of the cluster, by its address of `address_in`. Says that this thread has read, not what it has written:
// a release to the cluster waits for all of the thread's accesses to memory.
__device__ inline void barrier_arrive_in_cluster(unsigned barrier)
{
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives once at the same barrier of each CTA of a cluster of two. A whole warp calls it.
__device__ inline void barrier_arrive_in_pair(unsigned barrier)
{
    if (threadIdx.x % 32 < 2) barrier_arrive_in_cluster(address_in(barrier, threadIdx.x % 32));
}

// Stores a word in the shared memory of any CTA of the cluster; its 4 bytes count at `barrier`, which lies there, too. "st.async".
__device__ inline void send_in_cluster(unsigned address, int word, unsigned barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address), "r"(word),
                 "r"(barrier)
                 : "memory");
}

// The way back: the box at `source` to (column, row, head, batch); elements outside of the tensor are left out. Part of the thread's group
// of copies.
__device__ inline void store_box(const TensorMap& map, unsigned source, int column, int row, int head, int batch)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(source), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

// "cp.async.bulk.commit_group": what the thread has asked for since the last one is a group.
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// "cp.async.bulk.wait_group.read": all but the last `PENDING` of the thread's groups have read their sources.
template <int PENDING> __device__ inline void wait_for_store_reads()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// "Warp-Level Matrix Instructions: stmatrix". Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8
// of matrix l / 8.
__device__ inline void store_matrices(unsigned row_address, unsigned m0, unsigned m1, unsigned m2, unsigned m3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(m0), "r"(m1),
                 "r"(m2), "r"(m3)
                 : "memory");
}

// "Data Movement and Conversion Instructions: st", 16 bytes at once: the compiler splits an assignment of four words that
// come out of an array.
__device__ inline void store_global(void* destination, const uint4& words)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(destination), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w)
                 : "memory");
}

// Nothing, at this place: the compiler moves nothing with a lasting effect across it. "Miscellaneous Instructions: nanosleep".
__device__ inline void stay_here() { asm volatile("nanosleep.u32 0;"); }

// "Data Movement and Conversion Instructions: prefetch.tensormap".
__device__ inline void prefetch_map(const TensorMap& map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// "Miscellaneous Instructions: setmaxnreg". Every warp of the warpgroup executes it; `REGISTERS` is a multiple of 8.
template <int REGISTERS> __device__ inline void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ inline void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

} // namespace warptile
