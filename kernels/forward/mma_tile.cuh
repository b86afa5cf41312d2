// The family `mma`: many queries, by mma.sync, on every GPU from sm_80 on. A CTA computes a tile: rows are queries with each of the heads
// that share a key/value head, so keys are read once for all of them. Its warps have 16 or 32 rows each and take the tile's keys
// together, block by block from the last to the first: a causal mask's diagonal and what is left over of a block come first, where the
// maxima are found anyway.
#pragma once

#include "forward/mma_tile_load.cuh"
#include "forward/mma_tile_rows.cuh"

namespace warptile {

// Writes the results of a warp's rows, by way of their place in `shared`.
template <class Traits>
__device__ inline void write_rows(const Forward& params, unsigned char* shared, const Segment& tile, int group,
                                  const TileRows<Traits>& rows)
{
    using Element = typename Traits::Element;
    const int lane = anew(threadIdx.x) % 32, first_row = rows.first_row();
    const int first_chunk = rows.column_part() * Traits::COLUMN_TILES; // of 8 columns
    unsigned char* const own = shared + first_row * Traits::ROW_BYTES + first_chunk * CHUNK_BYTES;
    const int existing = existing_rows<Traits>(tile, group);
#pragma unroll
    for (int one = 0; one < TileRows<Traits>::ROWS; one++) {
        RowSum sum = rows.sum(one);
        float keep = 1;
        if (params.scoring.sinks) {
            const Row row(tile, group, rows.row_of_tile(one, lane));
            keep = join_sink(sum.max, sum.sum, sink_of(params.scoring, min(row.head, params.heads - 1)));
        }
        if (params.lse && lane % 4 == 0 && rows.column_part() == 0 && rows.row_of_tile(one, lane) < existing) {
            const Row row(tile, group, rows.row_of_tile(one, lane));
            params.lse[tile.batch * params.lse_batch + row.head * params.lse_head + tile.q.first + row.query] =
                sum.sum == 0 ? negative_infinity() : (sum.max + __log2f(sum.sum)) * LN_2;
        }
        const float inverse = sum.sum == 0 ? 0 : keep * reciprocal_approximate(sum.sum);
        const int row_of_warp = one * 8 + lane / 4;
#pragma unroll
        for (int i = 0; i < Traits::COLUMN_TILES; i++) {
            const float2 two = rows.columns(one, i);
            *reinterpret_cast<unsigned*>(own + Traits::place(row_of_warp, i) + lane % 4 * (int)sizeof(unsigned)) =
                narrow2<Element>(two.x * inverse, two.y * inverse);
        }
    }
    __syncwarp();
    // A lane finds one row's place.
    const long long offset = row_offset(params.out, tile, group, first_row + lane % Traits::WARP_ROWS);
#pragma unroll 4
    for (int i = lane; i < Traits::WARP_ROWS * Traits::COLUMN_TILES; i += 32) {
        const int row_of_warp = i / Traits::COLUMN_TILES, chunk = i % Traits::COLUMN_TILES;
        Element* const to = static_cast<Element*>(params.out.address) + row_offset_of(offset, row_of_warp) + (first_chunk + chunk) * CHUNK<Element>;
        if (first_row + row_of_warp < existing && (first_chunk + chunk) * CHUNK<Element> < params.value_dim)
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(own + Traits::place(row_of_warp, chunk));
    }
}

template <class Traits> __device__ void tile_attention(const Forward& params)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const auto address = [&] { return (unsigned)__cvta_generic_to_shared(shared); };
    TileState<Traits>& state = *reinterpret_cast<TileState<Traits>*>(shared + Traits::STATE_AT);
    const auto &tile = state.tile, &next = state.next;
    // -1 if there is none.
    const auto last_block = [](const Segment& tile) {
        return tile.is_end() || tile.first_key >= tile.end_key ? -1 : (tile.end_key - tile.first_key - 1) / Traits::BLOCK_N;
    };
    let_successor_begin();
    if (threadIdx.x == 0) state.begin(params);
    __syncthreads();
    if (tile.is_end()) return;
    wait_for_predecessor();
    // Where the block that is computed lies; in the other place the one after it arrives meanwhile.
    unsigned keys = kept(address());
    const auto other = [&] { return 2 * address() + Traits::STAGE_BYTES - keys; };
    TileLoader<Traits> loader(params);
    loader.load_queries(tile, state.group, address() + Traits::QUERIES_AT);
    loader.load_block(tile, last_block(tile), true, keys);
    if (threadIdx.x == 0) {
        state.number = state.draw(params);
        state.describe(params, state.next);
    }
#pragma unroll 1
    for (;;) {
        TileRows<Traits> rows(params, state, address());
        cp_async_wait<0>();
        __syncthreads(); // queries and the last block are there, and so is what the next tile is
        rows.take_queries();
#pragma unroll 1
        for (int block = last_block(tile); block >= 0; block--) {
            const bool ends = block == 0;
            loader.load_block(ends ? next : tile, ends ? last_block(next) : block - 1, ends, other());
            rows.add(block, keys);
            keys = other();
            cp_async_wait<0>();
            __syncthreads(); // the next block is there, and all have computed this one
        }
        unsigned number = 0;
        if (!next.is_end()) {
            if (last_block(tile) < 0) loader.load_block(next, last_block(next), true, keys);
            loader.load_queries(next, state.group, address() + Traits::QUERIES_AT);
            cp_async_commit();
            if (threadIdx.x == 0) number = state.draw(params);
        }
        write_rows(params, shared + (other() - address()), tile, state.group, rows);
        if (next.is_end()) break;
        if (threadIdx.x == 0) {
            state.number = number;
            state.describe(params, state.after);
        }
        __syncthreads(); // all have written the tile
        if (threadIdx.x < 32) state.advance();
        __syncthreads();
    }
}

} // namespace warptile
