// wgmma.mma_async m64nNk16 with fp32 accumulators, for f16 and bf16. PTX ISA 8.7, "Asynchronous Warpgroup Level Matrix
// Instructions".
//
// A warpgroup (four warps) multiplies 64 rows; warp w owns rows 16w to 16w + 15. Of an accumulator, the lane with
// quad = lane / 4 and column = lane % 4 * 2 holds, for the 8-column block b:
//     [4b], [4b + 1]:      row 16w + quad,      columns 8b + column, 8b + column + 1
//     [4b + 2], [4b + 3]:  row 16w + quad + 8,  the same columns
// Packed pairwise into 16-bit elements, blocks 2s and 2s + 1 are the A operand of k-step s of a following product.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace warptile {

constexpr int MMA_ROWS = 64;
constexpr int MMA_K = 16;
constexpr int SWIZZLE_BYTES = 128;
constexpr int SWIZZLE_GROUP_BYTES = 8 * SWIZZLE_BYTES; // the pattern repeats every 8 rows

// "Matrix Descriptor Format". The operand lies in rows of 128 bytes with the 128-byte swizzle. `leading_bytes` is only
// read for operands whose rows run along K (V): the distance between neighbouring blocks of 64 columns.
__device__ inline unsigned long long matrix_descriptor(unsigned address, unsigned leading_bytes)
{
    constexpr unsigned long long SWIZZLE_128 = 1ull << 62;
    constexpr unsigned long long STRIDE = (unsigned long long)(SWIZZLE_GROUP_BYTES >> 4) << 32;
    return SWIZZLE_128 | STRIDE | (unsigned long long)(leading_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Descriptor of the operand `bytes` further on. The address field counts units of 16 bytes.
__device__ inline unsigned long long advance_descriptor(unsigned long long descriptor, unsigned bytes)
{
    return descriptor + (bytes >> 4);
}

// "wgmma.fence": before the first product that touches registers written by other instructions.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// "wgmma.commit_group": closes the group of products issued since the last one.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// "wgmma.wait_group": until at most PENDING groups are unfinished.
template <int PENDING> __device__ inline void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// Keeps the compiler from moving uses of registers that products read or write asynchronously across this point.
template <int COUNT> __device__ inline void pin(float (&registers)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(registers[i])::"memory");
}

template <int COUNT> __device__ inline void pin(unsigned (&registers)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+r"(registers[i])::"memory");
}

template <class Element> constexpr bool IS_HALF = false;
template <> constexpr bool IS_HALF<__half> = true;

// Two values rounded to nearest even and packed, `low` in the lower half.
// PTX ISA, "Data Movement and Conversion Instructions: cvt".
template <class Element> __device__ inline unsigned pack(float low, float high)
{
    unsigned packed;
    if constexpr (IS_HALF<Element>)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// Wgmma<N>: accumulators are N / 2 registers a thread.
//   shared:   d = a b (+ d), a [64 x 16] and b [N x 16] in shared memory, both with rows along M or N (K contiguous)
//   register: d = a b (+ d), a in registers, b [16 x N] in shared memory with rows along K (N contiguous)
template <int N> struct Wgmma;

// The asm operand list is spelled by the preprocessor: accumulators are operands 0 to N / 2 - 1, listed by tens.
#define WARPTILE_TEN(tens)                                                                                             \
    "%" #tens "0, %" #tens "1, %" #tens "2, %" #tens "3, %" #tens "4, %" #tens "5, %" #tens "6, %" #tens "7, %" #tens  \
    "8, %" #tens "9, "
#define WARPTILE_30 WARPTILE_TEN() WARPTILE_TEN(1) WARPTILE_TEN(2)
#define WARPTILE_60 WARPTILE_30 WARPTILE_TEN(3) WARPTILE_TEN(4) WARPTILE_TEN(5)
#define WARPTILE_90 WARPTILE_60 WARPTILE_TEN(6) WARPTILE_TEN(7) WARPTILE_TEN(8)
#define WARPTILE_OUT_8(i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define WARPTILE_OUT_32 WARPTILE_OUT_8(0), WARPTILE_OUT_8(8), WARPTILE_OUT_8(16), WARPTILE_OUT_8(24)
#define WARPTILE_OUT_64                                                                                                \
    WARPTILE_OUT_32, WARPTILE_OUT_8(32), WARPTILE_OUT_8(40), WARPTILE_OUT_8(48), WARPTILE_OUT_8(56)
#define WARPTILE_OUT_96                                                                                                \
    WARPTILE_OUT_64, WARPTILE_OUT_8(64), WARPTILE_OUT_8(72), WARPTILE_OUT_8(80), WARPTILE_OUT_8(88)
#define WARPTILE_OUT_128                                                                                               \
    WARPTILE_OUT_96, WARPTILE_OUT_8(96), WARPTILE_OUT_8(104), WARPTILE_OUT_8(112), WARPTILE_OUT_8(120)

// p0 to p5 are the numbers of the operands that follow the accumulators.
#define WARPTILE_WGMMA_SHARED(n, type, list, p0, p1, p2, ...)                                                          \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #p2 ", 0;\n"                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list "}, %" #p0 ", %" #p1        \
                 ", add, 1, 1, 0, 0;\n}"                                                                               \
                 : __VA_ARGS__                                                                                         \
                 : "l"(a), "l"(b), "r"((int)add))
#define WARPTILE_WGMMA_REGISTER(n, type, list, p0, p1, p2, p3, p4, p5, ...)                                            \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #p5 ", 0;\n"                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list "}, {%" #p0 ", %" #p1       \
                 ", %" #p2 ", %" #p3 "}, %" #p4 ", add, 1, 1, 1;\n}"                                                   \
                 : __VA_ARGS__                                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))

