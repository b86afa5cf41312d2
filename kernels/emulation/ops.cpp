// The kernels of merges, cache writes and the pre-pass of the backward pass as functions of the CPU, for crates/attention/tests/emulated.
#include "shim.h"

#include "guarded.h"

#include "backward/prepass.cuh"
#include "ops/append.cuh"
#include "ops/merge.cuh"

#include <string>

using namespace warptile;

namespace warptile {
void wait_for_predecessor() { has_waited[threadIdx.x] = true; }
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
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
        if constexpr (IN_TURNS) {
            std::vector<Barrier> warps(threads / 32, Barrier(32, false));
            for (unsigned warp = 0; warp < threads / 32; ++warp) warp_bar[warp] = &warps[warp];
            Threads::run(threads, blockIdx.x, run_thread);
        } else {
            for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) run_thread();
        }
    }
}

template <class Element> static bool run(const std::string& kernel, const void* params, unsigned grid, unsigned threads)
{
    if (kernel == "merge_w4") run(merge_results<RowTraits<Element, 4, ROLE_COMBINE>>, params, grid, threads);
    else if (kernel == "append_w4") run(append_rows<AppendTraits<Element, 4, SameCache<Element>>>, params, grid, threads);
    else if (kernel == "append_e4m3_w4") run(append_rows<AppendTraits<Element, 4, E4m3Cache<Element>>>, params, grid, threads);
    else if (kernel == "prepass_w4") run<true>(prepare_rows<RowTraits<Element, 4, ROLE_PREPASS>>, params, grid, threads);
    else return false;
    return true;
}

// Runs the kernel with this entry; false if there is none.
extern "C" bool run_kernel(const char* entry, const void* params, unsigned grid, unsigned threads)
{
    const std::string name = entry, prefix = "warptile_";
    const size_t end = name.rfind('_');
    if (name.rfind(prefix, 0) != 0 || end < prefix.size()) return false;
    const std::string kernel = name.substr(prefix.size(), end - prefix.size()), element = name.substr(end + 1);
    if (element == "f16") return run<__half>(kernel, params, grid, threads);
    if (element == "bf16") return run<__nv_bfloat16>(kernel, params, grid, threads);
    if (element == "f32") return run<float>(kernel, params, grid, threads);
    return false;
}
