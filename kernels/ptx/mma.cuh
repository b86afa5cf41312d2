// mma.sync m16n8k16 with fp32 accumulators, and the loads that lay its operands out, for every architecture from sm_80 on. PTX ISA
// 8.7, "Matrix multiply-accumulate operation using mma instruction" and "Warp-level matrix load instruction: ldmatrix".
//
// Where a lane's values lie, with quad = lane / 4 and pair = 2 * (lane % 4): of the accumulators 0 and 1 in row `quad`, columns
// `pair` and `pair + 1` of 8, and 2 and 3 in row `quad + 8`. The 4 words of the left operand hold two columns each: row quad, row
// quad + 8, and the same from column 8 on; the 2 of the right one rows `pair`, and from row 8 on, of column quad.
#pragma once

#include "base/element.cuh"

namespace warptile {

constexpr int FRAGMENT_ROWS = 16;
constexpr int FRAGMENT_COLUMNS = 8;
constexpr int FRAGMENT_DEPTH = 16;

// accumulators += left right
template <class Element>
__device__ inline void mma(float (&accumulators)[4], const unsigned (&left)[4], unsigned right_low, unsigned right_high);

template <>
__device__ inline void mma<__half>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void mma<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 rows of 16 bytes; lane i gives the address of row i % 8 of matrix i / 8. A lane gets the two elements
// `pair` of row `quad` of each.
__device__ inline void load_matrices(unsigned (&words)[4], unsigned address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

// Loads the transposes of four matrices: a lane gets the elements `pair` and `pair + 1` of column `quad`.
__device__ inline void load_matrices_transposed(unsigned (&words)[4], unsigned address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

// Two neighbouring words of shared memory.
__device__ inline uint2 load_two_words(unsigned address)
{
    uint2 words;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(address) : "memory");
    return words;
}

// A word, or two values of an accumulator, to shared memory. Its addresses have half as many bits as generic ones, and there are many.
__device__ inline void store_word(unsigned address, unsigned word)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
__device__ inline void store_two(unsigned address, float2 two)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(two.x), "f"(two.y) : "memory");
}

} // namespace warptile
