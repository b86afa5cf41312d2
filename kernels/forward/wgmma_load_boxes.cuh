// A bias or a key mask that the copy engine brings to shared memory, with each block of keys.
#pragma once

#include "base/abi_boxes.cuh"
#include "forward/wgmma_layout.cuh"

namespace warptile {

// What a kernel with boxes of scores takes, from what all of the family take.
template <class WithBoxes> __device__ inline const WithBoxes& boxes_of(const ForwardTma& params)
{
    return reinterpret_cast<const WithBoxes&>(params); // which begins with it
}

// Asks for the boxes of a tile's rows and the keys from `first_key` on. Their bytes count at the barrier of the keys. Zeros stand for what
// is not in the tensor, rows in front of a sequence's first one among it.
template <class Traits, class WithBoxes>
__device__ inline void load_boxes(const SharedLayout<Traits>& layout, int stage, const WithBoxes& params, const Scoring& scoring, const Tile& tile,
                                  int first_key)
{
    const bool has_heads = Traits::has_bias_boxes() ? scoring.bias_head : scoring.mask_head;
    const bool has_batch = Traits::has_bias_boxes() ? scoring.bias_batch : scoring.mask_batch;
    const int head = has_heads ? tile.head : 0, batch = has_batch ? tile.batch : 0;
#pragma unroll
    for (int warpgroup = 0; warpgroup < Traits::CONSUMERS; warpgroup++)
#pragma unroll
        for (int slab = 0; slab < Traits::BOX_SLABS; slab++)
            copy_box(layout.box(warpgroup, stage) + slab * Traits::BOX_SLAB_BYTES, params.boxes_map, layout.keys_full(stage),
                     params.before + first_key + slab * SLAB_COLUMNS, tile.first_query + warpgroup * MMA_ROWS, head, batch);
}

} // namespace warptile
