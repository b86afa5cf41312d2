// The loading thread: feeds queries, keys and values of one tile after the other to the computing warpgroups.
#pragma once

#include "forward/wgmma_load_boxes.cuh"
#include "forward/wgmma_blocks.cuh"
#include "forward/wgmma_listed.cuh"
#include "forward/wgmma_pair.cuh"
#include "rule/tensors.cuh"
// Behind those: the order of constants is that of the symbols in each image.
#include "ptx/prefetch_box.cuh"

namespace warptile {

// Additional state of the serving variant. (As a member it would change ptxas's registers for the plain one.)
template <class Traits, bool = Traits::SERVING> struct PagedLoading {};
template <class Traits> struct PagedLoading<Traits, true> {
    RingPosition<SharedLayout<Traits>::TILE_SLOTS> told_at;
};

// State for the key mask.
template <class Traits, bool = Traits::has_tensors()> struct MaskedLoading {};
template <class Traits> struct MaskedLoading<Traits, true> {
    int masked_batch = Tile::END, masked_len; // the sequence whose keys have been looked at
    unsigned shown_parity = 0;
};

template <class Traits> class Producer : PagedLoading<Traits>, MaskedLoading<Traits>, ListedLoading<Traits> {
  public:
    __device__ Producer(const ForwardTma& params, unsigned char* shared, SharedLayout<Traits> layout)
        : params(params), shared(shared), layout(layout)
    {
    }

    // The order is that in which the consumers need the data: the keys of a block, then the values of the block before
    // it, across tiles; the queries of a tile after the last values of the tile before it.
    __device__ void run()
    {
        if constexpr (Traits::PAIRS)
            run_in_pair();
        else if constexpr (Traits::SERVING)
            params.forward.pages.table ? run_alone<true>() : run_alone<false>();
        else
            run_alone<false>();
    }

  private:
    // PAGED: keys come out of pages.
    template <bool PAGED> __device__ void run_alone()
    {
        for (TileOrder<Traits> order(params); !order.done(); order.advance()) {
            wait_for_slot<PAGED>();
            Tile& tile = next_slot();
            bool exists = order.describe(tile);
            grid_dependency_wait(); // nothing of the tile has been asked for; after the first one it does nothing
            if constexpr (Traits::SERVING) {
                const Part part = order.cut(tile, exists);
                layout.part(shared, tiles) = part;
                exists |= !part.is_whole();
            }
            if constexpr (Traits::has_tensors())
                if (exists && masks_keys_alone(params.forward.scoring)) leave_out_hidden(tile);
            if constexpr (Traits::hides_keys())
                if (exists) {
                    // Comes back without the blocks in front of the first shown key and behind the last one.
                    barrier_arrive(layout.shown_asked());
                    barrier_wait(layout.shown_found(), tiles % 2);
                }
            if constexpr (lists_blocks<Traits>())
                if (exists) this->open(tile, lists_of<ForwardTmaBlocks>(params));
            if (exists && !tile.is_empty()) {
                load_tile<PAGED>(tile, order);
                continue;
            }
            order.draw();
            if (exists) {
                tell_loaders<PAGED>();
                load_pending_values<PAGED>(); // a consumer finishes what it has before it takes a tile without keys
                announce(tile);
            }
        }
        load_pending_values<PAGED>();
        wait_for_slot<PAGED>();
        Tile& end = next_slot();
        end = Tile::end();
        tell_loaders<PAGED>();
        if constexpr (Traits::has_tensors())
            if (masks_keys_alone(params.forward.scoring)) ask_for_shown(Tile::END, 0);
        if constexpr (Traits::hides_keys()) barrier_arrive(layout.shown_asked());
        announce(end);
    }

    // Blocks in front of the first key that the key mask shows, and behind the last one. They are asked for once a sequence.
    __device__ void leave_out_hidden(Tile& tile)
    {
        if (this->masked_batch != tile.batch || this->masked_len != tile.key_len) {
            ask_for_shown(tile.batch, tile.key_len);
            barrier_wait(layout.shown_found(), this->shown_parity);
            this->shown_parity ^= 1;
            this->masked_batch = tile.batch;
            this->masked_len = tile.key_len;
        }
        const ShownKeys& shown = SharedLayout<Traits>::shown(this->shared);
        tile.first_block = max(tile.first_block, shown.first / Traits::BLOCK_N);
        tile.end_block = min(tile.end_block, (shown.end + Traits::BLOCK_N - 1) / Traits::BLOCK_N);
    }
    __device__ void ask_for_shown(int batch, int key_len)
    {
        ShownKeys& shown = SharedLayout<Traits>::shown(this->shared);
        shown.batch = batch;
        shown.key_len = key_len;
        barrier_arrive(layout.shown_asked());
    }

    // Variant of `run` for pairs, in which one CTA tells the other its tiles.
    __device__ void run_in_pair()
    {
        grid_dependency_wait();
        PairOrder<Traits> order(params, shared, layout);
        order.first(next_slot());
        while (!next_slot().is_end()) {
            const Tile& tile = next_slot();
            if (tile.is_empty()) {
                order.draw();
                load_pending_values<false>();
                announce(tile);
            } else
                load_tile<false>(tile, order);
            order.next(next_slot());
        }
        load_pending_values<false>();
        announce(next_slot());
    }

    __device__ Tile& next_slot() { return layout.tile(shared, tiles); }

    // The next tile is drawn shortly before this one's last block is loaded: who draws early hoards work, who draws late
    // waits for the answer.
    template <bool PAGED, class Order> __device__ void load_tile(const Tile& tile, Order& order)
    {
        if constexpr (PAGED) return load_paged_tile(tile, order);
        if constexpr (lists_blocks<Traits>()) return load_listed_tile(tile, order);
        const int kv_head = tile.head / (params.forward.heads / params.forward.kv_heads);
        const int batch = params.forward.sequences.key_offsets ? 0 : tile.batch;
        const int first_block = tile.first_block;
        int row = tile.key_offset + (tile.end_block - 1) * Traits::BLOCK_N;
        const int draw_at = min(first_block + 2, tile.end_block - 1);
        bool first = true;
        for (int block = tile.end_block - 1; block >= first_block; block--) {
            // With a reader of masks, or a bias, there is no register for it.
            if (block == (Traits::hides_keys() || Traits::has_score_boxes() ? min(tile.first_block + 2, tile.end_block - 1) : draw_at))
                order.draw();
            if constexpr (Traits::PAIRS)
                if (block == first_block && block < draw_at)
                    order.look_ahead(next_slot());
            if constexpr (PREFETCHES)
                if (block - Traits::RING_STAGES >= first_block) prefetch_block(row - Traits::RING_STAGES * Traits::BLOCK_N, kv_head, batch);
            load_keys({row, kv_head, batch}, tile);
            load_pending_values<false>();
            if (first)
                announce(tile);
            first = false;
            pending_values = {row, kv_head, batch};
            values_pending = true;
            row -= Traits::BLOCK_N;
        }
    }

    // Variant of `load_tile` for a list of blocks.
    template <class Order> __device__ void load_listed_tile(const Tile& tile, Order& order)
    {
        constexpr int DRAW_AT = 2; // stages before the last
        const int kv_head = tile.head / (params.forward.heads / params.forward.kv_heads);
        const int batch = params.forward.sequences.key_offsets ? 0 : tile.batch;
        bool first = true, drawn = false;
        while (!this->is_done()) {
            int rows[ListedLoading<Traits>::UNITS];
            ListedStage next; // worked out while readers still have the stage
            this->take(next, rows, tile, params.forward.sequences.key_rows);
            barrier_wait(layout.keys_empty(keys_at.stage), keys_at.parity ^ 1);
            layout.listed(shared, keys_at.stage) = next;
            if (!drawn && (this->is_done() || this->left() <= DRAW_AT * ListedLoading<Traits>::UNITS)) {
                order.draw();
                drawn = true;
            }
            load_units<Traits::SLABS>(params.k_map, layout.keys(keys_at.stage), layout.keys_full(keys_at.stage), rows, kv_head, batch);
            keys_at.advance();
            load_pending_values<false>();
            if (first) announce(tile);
            first = false;
#pragma unroll
            for (int unit = 0; unit < ListedLoading<Traits>::UNITS; unit++) this->value_rows[unit] = rows[unit];
            pending_values = {0, kv_head, batch};
            values_pending = true;
        }
    }

    template <int SLABS, int UNITS>
    __device__ void load_units(const TensorMap& map, unsigned destination, unsigned barrier, const int (&rows)[UNITS], int head, int batch)
    {
        barrier_arrive_expect_bytes(barrier, SLABS * Traits::KEY_SLAB_BYTES);
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++)
#pragma unroll
            for (int slab = 0; slab < SLABS; slab++)
                copy_box(destination + slab * Traits::KEY_SLAB_BYTES + unit * LISTED_BOX_ROWS * SWIZZLE_BYTES, map, barrier,
                         slab * SLAB_COLUMNS, rows[unit], head, batch);
    }

