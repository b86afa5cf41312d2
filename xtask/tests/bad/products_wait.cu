// Descriptors of wgmma that each thread loads: ptxas moves each to a uniform register before its product.
#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void __launch_bounds__(32 * Instance::WARPS) WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    const unsigned long long* descriptors = reinterpret_cast<const unsigned long long*>(params.lse) + threadIdx.x;
    unsigned long long left[32], right[32];
    for (int i = 0; i < 32; i++) {
        left[i] = descriptors[i * 256];
        right[i] = descriptors[i * 256 + 128];
    }
    float sum[4] = {};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 32; i++)
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "l"(left[i]), "l"(right[i]));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; i++) params.lse[threadIdx.x * 4 + i] = sum[i];
}
