// Moves between registers and shared memory for operands of wgmma. PTX ISA 8.7, "Warp-Level Matrix Instructions: stmatrix", and "ld".
#pragma once

namespace warptile {

// Four 8 x 8 matrices of 16-bit elements, each transposed; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices_transposed(unsigned row_address, const unsigned* m)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
}

__device__ inline float load_one(unsigned address)
{
    float number;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(number) : "r"(address) : "memory");
    return number;
}

__device__ inline float2 load_two(unsigned address)
{
    float2 two;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(address) : "memory");
    return two;
}

} // namespace warptile
