// wgmma.mma_async whose left operand lies in shared memory with rows along M (K contiguous), and whose right one with rows along K (N
// contiguous): the form that ptx/wgmma.cuh has no use for. Accumulators lie as there.
#pragma once

#include "ptx/wgmma.cuh"

namespace warptile {

template <int N> struct WgmmaRows;

// The accumulators are operands 0 to n / 2 - 1; p0 to p2 are the numbers of those that follow.
#define WARPTILE_OUT_8(i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define WARPTILE_OUT_32 WARPTILE_OUT_8(0), WARPTILE_OUT_8(8), WARPTILE_OUT_8(16), WARPTILE_OUT_8(24)
#define WARPTILE_OUT_48 WARPTILE_OUT_32, WARPTILE_OUT_8(32), WARPTILE_OUT_8(40)
#define WARPTILE_OUT_64                                                                                                \
    WARPTILE_OUT_48, WARPTILE_OUT_8(48), WARPTILE_OUT_8(56)
#define WARPTILE_WGMMA_ROWS(n, type, list, p0, p1, p2, ...)                                                            \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #p2 ", 0;\n"                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list "}, %" #p0 ", %" #p1        \
                 ", add, 1, 1, 0, 1;\n}"                                                                               \
                 : __VA_ARGS__                                                                                         \
                 : "l"(a), "l"(b), "r"((int)add))
#define WARPTILE_WGMMA(n, list, p0, p1, p2, ...)                                                                       \
    template <> struct WgmmaRows<n> {                                                                                  \
        template <class Element>                                                                                       \
        __device__ static void shared(float (&d)[n / 2], unsigned long long a, unsigned long long b, bool add)         \
        {                                                                                                              \
            if constexpr (IS_HALF<Element>)                                                                            \
                WARPTILE_WGMMA_ROWS(n, "f16", list, p0, p1, p2, __VA_ARGS__);                                          \
            else                                                                                                       \
                WARPTILE_WGMMA_ROWS(n, "bf16", list, p0, p1, p2, __VA_ARGS__);                                         \
        }                                                                                                              \
    }

WARPTILE_WGMMA(64, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31", 32, 33, 34, WARPTILE_OUT_32);
WARPTILE_WGMMA(96, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47", 48, 49, 50, WARPTILE_OUT_48);
WARPTILE_WGMMA(128, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63", 64, 65, 66, WARPTILE_OUT_64);

#undef WARPTILE_WGMMA
#undef WARPTILE_WGMMA_ROWS
#undef WARPTILE_OUT_64
#undef WARPTILE_OUT_48
#undef WARPTILE_OUT_32
#undef WARPTILE_OUT_8

} // namespace warptile
