#pragma once
#include "forward/wgmma_softmax.cuh"
// What each row of a slab holds is who it is.
namespace warptile {
template <class Traits> void load_packed_queries(const Forward& params, const Tile& tile, unsigned queries)
{
    constexpr int WARP_ROWS = MMA_ROWS / WARPGROUP_WARPS;
    const PackedRows packed(params, tile.first_query + warp_row());
    const int rows = rows_of_queries<Traits>(params, tile.query_len) - tile.first_query - warp_row();
    const int batch = params.sequences.query_offsets ? 0 : tile.batch;
    Cta& cta = emulation::launch.cta();
    for (int slab = 0; slab < Traits::SLABS; slab++) {
        const unsigned begin = queries + slab * Traits::QUERY_SLAB_BYTES + warp_row() % MMA_ROWS * SWIZZLE_BYTES;
        const Range range = {begin, begin + WARP_ROWS * SWIZZLE_BYTES};
        emulation::launch.step();
        emulation::launch.must_be_free(cta, range);
        memset(cta.memory + range.begin, 0xff, range.end - range.begin);
        for (int row = 0; row < WARP_ROWS; row++) {
            const numbers::Tag tag = row < rows ? numbers::tag(numbers::QUERIES, slab, tile.head + packed.head(row), batch,
                                                               tile.query_offset + packed.query(row))
                                                : numbers::ZERO;
            memcpy(cta.memory + begin + row * SWIZZLE_BYTES, &tag, sizeof tag);
        }
    }
}
}