    // Variant of `load_tile` for pages, which other warps load. This thread arrives for each block of keys, so that it draws the next tile
    // only when those warps have got that far.
    template <class Order> __device__ void load_paged_tile(const Tile& tile, Order& order)
    {
        tell_loaders<true>();
        const int first_block = tile.first_block, top = tile.end_block - 1, draw_at = min(first_block + 2, top);
        for (int block = top; block >= first_block; block--) {
            if (block == draw_at) order.draw();
            const unsigned full = layout.keys_full(keys_at.stage);
            barrier_wait(full + 8, keys_at.parity ^ 1); // the stage is empty
            barrier_arrive(full);
            keys_at.advance();
            if (block == top) announce(tile);
        }
    }

    // Keys and values come to L2 when the stages in front of them are asked for: two warpgroups of packed rows of head size 64 wait for
    // memory together otherwise, and then compute their softmax together. (At 128 and 256 it is slower: docs/notebook/wgmma.md.)
    enum : bool { PREFETCHES = Traits::packs_rows() && Traits::CONSUMERS == 2 && Traits::HEAD_DIM <= 64 };
    __device__ void prefetch_block(int row, int head, int batch) const
    {
#pragma unroll
        for (int slab = 0; slab < Traits::SLABS; slab++) prefetch_box(params.k_map, slab * SLAB_COLUMNS, row, head, batch);
#pragma unroll
        for (int slab = 0; slab < Traits::VALUE_SLABS; slab++) prefetch_box(params.v_map, slab * SLAB_COLUMNS, row, head, batch);
    }

