// The kernels of merges, cache writes, the backward pass and lists of blocks by mma.sync as functions of the CPU, for crates/attention/tests/emulated.
#include "shim.h"

#include "guarded.h"

namespace warptile {
void named_barrier_wait(int id, int threads);
}
#include "backward/bias.cuh"
#include "backward/gradients.cuh"
#include "backward/listed.cuh"
#include "backward/prepass.cuh"
#include "backward/sinks.cuh"
#include "backward/sums.cuh"
#include "backward/wgmma.cuh"
#include "backward/wgmma_keys.cuh"
#include "backward/wgmma_queries.cuh"
#include "forward/mma_listed.cuh"
#include "ops/append.cuh"
#include "ops/merge.cuh"
#include "ops/runs.cuh"

#include <string>
#include <utility>

using namespace warptile;

namespace warptile {
void grid_dependency_wait() { has_waited[threadIdx.x] = true; }

static std::vector<std::unique_ptr<Barrier>> named;
void named_barrier_wait(int id, int threads)
{
    if (!named[id]) named[id] = std::make_unique<Barrier>(threads, false);
    named[id]->arrive_and_wait();
}
} // namespace warptile

// Ends the program if a thread has not waited for the launch before. The threads of a CTA run one after the other, or in turns where
// lanes wait for each other.
template <bool IN_TURNS = false, class Block>
static void run(void (*kernel)(const Block&), const void* params, unsigned grid, unsigned threads)
{
    const auto run_thread = [&] {
        has_waited[threadIdx.x] = false;
        kernel(*static_cast<const Block*>(params));
        if (!has_waited[threadIdx.x]) end("a thread reads what the launch before may still write\n");
    };
    gridDim.x = grid;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
        if constexpr (IN_TURNS) {
            std::vector<Barrier> warps(threads / 32, Barrier(32, false));
            Barrier all(threads, true);
            cta_bar = &all;
            named.clear();
            valid_barriers.clear();
            expected_bytes.clear();
            named.resize(16);
            std::fill(std::begin(copies), std::end(copies), Copies());
            memset(shared, 0xff, sizeof shared);
            for (unsigned warp = 0; warp < threads / 32; ++warp) warp_bar[warp] = &warps[warp];
            Threads::run(threads, blockIdx.x, run_thread);
            expect_no_copies();
        } else {
            for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) run_thread();
        }
    }
}

template <class Traits> void dropping_gradients(const BackwardDropout& params) { gradients<Dropping<Traits>>(params.backward); }

