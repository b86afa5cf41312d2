// Checks that debug images make before they compute. `build-kernels --debug` includes this file ahead of a family's own and calls
// `check_launch` at the start of its entry; no other image sees it, and no image's source hash covers it.
#pragma once

#include "base/abi_blocks.cuh"
#include "base/record.cuh"
#include "debug/shared_bytes.cuh"
#include "rule/score.cuh"

extern "C" __device__ void __assertfail(const char* message, const char* file, unsigned line, const char* function,
                                        size_t character_bytes);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A call anywhere in the kernel would serialize its wgmma (ptxas, C7510). The launch ends with an error all the same; the line is in a
// core dump, or in a debugger.
#define WARPTILE_ASSERT(condition) ((condition) ? (void)0 : __trap())
#else
// Ends the launch with CUDA_ERROR_ASSERT, and has the driver print what did not hold and where.
#define WARPTILE_ASSERT(condition)                                                                                     \
    ((condition) ? (void)0 : __assertfail(#condition, __FILE__, __LINE__, __func__, sizeof(char)))
#endif

namespace warptile {

// Polls after which a wait counts as hung: seconds, where waits take microseconds. A poll that fails takes 4 to 9 us from sm_90 on
// (measured on an H200), about 0.1 us on older GPUs.
#if __CUDA_ARCH__ >= 900
constexpr unsigned MOST_POLLS = 1u << 19;
#else
constexpr unsigned MOST_POLLS = 1u << 24;
#endif

template <class Traits, class Element> __device__ void check_tensor(const Tensor& tensor)
{
    constexpr bool UNALIGNED = (Traits::FEATURES & FEATURE_UNALIGNED) != 0;
    constexpr unsigned long long BYTES = UNALIGNED ? sizeof(Element) : 16;
    constexpr long long ELEMENTS = BYTES / sizeof(Element);
    WARPTILE_ASSERT((unsigned long long)tensor.address % BYTES == 0);
    WARPTILE_ASSERT(tensor.batch % ELEMENTS == 0 && tensor.row % ELEMENTS == 0 && tensor.head % ELEMENTS == 0);
}

// Checks the preconditions that the host guarantees for every launch of the kernel. `Key`: the elements of keys and values.
template <class Traits, class Key = typename Traits::Element> __device__ void check_launch(const Forward& params)
{
    if (threadIdx.x != 0) {
        return;
    }
    WARPTILE_ASSERT(blockDim.x == Traits::THREADS && blockDim.y == 1 && blockDim.z == 1);
    WARPTILE_ASSERT((gridDim.y == 1 || Traits::SCHEDULE == SCHEDULE_CLUSTER_TILE) && gridDim.z == 1);
    WARPTILE_ASSERT(dynamic_shared_bytes() >= (unsigned)Traits::SHARED_BYTES);
    WARPTILE_ASSERT(params.heads > 0 && params.kv_heads > 0 && params.heads % params.kv_heads == 0);
    WARPTILE_ASSERT(params.head_dim > 0 && params.head_dim <= Traits::HEAD_DIM && params.head_dim % 8 == 0);
    WARPTILE_ASSERT(params.value_dim > 0 && params.value_dim <= value_dim<Traits>(0) && params.value_dim % 8 == 0);
    WARPTILE_ASSERT(params.work.tiles > 0 && params.work.query_tiles > 0 && params.work.heads_at_once > 0);
    WARPTILE_ASSERT(Traits::SCHEDULE != SCHEDULE_SHARED_KEYS ||
                    (params.work.side_by_side > 0 && gridDim.x % params.work.side_by_side == 0));
    WARPTILE_ASSERT(Traits::SCHEDULE != SCHEDULE_SHARED_KEYS || (params.work.semaphores && params.work.partials));
    WARPTILE_ASSERT(Traits::SCHEDULE != SCHEDULE_PERSISTENT || params.work.counter || gridDim.x >= (unsigned)params.work.tiles);
    WARPTILE_ASSERT(Traits::SCHEDULE != SCHEDULE_PAIRS ||
                    (gridDim.x % abi::PAIR_CTAS == 0 && (params.work.counter || gridDim.x / abi::PAIR_CTAS >= (unsigned)params.work.tiles)));
    WARPTILE_ASSERT(Traits::SCHEDULE != SCHEDULE_PAIRS || params.heads / params.kv_heads % 2 == 0 ||
                    (params.scoring.window_left == WINDOW_UNLIMITED && params.scoring.window_right == WINDOW_UNLIMITED));
    WARPTILE_ASSERT(Traits::SCHEDULE != SCHEDULE_PERSISTENT_GROUPS || Traits::FEATURES & FEATURE_PAGED || params.heads == 2 * params.kv_heads ||
                    params.heads == 4 * params.kv_heads || params.heads == abi::MAX_BOX_HEADS * params.kv_heads);
    const Sequences& sequences = params.sequences;
    WARPTILE_ASSERT(sequences.batch > 0 && sequences.query_len >= 0 && sequences.key_len >= 0);
    WARPTILE_ASSERT(is_valid(params.scoring));
    const Pages& pages = params.pages;
    WARPTILE_ASSERT(!pages.table || (pages.rows > 0 && pages.rows <= abi::MAX_PAGE_ROWS && pages.count >= 0 && pages.table_row >= 0));
    check_tensor<Traits, typename Traits::Element>(params.q);
    check_tensor<Traits, Key>(params.k);
    check_tensor<Traits, Key>(params.v);
    check_tensor<Traits, typename Traits::Element>(params.out);
}

template <class Traits> __device__ void check_launch(const ForwardE4m3& params)
{
    check_launch<Traits, typename Traits::Keys::Element>(params.forward);
}
template <class Traits> __device__ void check_launch(const ForwardBlocks& params)
{
    check_launch<Traits>(params.forward);
}
template <class Traits> __device__ void check_launch(const ForwardTma& params)
{
    check_launch<Traits>(params.forward);
}

} // namespace warptile
