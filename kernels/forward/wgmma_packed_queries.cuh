// Queries of packed rows, which no box of a tensor map has: each warp copies the 16 rows that it computes, and lays them out as a box would.
#pragma once

#include "forward/wgmma_softmax.cuh"
#include "memory/copy.cuh"

namespace warptile {

// The calling warp's rows of a tile, into the warpgroup's buffer at `queries`. When it returns, they are there for this thread's ordinary
// accesses. Rows that the sequence does not have, and columns that a row does not have, are 0.
template <class Traits> __device__ void load_packed_queries(const Forward& params, const Tile& tile, unsigned queries)
{
    using Element = typename Traits::Element;
    constexpr int WARP_ROWS = MMA_ROWS / WARPGROUP_WARPS, CHUNK = 8, SLAB_CHUNKS = SLAB_COLUMNS / CHUNK;
    constexpr int CHUNKS = Traits::HEAD_DIM / CHUNK, DOWN = 32 / CHUNKS; // rows that a warp copies at once
    static_assert(CHUNKS * DOWN == 32, "a lane for each 16 bytes of some rows");
    const int lane = thread_index() % 32, chunk = lane % CHUNKS, own_row = lane / CHUNKS;
    const PackedRows packed(params, tile.first_query + warp_row());
    const int rows = rows_of_queries<Traits>(params, tile.query_len) - tile.first_query - warp_row();
    const Element* const from = static_cast<const Element*>(params.q.address) + tile.batch * params.q.batch + tile.head * params.q.head +
                                tile.query_offset * params.q.row + chunk * CHUNK;
    queries += chunk / SLAB_CHUNKS * Traits::QUERY_SLAB_BYTES + warp_row() % MMA_ROWS * SWIZZLE_BYTES;
#pragma unroll 2
    for (int row = own_row; row < WARP_ROWS; row += DOWN)
        cp_async_16(queries + row * SWIZZLE_BYTES + (chunk % SLAB_CHUNKS ^ row % 8) * CHUNK_BYTES,
                    from + packed.query(row) * params.q.row + packed.head(row) * params.q.head,
                    row < rows && chunk * CHUNK < params.head_dim);
    cp_async_commit();
    cp_async_wait<0>();
}

} // namespace warptile