    // Waits until the previous contents of the next tile's slot have been read.
    template <bool PAGED> __device__ void wait_for_slot()
    {
        if constexpr (PAGED) barrier_wait(layout.tile_empty(this->told_at.stage), this->told_at.parity ^ 1);
    }

    // The tile in the next slot to those who load out of pages.
    template <bool PAGED> __device__ void tell_loaders()
    {
        if constexpr (PAGED) {
            barrier_arrive(layout.tile_full(this->told_at.stage));
            this->told_at.advance();
        }
    }

    struct BoxRow {
        int row;
        int head;
        int batch;
    };

    __device__ void load_keys(const BoxRow& row, const Tile& tile)
    {
        barrier_wait(layout.keys_empty(keys_at.stage), keys_at.parity ^ 1);
        load_block<Traits::SLABS, Traits::BOX_BYTES>(params.k_map, layout.keys(keys_at.stage), layout.keys_full(keys_at.stage), row);
        if constexpr (Traits::has_score_boxes()) load_boxes(layout, keys_at.stage, boxes_of<ForwardTmaBoxes>(params), params.forward.scoring, tile, row.row - tile.key_offset);
        keys_at.advance();
    }

    template <bool PAGED> __device__ void load_pending_values()
    {
        if (PAGED || !values_pending)
            return;
        values_pending = false;
        barrier_wait(layout.values_empty(values_at.stage), values_at.parity ^ 1);
        if constexpr (lists_blocks<Traits>())
            load_units<Traits::VALUE_SLABS>(params.v_map, layout.values(values_at.stage), layout.values_full(values_at.stage), this->value_rows,
                                            pending_values.head, pending_values.batch);
        else
            load_block<Traits::VALUE_SLABS>(params.v_map, layout.values(values_at.stage), layout.values_full(values_at.stage), pending_values);
        values_at.advance();
    }

    // `MORE`: bytes of other boxes that the barrier waits for.
    template <int SLABS, int MORE = 0>
    __device__ void load_block(const TensorMap& map, unsigned destination, unsigned barrier, const BoxRow& row)
    {
        barrier_arrive_expect_bytes(barrier, SLABS * Traits::KEY_SLAB_BYTES + MORE);
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
            if constexpr (Traits::packs_rows()) {
                barrier_arrive(full); // the warpgroup loads them
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
    RingPosition<Traits::RING_STAGES> keys_at;
    RingPosition<Traits::RING_STAGES> values_at;
    RingPosition<Traits::QUERY_STAGES> queries_at;
    BoxRow pending_values;
    bool values_pending = false;
    unsigned tiles = 0; // announced so far
};

} // namespace warptile
