// The family `mma`: many queries, by mma.sync, on every GPU from sm_80 on. A CTA computes a tile: rows are queries with each of the heads
// that share a key/value head, so keys are read once for all of them. Its warps have 16 or 32 rows each and take the tile's keys
// together, block by block from the last to the first: a causal mask's diagonal and what is left over of a block come first, where the
// maxima are found anyway.
#pragma once

#include "forward/mma_tile_load.cuh"
#include "forward/mma_tile_rows.cuh"

namespace warptile {

// Writes the results of a warp's rows, by way of its queries' place.
template <class Traits>
__device__ inline void write_rows(const Forward& params, unsigned char* shared, const Segment& tile, int group,
                                  const TileRows<Traits>& rows)
{
    using Element = typename Traits::Element;
    const int lane = anew(threadIdx.x) % 32, first_row = rows.first_row();
    const int first_chunk = rows.column_part() * Traits::COLUMN_TILES; // of 8 columns
    unsigned char* const own = shared + Traits::QUERIES_AT + first_row * Traits::ROW_BYTES + first_chunk * CHUNK_BYTES;
    // Where this lane's first two columns go. The others are at 8 places, and at constants from these.
    const unsigned place = Traits::place(lane / 4, 0) + lane % 4 * (unsigned)sizeof(unsigned);
    const unsigned own_address = (unsigned)__cvta_generic_to_shared(own);
    const int existing = existing_rows<Traits>(tile, group);
    if constexpr (Traits::column_parts() == 1)
        __syncwarp(); // all have read the queries
    else
        __syncthreads(); // and the warps that share the rows
#pragma unroll
    for (int one = 0; one < TileRows<Traits>::ROWS; one++) {
        RowSum sum = rows.sum(one);
        float keep = 1;
        if (have_last_terms(params.scoring)) {
            const Row row(tile, group, rows.row_of_tile(one, lane));
            const float term = last_term_of(params.scoring, min(row.head, params.heads - 1));
            // None: joined, it would be the max of a row that sees no key.
            if (term != negative_infinity()) keep = join_last_term(sum.max, sum.sum, term);
        }
        if (params.lse && lane % 4 == 0 && rows.column_part() == 0 && rows.row_of_tile(one, lane) < existing) {
            const Row row(tile, group, rows.row_of_tile(one, lane));
            params.lse[tile.batch * params.lse_batch + row.head * params.lse_head + tile.q.first + row.query] =
                sum.sum == 0 ? negative_infinity() : (sum.max + __log2f(sum.sum)) * LN_2;
        }
        float inverse = sum.sum == 0 ? 0 : keep * reciprocal_approximate(sum.sum);
        if constexpr (drops<Traits>()) inverse *= dropout_of<ForwardDropout>(params).factor;
#pragma unroll
        for (int i = 0; i < Traits::COLUMN_TILES; i++) {
            const float2 two = rows.columns(one, i);
            const unsigned to = own_address + Traits::further(place, i) + one * 8 * Traits::ROW_BYTES;
            store_word(to, narrow2<Element>(two.x * inverse, two.y * inverse));
        }
    }
    __syncwarp();
    // A lane finds one row's place, and copies chunks: some are read before one of them is written, or each would wait for itself.
    const long long offset = row_offset(params.out, tile, group, first_row + lane % Traits::WARP_ROWS);
    constexpr int COUNT = Traits::WARP_ROWS * Traits::COLUMN_TILES / 32, AT_ONCE = COUNT % 8 == 0 ? 8 : COUNT % 4 == 0 ? 4 : COUNT;
    static_assert(Traits::WARP_ROWS * Traits::COLUMN_TILES % 32 == 0, "lanes copy as many chunks each");
    const auto row_of = [&](int i) { return (unsigned)(32 * i + lane) / Traits::COLUMN_TILES; }; // of the warp
    const auto chunk_of = [&](int i) { return (unsigned)(32 * i + lane) % Traits::COLUMN_TILES; };
#pragma unroll
    for (int first = 0; first < COUNT; first += AT_ONCE) {
        uint4 chunks[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            chunks[i] = *reinterpret_cast<const uint4*>(own + Traits::place(row_of(first + i), chunk_of(first + i)));
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int row_of_warp = row_of(first + i), column = (first_chunk + chunk_of(first + i)) * CHUNK<Element>;
            Element* const to = static_cast<Element*>(params.out.address) + row_offset_of(offset, row_of_warp) + column;
            if constexpr (bool(Traits::FEATURES & FEATURE_UNALIGNED)) {
                Chunk<Element> chunk;
                chunk.bits = chunks[i];
                if (first_row + row_of_warp < existing && column < params.value_dim)
                    store_chunk(to, chunk, in_chunks<Element>(params.out), CHUNK<Element>);
            } else {
                if (first_row + row_of_warp < existing && column < params.value_dim) *reinterpret_cast<uint4*>(to) = chunks[i];
            }
        }
    }
}

template <class Traits> __device__ void tile_attention(const Forward& params)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned address = kept((unsigned)__cvta_generic_to_shared(shared));
    const int group = params.heads == params.kv_heads ? 1 : params.heads / params.kv_heads; // a division takes long
    grid_dependency_launch();
    Segment& tile = *reinterpret_cast<Segment*>(shared + Traits::TILE_AT);
    if (threadIdx.x == 0) {
        tile = typename Traits::Schedule(params, group).segment();
        if constexpr (drops<Traits>()) tile.first_key &= ~31;
    }
    __syncthreads();
    if (tile.is_end()) return;
    grid_dependency_wait();
    const int blocks = tile.first_key < tile.end_key ? (tile.end_key - tile.first_key + Traits::BLOCK_N - 1) / Traits::BLOCK_N : 0;
    TileLoader<Traits> loader(params, address, tile, blocks - 1);
    loader.load_queries(group);
    constexpr int AHEAD = Traits::STAGES - 1; // blocks
    constexpr bool IN_TURN = AHEAD == 0;      // keys and values arrive in turn
    loader.load_last_block(0, blocks - 1);
#pragma unroll
    for (int stage = 1; stage < AHEAD; stage++) loader.load_block(stage * Traits::STAGE_BYTES, blocks - 1 - stage);
    TileRows<Traits> rows(params, address, tile, group);
    const auto next = [](int stage) { return stage == AHEAD * Traits::STAGE_BYTES ? 0 : stage + Traits::STAGE_BYTES; };
    int stage = 0, load_stage = AHEAD * Traits::STAGE_BYTES;
    if (blocks > 0) {
        cp_async_wait<IN_TURN ? 1 : AHEAD>();
        __syncthreads(); // queries and the last block's keys are there
        rows.take_queries();
    }
#pragma unroll 1
    for (int block = blocks - 1; block >= 0; block--) {
        if (block < blocks - 1) {
            cp_async_wait<IN_TURN ? 0 : AHEAD - 1>();
            __syncthreads(); // the block is there, or its keys, and all have computed the one before
            if constexpr (IN_TURN) loader.load_values(0, block);
        }
        if constexpr (!IN_TURN) loader.load_block(load_stage, block - AHEAD);
        rows.add(block, address + stage, [&] {
            if (!IN_TURN && block < blocks - 1) return;
            cp_async_wait<AHEAD>();
            __syncthreads(); // the values are there, and all have the keys' scores
            if constexpr (IN_TURN) loader.load_keys(0, block - 1);
        });
        stage = next(stage);
        load_stage = next(load_stage);
    }
    // Rows that see no key come straight here, with queries still on their way to where results are about to be written.
    cp_async_wait<0>();
    if (blocks == 0) __syncthreads();
    write_rows(params, shared, tile, group, rows);
}

} // namespace warptile
