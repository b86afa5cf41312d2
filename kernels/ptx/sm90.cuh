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

// A value that all lanes of the warp hold, as one that the compiler knows to be uniform: it then keeps what follows from it
// (ring stages, descriptors) in uniform registers.
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }

// threadIdx.x, read anew ("Special Registers: %tid"): for rarely used code, which then keeps no register through the loop.
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

// "Data Movement and Conversion Instructions: prefetch.tensormap".
__device__ inline void prefetch_map(const TensorMap& map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// "Miscellaneous Instructions: setmaxnreg". Every warp of the warpgroup executes it; `REGISTERS` is a multiple of 8.
template <int REGISTERS> __device__ inline void give_registers_back()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ inline void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

} // namespace warptile
