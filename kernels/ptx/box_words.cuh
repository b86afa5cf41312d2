// Pairs of neighboring numbers of 16 or 8 bits in shared memory, as accumulators of wgmma lie. PTX ISA 8.7, "Warp-level matrix load
// instruction: ldmatrix".
#pragma once

#include "base/element.cuh"
#include "ptx/mma.cuh"
#include "ptx/wgmma.cuh"

namespace warptile {

// Where lane `lane` of a warp finds the 16-bit numbers of the warp's 16 rows, which lie in rows of 128 bytes with the 128-byte swizzle from
// `rows` on. Pairs of chunks of 16 bytes are chosen by bits of the address.
__device__ inline unsigned number_address(unsigned rows, int lane) { return rows + lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16; }

// Those of 16 columns from `column` on, a multiple of 16 below 64: words 0 and 1 have columns 2c and 2c + 1 of the lane's two rows, c being
// its number in the quad, and words 2 and 3 have those 8 columns further on.
__device__ inline void load_numbers(unsigned (&words)[4], unsigned address, int column) { load_matrices(words, address ^ column * 2); }

// The number of accumulator i of 8.
template <class Element> __device__ inline float number_of_word(const unsigned (&words)[4], int i)
{
    const unsigned both = words[i / 2];
    // Of bf16 the compiler would make two instructions for the upper one.
    if constexpr (!IS_HALF<Element>) return __uint_as_float(i % 2 ? both & 0xffff0000 : both << 16);
    return widen(reinterpret_cast<const Element(&)[2]>(both)[i % 2]);
}

// The same for bytes, which lie in rows of 64 bytes with the 64-byte swizzle: a chunk's number is xored with bits 1 and 2 of the row's.
__device__ inline unsigned byte_address(unsigned rows, int lane) { return rows + lane / 4 * 64 + (lane / 8 * 16) + lane % 4 * 2; }

// Two bytes a word.
__device__ inline void load_bytes(unsigned (&words)[4], unsigned address, int column)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        unsigned short both;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(both) : "r"((address ^ column) + i % 2 * 8 * 64 + i / 2 * 8) : "memory");
        words[i] = both;
    }
}

__device__ inline bool byte_of_word(const unsigned (&words)[4], int i) { return words[i / 2] & (i % 2 ? 0xff00 : 0xff); }

} // namespace warptile
