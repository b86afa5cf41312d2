// The loading thread: feeds queries, keys and values of one tile after the other to the computing warpgroups.
#pragma once

#include "forward/wgmma_blocks.cuh"
#include "forward/wgmma_scheduler.cuh"

namespace warptile {

template <class Traits> class Producer {
  public:
    __device__ Producer(const ForwardTma& params, unsigned char* shared, SharedLayout<Traits> layout)
        : params(params), shared(shared), layout(layout)
    {
    }

    // The order is that in which the consumers need the data: the keys of a block, then the values of the block before
    // it, across tiles; the queries of a tile after the last values of the tile before it.
    __device__ void run()
    {
        for (TileOrder<Traits> order(params.forward); !order.done(); order.advance()) {
            Tile& tile = next_slot();
            bool exists = order.describe(tile);
            if constexpr (Traits::SERVING) {
                const Part part = order.cut(tile, exists);
                layout.part(shared, tiles) = part;
                exists |= !part.is_whole();
            }
            if (exists && !tile.is_empty()) {
                if constexpr (Traits::SERVING)
                    load_listed_tile(tile, order);
                else
                    load_tile(tile, order);
                continue;
            }
            order.draw();
            if (exists) {
                load_pending_values(); // a consumer finishes what it has before it takes a tile without keys
                announce(tile);
            }
        }
        load_pending_values();
        Tile& end = next_slot();
        end = Tile::end();
        announce(end);
    }

  private:
    __device__ Tile& next_slot() { return layout.tile(shared, tiles); }

    // The next tile is drawn shortly before this one's last block is loaded: who draws early hoards work, who draws late
    // waits for the answer.
    __device__ void load_tile(const Tile& tile, TileOrder<Traits>& order)
    {
        const int kv_head = tile.head / (params.forward.heads / params.forward.kv_heads);
        const int batch = params.forward.sequences.key_offsets ? 0 : tile.batch;
        const int first_block = tile.first_block;
        int row = tile.key_offset + (tile.end_block - 1) * Traits::BLOCK_N;
        const int draw_at = min(first_block + 2, tile.end_block - 1);
        bool first = true;
        for (int block = tile.end_block - 1; block >= first_block; block--) {
            if (block == draw_at)
                order.draw();
            load_keys({row, kv_head, batch});
            load_pending_values();
            if (first)
                announce(tile);
            first = false;
            pending_values = {row, kv_head, batch};
            values_pending = true;
            row -= Traits::BLOCK_N;
        }
    }

    // The same, with what is known of a block in shared memory and not in registers, of which the loading thread has few.
    __device__ void load_listed_tile(const Tile& tile, TileOrder<Traits>& order)
    {
        const Blocks blocks(params.forward, shared);
        blocks.ask(next_block, tile, tile.end_block - 1);
#pragma unroll 1
        for (int block = tile.end_block - 1; block >= tile.first_block; block--) {
            if (block == min(tile.first_block + 2, tile.end_block - 1))
                order.draw();
            if (block > tile.first_block)
                blocks.ask(next_block + 1, tile, block - 1);
            blocks.wait_for_all_but_last();
            load_keys({(int)next_block, 0, 0});
            load_pending_values();
            if (block == tile.end_block - 1)
                announce(tile);
            pending_values = {(int)next_block, 0, 0};
            values_pending = true;
            next_block++;
        }
    }

    using Blocks = BlockList<Traits>;

    // With a list of blocks `row` is the number of one, and nothing else counts.
    struct BoxRow {
        int row;
        int head;
        int batch;
    };

    __device__ void load_keys(const BoxRow& row)
    {
        barrier_wait(layout.keys_empty(keys_at.stage), keys_at.parity ^ 1);
        load_block(params.k_map, layout.keys(keys_at.stage), layout.keys_full(keys_at.stage), row);
        keys_at.advance();
    }

    __device__ void load_pending_values()
    {
        if (!values_pending)
            return;
        values_pending = false;
        barrier_wait(layout.values_empty(values_at.stage), values_at.parity ^ 1);
        load_block(params.v_map, layout.values(values_at.stage), layout.values_full(values_at.stage), pending_values);
        values_at.advance();
    }

    __device__ void load_block(const TensorMap& map, unsigned destination, unsigned barrier, const BoxRow& row)
    {
        if constexpr (Traits::SERVING) {
            Blocks(params.forward, shared).load(row.row, map, destination, barrier);
            return;
        }
        barrier_arrive_expect_bytes(barrier, Traits::KEY_BYTES);
#pragma unroll
        for (int slab = 0; slab < Traits::SLABS; slab++)
            copy_box(destination + slab * Traits::KEY_SLAB_BYTES, map, barrier, slab * SLAB_COLUMNS, row.row, row.head,
                     row.batch);
    }

    // Hands the tile to every warpgroup, with its queries if it has any work.
    __device__ void announce(const Tile& tile)
    {
        const int batch = params.forward.sequences.query_offsets ? 0 : tile.batch;
        for (int warpgroup = 0; warpgroup < Traits::CONSUMERS; warpgroup++) {
            const unsigned full = layout.queries_full(warpgroup, queries_at.stage);
            barrier_wait(layout.queries_empty(warpgroup, queries_at.stage), queries_at.parity ^ 1);
            if (tile.is_empty() || !tile.has_rows(warpgroup)) {
                barrier_arrive(full);
                continue;
            }
            barrier_arrive_expect_bytes(full, Traits::QUERY_BYTES);
            const int row = tile.query_offset + tile.first_query + warpgroup * MMA_ROWS;
            const unsigned destination = layout.queries(warpgroup, queries_at.stage);
#pragma unroll
            for (int slab = 0; slab < Traits::SLABS; slab++)
                copy_box(destination + slab * Traits::QUERY_SLAB_BYTES, params.q_map, full, slab * SLAB_COLUMNS, row,
                         tile.head, batch);
        }
        queries_at.advance();
        tiles++;
    }

    const ForwardTma& params;
    unsigned char* shared;
    SharedLayout<Traits> layout;
    RingPosition<Traits::STAGES> keys_at;
    RingPosition<Traits::STAGES> values_at;
    RingPosition<Traits::QUERY_STAGES> queries_at;
    unsigned next_block = 0; // of the list
    BoxRow pending_values;
    bool values_pending = false;
    unsigned tiles = 0; // announced so far
};

} // namespace warptile