#define WARPTILE_WGMMA(n, list, p0, p1, p2, p3, p4, p5, ...)                                                           \
    template <> struct Wgmma<n> {                                                                                      \
        template <class Element>                                                                                       \
        __device__ static void shared(float (&d)[n / 2], unsigned long long a, unsigned long long b, bool add)         \
        {                                                                                                              \
            if constexpr (IS_HALF<Element>)                                                                            \
                WARPTILE_WGMMA_SHARED(n, "f16", list, p0, p1, p2, __VA_ARGS__);                                        \
            else                                                                                                       \
                WARPTILE_WGMMA_SHARED(n, "bf16", list, p0, p1, p2, __VA_ARGS__);                                       \
        }                                                                                                              \
        template <class Element>                                                                                       \
        __device__ static void from_registers(float (&d)[n / 2], const unsigned* a, unsigned long long b, bool add)    \
        {                                                                                                              \
            if constexpr (IS_HALF<Element>)                                                                            \
                WARPTILE_WGMMA_REGISTER(n, "f16", list, p0, p1, p2, p3, p4, p5, __VA_ARGS__);                          \
            else                                                                                                       \
                WARPTILE_WGMMA_REGISTER(n, "bf16", list, p0, p1, p2, p3, p4, p5, __VA_ARGS__);                         \
        }                                                                                                              \
    }

WARPTILE_WGMMA(64, WARPTILE_30 "%30, %31", 32, 33, 34, 35, 36, 37, WARPTILE_OUT_32);
WARPTILE_WGMMA(80, WARPTILE_30 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39", 40, 41, 42, 43, 44, 45,
               WARPTILE_OUT_32, WARPTILE_OUT_8(32));
WARPTILE_WGMMA(96, WARPTILE_30 WARPTILE_TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47", 48, 49, 50, 51, 52, 53,
               WARPTILE_OUT_32, WARPTILE_OUT_8(32), WARPTILE_OUT_8(40));
WARPTILE_WGMMA(112, WARPTILE_30 WARPTILE_TEN(3) WARPTILE_TEN(4) "%50, %51, %52, %53, %54, %55", 56, 57, 58, 59, 60, 61,
               WARPTILE_OUT_32, WARPTILE_OUT_8(32), WARPTILE_OUT_8(40), WARPTILE_OUT_8(48));
WARPTILE_WGMMA(128, WARPTILE_60 "%60, %61, %62, %63", 64, 65, 66, 67, 68, 69, WARPTILE_OUT_64);
WARPTILE_WGMMA(144, WARPTILE_60 WARPTILE_TEN(6) "%70, %71", 72, 73, 74, 75, 76, 77, WARPTILE_OUT_64,
               WARPTILE_OUT_8(64));
WARPTILE_WGMMA(160, WARPTILE_60 WARPTILE_TEN(6) "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79", 80, 81, 82, 83, 84,
               85, WARPTILE_OUT_64, WARPTILE_OUT_8(64), WARPTILE_OUT_8(72));
WARPTILE_WGMMA(176, WARPTILE_60 WARPTILE_TEN(6) WARPTILE_TEN(7) "%80, %81, %82, %83, %84, %85, %86, %87", 88, 89, 90, 91,
               92, 93, WARPTILE_OUT_64, WARPTILE_OUT_8(64), WARPTILE_OUT_8(72), WARPTILE_OUT_8(80));
WARPTILE_WGMMA(192, WARPTILE_90 "%90, %91, %92, %93, %94, %95", 96, 97, 98, 99, 100, 101, WARPTILE_OUT_96);
WARPTILE_WGMMA(256,
               WARPTILE_90 WARPTILE_TEN(9) WARPTILE_TEN(10) WARPTILE_TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127",
               128, 129, 130, 131, 132, 133, WARPTILE_OUT_128);

#undef WARPTILE_WGMMA
#undef WARPTILE_WGMMA_REGISTER
#undef WARPTILE_WGMMA_SHARED
#undef WARPTILE_OUT_128
#undef WARPTILE_OUT_96
#undef WARPTILE_OUT_64
#undef WARPTILE_OUT_32
#undef WARPTILE_OUT_8
#undef WARPTILE_90
#undef WARPTILE_60
#undef WARPTILE_30
#undef WARPTILE_TEN

} // namespace warptile