template <class Element, bool OF_KEYS> static bool run_pair(const std::string& tiling, const void* params, unsigned grid, unsigned threads)
{
#define PAIR(D, M, N, W, S)                                                                                                                        \
    if (tiling == "d" #D "_" #M "x" #N "_w" #W "_s" #S)                                                                                            \
        return run<true>(gradients<typename GradientTraits<Element, D, M, N, W, S, OF_KEYS>::Type>, params, grid, threads), true;
#define DROPPING(D, M, N, W, S)                                                                                                                    \
    if (tiling == "d" #D "_" #M "x" #N "_w" #W "_s" #S "_dropout")                                                                                 \
        return run<true>(dropping_gradients<typename GradientTraits<Element, D, M, N, W, S, OF_KEYS>::Type>, params, grid, threads), true;
#define LISTING(D, M, N, W, S)                                                                                                                     \
    if (tiling == "d" #D "_" #M "x" #N "_w" #W "_s" #S "_blocks")                                                                                  \
        return run<true>(listed_gradients<Listing<PairTraits<Element, D, M, N, W, S, OF_KEYS>>>, params, grid, threads), true;
    if constexpr (sizeof(Element) == 4) {
        PAIR(64, 32, 32, 4, 1) PAIR(128, 32, 32, 4, 1) PAIR(256, 16, 16, 4, 1)
        DROPPING(64, 32, 32, 4, 1) DROPPING(128, 32, 32, 4, 1) DROPPING(256, 16, 16, 4, 1)
    } else if constexpr (OF_KEYS) {
        PAIR(64, 64, 64, 4, 2) PAIR(64, 64, 128, 4, 2) PAIR(96, 64, 64, 4, 2) PAIR(96, 64, 128, 8, 2) PAIR(128, 64, 64, 4, 1)
        PAIR(128, 64, 128, 8, 2) PAIR(192, 32, 64, 8, 1) PAIR(192, 64, 64, 8, 2) PAIR(256, 32, 32, 4, 1) PAIR(256, 64, 64, 8, 2)
        DROPPING(64, 64, 64, 4, 2) DROPPING(128, 64, 64, 4, 1) DROPPING(256, 32, 32, 4, 1)
        LISTING(64, 64, 64, 4, 2) LISTING(96, 64, 64, 4, 2) LISTING(128, 64, 64, 4, 1) LISTING(192, 64, 64, 8, 2) LISTING(256, 64, 64, 8, 2)
        LISTING(192, 32, 64, 8, 1) LISTING(256, 32, 32, 4, 1)
    } else {
        PAIR(64, 64, 64, 4, 2) PAIR(64, 128, 64, 4, 2) PAIR(96, 64, 64, 4, 2) PAIR(96, 128, 64, 4, 1) PAIR(128, 64, 64, 4, 1)
        PAIR(128, 128, 64, 4, 1) PAIR(192, 64, 32, 4, 1) PAIR(256, 64, 16, 4, 1) PAIR(256, 64, 32, 4, 1)
        DROPPING(64, 64, 64, 4, 2) DROPPING(128, 64, 64, 4, 1) DROPPING(256, 64, 32, 4, 1)
        LISTING(64, 64, 64, 4, 2) LISTING(96, 64, 64, 4, 2) LISTING(128, 64, 64, 4, 1) LISTING(192, 64, 32, 4, 1) LISTING(256, 64, 32, 4, 1)
        LISTING(256, 64, 16, 4, 1)
    }
#undef PAIR
#undef DROPPING
#undef LISTING
    return false;
}

// The kernels for Hopper, by the names of the plain ones and of their variants.
template <class Element> static bool run_hopper(const std::string& kernel, const void* params, unsigned grid, unsigned threads)
{
#define HOPPER(NAME, FUNCTION, TRAITS, DROPPING, ...)                                                                                              \
    if (kernel == NAME) return run<true>(FUNCTION<TRAITS<Element, __VA_ARGS__>>, params, grid, threads), true;                                     \
    if (kernel == NAME "_dropout")                                                                                                                 \
        return run<true>(+[](const BackwardTmaDropout& block) { FUNCTION<DROPPING<TRAITS<Element, __VA_ARGS__>>>(block.tma); }, params, grid, threads), true;
#define WITH(NAME, FUNCTION, TRAITS, DROPPING, ...)                                                                                                \
    if (kernel == NAME "_softcap")                                                                                                                 \
        return run<true>(FUNCTION<GradientsWith<TRAITS<Element, __VA_ARGS__>, FEATURE_SOFTCAP>>, params, grid, threads), true;                     \
    if (kernel == NAME "_alibi")                                                                                                                   \
        return run<true>(FUNCTION<GradientsWith<TRAITS<Element, __VA_ARGS__>, FEATURE_ALIBI>>, params, grid, threads), true;                       \
    HOPPER(NAME, FUNCTION, TRAITS, DROPPING, __VA_ARGS__)
    WITH("dqkv_d64_64x192_w16_s2", all_gradients, OnePassTraits, OnePassDropping, 64, 64, 192, 16, 2)
    WITH("dqkv_d96_64x128_w12_s2", all_gradients, OnePassTraits, OnePassDropping, 96, 64, 128, 12, 2)
    WITH("dqkv_d128_64x128_w12_s2", all_gradients, OnePassTraits, OnePassDropping, 128, 64, 128, 12, 2)
    WITH("wdkv_d192_64x64_w12_s3", gradients_of_keys, KeyGradientTraits, KeyDropping, 192, 64, 64, 12, 3)
    HOPPER("wdkv_d192_64x64_w16_s3", gradients_of_keys, KeyGradientTraits, KeyDropping, 192, 64, 64, 16, 3)
    WITH("wdkv_d256_64x64_w12_s3", gradients_of_keys, KeyGradientTraits, KeyDropping, 256, 64, 64, 12, 3)
    WITH("wdq_d192_128x64_w12_s3", gradients_of_queries, QueryGradientTraits, QueryDropping, 192, 128, 64, 12, 3)
    HOPPER("wdq_d192_128x64_w16_s3", gradients_of_queries, QueryGradientTraits, QueryDropping, 192, 128, 64, 16, 3)
    WITH("wdq_d256_128x64_w12_s2", gradients_of_queries, QueryGradientTraits, QueryDropping, 256, 128, 64, 12, 2)
#undef WITH
#undef HOPPER
    return false;
}

template <class Element> static bool run_listed(const std::string& kernel, const void* params, unsigned grid, unsigned threads)
{
#define LISTED(D, S)                                                                                                                               \
    if (kernel == "mma_d" #D "_64x64_w4_s" #S "_blocks")                                                                                           \
        return run<true>(listed_tile_attention<ListedTileTraits<Element, D, 64, 64, 4, S>>, params, grid, threads), true;
    LISTED(64, 2) LISTED(128, 2) LISTED(192, 1) LISTED(256, 1)
#undef LISTED
    return false;
}

template <class Element> static bool run(const std::string& kernel, const void* params, unsigned grid, unsigned threads)
{
    if (kernel == "merge_w4") run(merge_results<RowTraits<Element, 4, ROLE_COMBINE>>, params, grid, threads);
    else if (kernel == "append_w4") run(append_rows<AppendTraits<Element, 4, SameCache<Element>>>, params, grid, threads);
    else if (kernel == "append_e4m3_w4") run(append_rows<AppendTraits<Element, 4, E4m3Cache<Element>>>, params, grid, threads);
    else if (kernel == "prepass_w4") run<true>(prepare_rows<RowTraits<Element, 4, ROLE_PREPASS>>, params, grid, threads);
    else if (kernel == "runs_w16") run<true>(find_runs<RunTraits<Element, 16>>, params, grid, threads);
    else if (kernel == "dsinks_w8") run<true>(sum_sinks<SinkTraits<Element, 8>>, params, grid, threads);
    else if (kernel == "dbias_d256_64x64_w4_s3" || kernel == "dbias_d256_32x32_w4_s2") {
        constexpr int SIZE = sizeof(Element) == 2 ? 64 : 32;
        run<true>(bias_gradient<BiasTraits<Element, 256, SIZE, SIZE, 4, sizeof(Element) == 2 ? 3 : 2>>, params, grid, threads);
    }
    else if (kernel.rfind("dkv_", 0) == 0) return run_pair<Element, true>(kernel.substr(4), params, grid, threads);
    else if (kernel.rfind("dq_", 0) == 0) return run_pair<Element, false>(kernel.substr(3), params, grid, threads);
    else if (kernel == "dqsum_d64_64x192_w4_s1") run<true>(write_sums<SumTraits<Element, 64, 64, 192, 4>>, params, grid, threads);
    else if (kernel == "dqsum_d96_64x128_w4_s1") run<true>(write_sums<SumTraits<Element, 96, 64, 128, 4>>, params, grid, threads);
    else if (kernel == "dqsum_d128_64x128_w4_s1") run<true>(write_sums<SumTraits<Element, 128, 64, 128, 4>>, params, grid, threads);
    else if constexpr (sizeof(Element) == 2) {
        return run_listed<Element>(kernel, params, grid, threads) || run_hopper<Element>(kernel, params, grid, threads);
    } else return false;
    return true;
}

// How often a thread has stopped waiting for a turn since the last time this was asked.
extern "C" __attribute__((visibility("default"))) unsigned take_turns_given_up() { return std::exchange(turns_given_up, 0); }

// Runs the kernel with this entry; false if there is none.
extern "C" __attribute__((visibility("default"))) bool run_kernel(const char* entry, const void* params, unsigned grid, unsigned threads)
{
    // Of a variant: kernel, element, variant.
    std::string name = entry, variant;
    const std::string prefix = "warptile_";
    for (const std::string of : {"_dropout", "_softcap", "_alibi", "_blocks"})
        if (name.size() > of.size() && name.compare(name.size() - of.size(), of.size(), of) == 0) {
            name.resize(name.size() - of.size());
            variant = of;
        }
    const size_t end = name.rfind('_');
    if (name.rfind(prefix, 0) != 0 || end < prefix.size()) return false;
    const std::string kernel = name.substr(prefix.size(), end - prefix.size()) + variant, element = name.substr(end + 1);
    if (element == "f16") return run<__half>(kernel, params, grid, threads);
    if (element == "bf16") return run<__nv_bfloat16>(kernel, params, grid, threads);
    if (element == "f32") return run<float>(kernel, params, grid, threads);
    return false;
}
