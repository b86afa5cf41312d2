// wgmma.mma_async whose left operand lies in registers, and whose right one in shared memory with rows along N (K contiguous): the form that
// ptx/wgmma.cuh has no use for. Accumulators and left operands lie as there.
#pragma once

#include "ptx/wgmma.cuh"

namespace warptile {

#define WARPTILE_OUT_8(i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define WARPTILE_WGMMA_LEFT(type)                                                                                      \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"                                                      \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {%0, %1, %2, %3, %4, %5, %6, %7, %8, "  \
                 "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, " \
                 "%29, %30, %31}, {%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}"                                         \
                 : WARPTILE_OUT_8(0), WARPTILE_OUT_8(8), WARPTILE_OUT_8(16), WARPTILE_OUT_8(24)                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))

// d = a b (+ d), b of 64 rows.
template <class Element> __device__ inline void wgmma_left(float (&d)[32], const unsigned (&a)[4], unsigned long long b, bool add)
{
    if constexpr (IS_HALF<Element>)
        WARPTILE_WGMMA_LEFT("f16");
    else
        WARPTILE_WGMMA_LEFT("bf16");
}

#undef WARPTILE_WGMMA_LEFT
#undef WARPTILE_OUT_8

} // namespace warptile
