// Fused attention for Hopper: the copy engine fills rings of K and V blocks, warpgroups multiply them with wgmma and keep
// scores, weights and output in registers. See docs/notebook/wgmma.md for what was measured.
#pragma once

#include "forward/wgmma_consumer.cuh"
#include "forward/wgmma_producer.cuh"
#include "forward/wgmma_shown.cuh"

namespace warptile {

// The parameter block of a variant.
template <Variant> struct ParamsOf {
    using Type = ForwardTma;
};
template <> struct ParamsOf<Variant::DROPOUT> {
    using Type = ForwardTmaDropout;
};
template <> struct ParamsOf<Variant::BLOCKS> {
    using Type = ForwardTmaBlocks;
};
template <> struct ParamsOf<Variant::BIAS> {
    using Type = ForwardTmaBoxes;
};
template <> struct ParamsOf<Variant::MASK> {
    using Type = ForwardTmaBoxes;
};
// The plain one in it.
__device__ inline const ForwardTma& plain_block(const ForwardTma& block) { return block; }
template <class Block> __device__ inline const ForwardTma& plain_block(const Block& block) { return block.tma; }

template <class Traits> __device__ __forceinline__ void wgmma_attention(const ForwardTma& params)
{
    // As the swizzle wants it: its pattern follows from the address.
    unsigned char* const shared = dynamic_shared<SWIZZLE_GROUP_BYTES>();
    const SharedLayout<Traits> layout = {shared_address(shared)};
    const int warp = uniform(threadIdx.x / 32);

    grid_dependency_launch();
    if (warp == 0 && threadIdx.x == 0) {
        prefetch_map(params.q_map);
        prefetch_map(params.k_map);
        prefetch_map(params.v_map);
        prefetch_map(params.out_map);
        layout.init_barriers(Traits::hides_keys() || (Traits::SERVING && params.forward.pages.table));
    }
    if constexpr (Traits::PAIRS)
        cluster_sync();
    else
        __syncthreads();
    // Up to here nothing but parameters has been read. Every thread that does more waits for the launch before; the loading thread once it
    // has worked out its first tile. So all work of a CTA comes after that launch, and this one does not end before it.
    if (warp < WARPGROUP_WARPS) {
        setmaxnreg_dec<Traits::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            Producer<Traits>(params, shared, layout).run();
        } else if (Traits::SERVING && params.forward.pages.table && (warp == 1 || warp == 2)) {
            grid_dependency_wait();
            const Pages& pages = params.forward.pages;
            if (warp == 1)
                PageLoader<Traits, Traits::SLABS>(pages, shared, layout, params.k_map, layout.keys(0), layout.keys_full(0)).run();
            else
                PageLoader<Traits, Traits::VALUE_SLABS>(pages, shared, layout, params.v_map, layout.values(0), layout.values_full(0)).run();
        } else if (Traits::has_tensors() && warp == 1 && masks_keys_alone(params.forward.scoring)) {
            grid_dependency_wait();
            find_shown_keys<Traits>(params.forward.scoring, shared, layout);
        } else if (Traits::hides_keys() && warp == 1) {
            grid_dependency_wait();
            if constexpr (Traits::hides_keys()) MaskReader<Traits>(params.forward.scoring, shared, layout).run();
        }
    } else {
        setmaxnreg_inc<Traits::CONSUMER_REGISTERS>();
        grid_dependency_wait();
        // Computed again here: ptxas would spill the value from the kernel's entry.
        const int warpgroup = uniform(thread_index() / WARPGROUP_THREADS) - 1;
        Consumer<Traits>(params, shared, layout, warpgroup).run();
    }
    if constexpr (Traits::PAIRS) {
        // The other CTA of the pair still arrives at barriers of this one, also when it has nothing more to wait for: those of its last
        // blocks.
        __syncwarp();
        cluster_leave();
    }
}

} // namespace warptile
