// Tiles of keys of the backward kernels for Hopper: a persistent CTA draws one after the other, and a thread of it loads the tile's keys and values,
// and the blocks of queries and of gradients of the output that it visits, through tensor maps.
#pragma once

#include "backward/place.cuh"
#include "backward/span.cuh"
#include "base/abi_backward_tma.cuh"
#include "ptx/bulk.cuh"
#include "ptx/sm90.cuh"
#include "ptx/wgmma.cuh"

namespace warptile {

// A tile of keys, and the blocks of queries that it visits, for each head that shares the keys.
struct KeyTile {
    int exists; // else there are no more
    int query_entry, key_entry, kv_head, first_key; // entries: where batch entries have strides
    Extent q, k;
    int first_block, end_block;
    int row_tile; // of the pre-pass: block 0 of the first head that shares the keys
    int heads;    // that share the keys

    __device__ Mask mask(const Backward& params) const { return Mask(params.scoring, q.len, k.len); }
    // Where the tile's own rows are.
    __device__ int own_entry() const { return key_entry; }
    __device__ int own_head() const { return kv_head; }
    __device__ const Extent& own() const { return k; }
};

// Where loaded tensors, numbers of query rows and barriers lie. Kernels have more barriers from number 16 on.
template <class Traits> struct KeyTileShared {
    const unsigned base;

    __device__ unsigned barrier(int i) const { return base + Traits::BARRIERS_AT + i * BARRIER_BYTES; }
    __device__ unsigned keys_full() const { return barrier(0); }
    __device__ unsigned keys_empty() const { return barrier(1); }
    __device__ unsigned values_full() const { return barrier(2); }
    __device__ unsigned values_empty() const { return barrier(3); }
    // Of two each.
    __device__ unsigned queries_full(int stage) const { return barrier(4 + stage); }
    __device__ unsigned queries_empty(int stage) const { return barrier(6 + stage); }
    __device__ unsigned d_out_full(int stage) const { return barrier(8 + stage); }
    __device__ unsigned d_out_empty(int stage) const { return barrier(10 + stage); }
    __device__ unsigned tile_full(int which) const { return barrier(12 + which); }
    __device__ unsigned tile_empty(int which) const { return barrier(14 + which); }

    __device__ unsigned queries(int stage) const { return base + Traits::QUERIES_AT + stage * Traits::QUERY_BYTES; }
    __device__ unsigned d_out(int stage) const { return base + Traits::D_OUT_AT + stage * Traits::QUERY_BYTES; }
    __device__ unsigned numbers(int stage) const { return base + Traits::NUMBERS_AT + stage * 2 * Traits::NUMBER_BYTES; }

    // `computing` warps read queries and gradients of the output, `of_keys` keys, and as many values; `all` arrivals end a tile.
    __device__ void init_barriers_of_tiles(int computing, int of_keys, int all) const
    {
        barrier_init(keys_full(), 1);
        barrier_init(keys_empty(), of_keys);
        barrier_init(values_full(), 1);
        barrier_init(values_empty(), of_keys);
        for (int i = 0; i < 2; i++) {
            barrier_init(queries_full(i), 1);
            barrier_init(queries_empty(i), computing);
            barrier_init(d_out_full(i), 1);
            barrier_init(d_out_empty(i), computing);
            barrier_init(tile_full(i), 1);
            barrier_init(tile_empty(i), all);
        }
    }

    // Tile descriptions, from who draws tiles to all others: the CTA's tile `turn`.
    __device__ KeyTile& tile(unsigned turn) const
    {
        return reinterpret_cast<KeyTile*>(dynamic_shared<SWIZZLE_GROUP_BYTES>() + Traits::TILES_AT)[turn % 2];
    }
    __device__ KeyTile& wait_for_tile(unsigned turn) const
    {
        barrier_wait(tile_full(turn % 2), turn / 2 & 1);
        return tile(turn);
    }
};

// Draws a tile, and describes it. Each CTA draws once in vain, so the counter is 0 again behind the last draw of the launch.
template <class Traits> __device__ inline void draw_tile(const Backward& params, KeyTile& tile)
{
    const unsigned number = increment_and_wrap_relaxed(params.work.counter, params.work.tiles + gridDim.x - 1);
    tile.exists = number < params.work.tiles;
    if (!tile.exists) return;
    const GradientPlace place = gradient_place<Traits::BLOCK_N, true>(params, number);
    const int heads = params.heads / params.kv_heads;
    BlockSpan span = {0, 0};
    if (place.exists(true)) span = Visits<Traits::BLOCK_M, Traits::BLOCK_N>{Mask(params.scoring, place.q.len, place.k.len)}.blocks_of(place.first);
    tile.query_entry = params.sequences.query_offsets ? 0 : place.batch;
    tile.key_entry = params.sequences.key_offsets ? 0 : place.batch;
    tile.kv_head = place.head;
    // Nothing is written of a tile that the sequence does not have.
    tile.first_key = place.exists(true) ? place.first : place.k.len;
    tile.q = place.q;
    tile.k = place.k;
    tile.first_block = span.first;
    tile.end_block = span.end;
    tile.row_tile = place.numbers_of(params, place.head * heads) / PREPASS_ROWS;
    tile.heads = heads;
}

// The loading thread.
template <class Traits> __device__ inline void load_blocks(const BackwardTma& block, const KeyTileShared<Traits> shared)
{
    const Backward& params = block.backward;
    unsigned it = 0, loads = 0;
    for (unsigned turn = 0;; turn++) {
        KeyTile& tile = shared.tile(turn);
        barrier_wait(shared.tile_empty(turn % 2), ~(turn / 2) & 1);
        draw_tile<Traits>(params, tile);
        barrier_arrive(shared.tile_full(turn % 2));
        if (!tile.exists) return;
        const auto load_keys = [&](const TensorMap& map, int at, unsigned full, unsigned empty) {
            barrier_wait(empty, ~loads & 1);
            barrier_arrive_expect_bytes(full, Traits::KEY_BYTES);
            for (int slab = 0; slab < Traits::SLABS; slab++)
                copy_box(shared.base + at + slab * Traits::KEY_SLAB_BYTES, map, full, slab * Traits::SLAB_COLUMNS, tile.k.first + tile.first_key,
                         tile.kv_head, tile.key_entry);
        };
        bool has_keys = false;
#pragma unroll 1
        for (int head = 0; head < tile.heads; head++)
#pragma unroll 1
            for (int of = tile.end_block - 1; of >= tile.first_block; of--, it++) {
                const int stage = it & 1;
                const unsigned parity = ~(it >> 1) & 1;
                const auto load_rows = [&](const TensorMap& map, unsigned to, unsigned full) {
                    for (int slab = 0; slab < Traits::SLABS; slab++)
                        copy_box(to + slab * Traits::QUERY_SLAB_BYTES, map, full, slab * Traits::SLAB_COLUMNS, tile.q.first + of * Traits::BLOCK_M,
                                 tile.kv_head * tile.heads + head, tile.query_entry);
                };
                barrier_wait(shared.queries_empty(stage), parity);
                barrier_arrive_expect_bytes(shared.queries_full(stage), Traits::QUERY_BYTES + 2 * Traits::NUMBER_BYTES);
                load_rows(block.q_map, shared.queries(stage), shared.queries_full(stage));
                const long long numbers = (long long)(tile.row_tile + head * params.rows.query_tiles + of) * PREPASS_ROWS;
                copy_bytes(shared.numbers(stage), params.rows.scaled_lse + numbers, Traits::NUMBER_BYTES, shared.queries_full(stage));
                copy_bytes(shared.numbers(stage) + Traits::NUMBER_BYTES, params.rows.delta + numbers, Traits::NUMBER_BYTES, shared.queries_full(stage));
                if (!has_keys) {
                    load_keys(block.v_map, Traits::VALUES_AT, shared.values_full(), shared.values_empty());
                    load_keys(block.k_map, Traits::KEYS_AT, shared.keys_full(), shared.keys_empty());
                    has_keys = true;
                    loads++;
                }
                barrier_wait(shared.d_out_empty(stage), parity);
                barrier_arrive_expect_bytes(shared.d_out_full(stage), Traits::QUERY_BYTES);
                load_rows(block.d_out_map, shared.d_out(stage), shared.d_out_full(stage));
            }
    }
}

} // namespace warptile
