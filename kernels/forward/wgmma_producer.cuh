// The loading thread: feeds queries, keys and values of one tile after the other to the computing warpgroups.
#pragma once

#include "forward/wgmma_blocks.cuh"
#include "forward/wgmma_pair.cuh"

namespace warptile {

// What the variant that serves knows besides. (As members, ptxas would give the plain one other registers.)
template <class Traits, bool = Traits::SERVING> struct PagedLoading {
    __device__ PagedLoading(const Forward&, unsigned char*) {}
};
template <class Traits> struct PagedLoading<Traits, true> {
    __device__ PagedLoading(const Forward& params, unsigned char* shared) : blocks(params, shared) {}

    const BlockList<Traits> blocks;
    int next_block = 0;    // of the list
    unsigned requests = 0; // made so far
};

template <class Traits> class Producer : PagedLoading<Traits> {
  public:
    __device__ Producer(const ForwardTma& params, unsigned char* shared, SharedLayout<Traits> layout)
        : PagedLoading<Traits>(params.forward, shared), params(params), shared(shared), layout(layout)
    {
    }

    // The order is that in which the consumers need the data: the keys of a block, then the values of the block before
    // it, across tiles; the queries of a tile after the last values of the tile before it.
    __device__ void run()
    {
        if constexpr (Traits::PAIRS)
            run_in_pair();
        else
            run_alone();
    }

  private:
    __device__ void run_alone()
    {
        for (TileOrder<Traits> order(params.forward); !order.done(); order.advance()) {
            Tile& tile = next_slot();
            bool exists = order.describe(tile);
            wait_for_predecessor(); // nothing of the tile has been asked for; after the first one it does nothing
            if constexpr (Traits::SERVING) {
                const Part part = order.cut(tile, exists);
                layout.part(shared, tiles) = part;
                exists |= !part.is_whole();
            }
            if (exists && !tile.is_empty()) {
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
        if constexpr (Traits::SERVING)
            request(Request::end());
        Tile& end = next_slot();
        end = Tile::end();
        announce(end);
    }

    // The same with tiles that one of two CTAs tells the other.
    __device__ void run_in_pair()
    {
        wait_for_predecessor();
        PairOrder<Traits> order(params.forward, shared, layout);
        order.first(next_slot());
        while (!next_slot().is_end()) {
            const Tile& tile = next_slot();
            if (tile.is_empty()) {
                order.draw();
                load_pending_values();
                announce(tile);
            } else
                load_tile(tile, order);
            order.next(next_slot());
        }
        load_pending_values();
        announce(next_slot());
    }

    __device__ Tile& next_slot() { return layout.tile(shared, tiles); }

    // The next tile is drawn shortly before this one's last block is loaded: who draws early hoards work, who draws late
    // waits for the answer.
    template <class Order> __device__ void load_tile(const Tile& tile, Order& order)
    {
        if constexpr (Traits::SERVING)
            if (this->blocks.exist()) {
                load_paged_tile(tile, order);
                return;
            }
        const int kv_head = tile.head / (params.forward.heads / params.forward.kv_heads);
        const int batch = params.forward.sequences.key_offsets ? 0 : tile.batch;
        const int first_block = tile.first_block;
        int row = tile.key_offset + (tile.end_block - 1) * Traits::BLOCK_N;
        const int draw_at = min(first_block + 2, tile.end_block - 1);
        bool first = true;
        for (int block = tile.end_block - 1; block >= first_block; block--) {
            if (block == draw_at)
                order.draw();
            if constexpr (Traits::PAIRS)
                if (block == first_block && block < draw_at)
                    order.look_ahead(next_slot());
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

    // The same out of pages. What is known of a block lies in a list, where the warps that help find it; `row` is its number there.
    template <class Order> __device__ void load_paged_tile(const Tile& tile, Order& order)
    {
        const auto& blocks = this->blocks;
        const Part& part = layout.part(shared, tiles);
        int& number = this->next_block;
        blocks.ask(number, tile, part, tile.end_block - 1);
#pragma unroll 1
        for (int block = tile.end_block - 1; block >= tile.first_block; block--) {
            if (block == min(tile.first_block + 2, tile.end_block - 1))
                order.draw();
            if (block > tile.first_block)
                blocks.ask(number + 1, tile, part, block - 1);
            else
                blocks.ask_for_none();
            blocks.wait_for_all_but_last();
            load_keys({number, 0, 0});
            load_pending_values();
            if (block == tile.end_block - 1)
                announce(tile);
            pending_values = {number, 0, 0};
            values_pending = true;
            number++;
        }
    }

    // To the warps that help, if there are pages.
    __device__ void request(const Request& what)
    {
        if (this->blocks.exist())
            this->blocks.request(layout, this->requests++, what);
    }

    struct BoxRow {
        int row;
        int head;
        int batch;
    };

    __device__ void load_keys(const BoxRow& row)
    {
        if constexpr (Traits::SERVING)
            request({row.row, false});
        barrier_wait(layout.keys_empty(keys_at.stage), keys_at.parity ^ 1);
        load_block<Traits::SLABS>(params.k_map, layout.keys(keys_at.stage), layout.keys_full(keys_at.stage), row);
        keys_at.advance();
    }

    __device__ void load_pending_values()
    {
        if (!values_pending)
            return;
        values_pending = false;
        if constexpr (Traits::SERVING)
            request({pending_values.row, true});
        barrier_wait(layout.values_empty(values_at.stage), values_at.parity ^ 1);
        load_block<Traits::VALUE_SLABS>(params.v_map, layout.values(values_at.stage), layout.values_full(values_at.stage), pending_values);
        values_at.advance();
    }

    template <int SLABS>
    __device__ void load_block(const TensorMap& map, unsigned destination, unsigned barrier, const BoxRow& row)
    {
        if constexpr (Traits::SERVING)
            if (this->blocks.exist()) {
                this->blocks.expect(row.row, SLABS, barrier);
                return;
            }
        barrier_arrive_expect_bytes(barrier, SLABS * Traits::KEY_SLAB_BYTES);
        if constexpr (Traits::PAIRS) {
            constexpr int SHARE = SLABS / Traits::CLUSTER;
            const int first = cluster_rank() * SHARE;
#pragma unroll
            for (int slab = first; slab < first + SHARE; slab++)
                copy_box_to_pair(destination + slab * Traits::KEY_SLAB_BYTES, map, barrier, slab * SLAB_COLUMNS, row.row,
                                 row.head, row.batch);
        } else {
#pragma unroll
            for (int slab = 0; slab < SLABS; slab++)
                copy_box(destination + slab * Traits::KEY_SLAB_BYTES, map, barrier, slab * SLAB_COLUMNS, row.row, row.head,
                         row.batch);
        }
    }

    // Hands the tile to every warpgroup, with its queries if it has any work.
    __device__ void announce(const Tile& tile)
    {
        const int batch = params.forward.sequences.query_offsets ? 0 : tile.batch;
        for (int warpgroup = 0; warpgroup < Traits::CONSUMERS; warpgroup++) {
            const unsigned full = layout.queries_full(warpgroup, queries_at.stage);
            barrier_wait(layout.queries_empty(warpgroup, queries_at.stage), queries_at.parity ^ 1);
            if (tile.is_empty() || !tile.has_rows(warpgroup, warpgroup_queries<Traits>(params.forward))) {
                barrier_arrive(full);
                continue;
            }
            barrier_arrive_expect_bytes(full, Traits::QUERY_BYTES);
            const int row = tile.query_offset + tile.first_query + warpgroup * warpgroup_queries<Traits>(params.forward);
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
    BoxRow pending_values;
    bool values_pending = false;
    unsigned tiles = 0; // announced so far
};

} // namespace warptile
