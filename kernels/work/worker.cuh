// Who takes a share of the keys (work/share.cuh): a CTA, or each warp of a CTA for itself. A worker's threads are numbered from 0, meet, and have
// shared memory of their own; workers are numbered through the grid.
//
// All of it is inlined before anything else is, so that what a CTA does is the same code as if its threads were named.
#pragma once

namespace warptile {

// All threads of a CTA.
struct CtaWorker {
    __device__ static constexpr bool is_warp() { return false; }
    __device__ static constexpr int of_cta() { return 1; }
    __device__ __forceinline__ static unsigned thread() { return threadIdx.x; }
    __device__ __forceinline__ static unsigned number() { return blockIdx.x; }
    __device__ __forceinline__ static unsigned count() { return gridDim.x; }
    __device__ __forceinline__ static void meet() { __syncthreads(); }
    __device__ __forceinline__ static unsigned char* own(unsigned char* shared, int) { return shared; }
};

// One of COUNT warps, which wait for each other nowhere. Neighbouring warps have neighbouring numbers, so those of a CTA read the same keys of
// neighbouring heads at about the same time: whole rows of a cache, or whole pages.
template <int COUNT> struct WarpWorker {
    __device__ static constexpr bool is_warp() { return true; }
    __device__ static constexpr int of_cta() { return COUNT; }
    __device__ __forceinline__ static unsigned thread() { return threadIdx.x % 32; }
    __device__ __forceinline__ static unsigned number() { return blockIdx.x * COUNT + threadIdx.x / 32; }
    __device__ __forceinline__ static unsigned count() { return gridDim.x * COUNT; }
    __device__ __forceinline__ static void meet() { __syncwarp(); }
    // `bytes`: of each.
    __device__ __forceinline__ static unsigned char* own(unsigned char* shared, int bytes) { return shared + threadIdx.x / 32 * bytes; }
};

} // namespace warptile
