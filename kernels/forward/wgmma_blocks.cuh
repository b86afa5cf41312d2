// Keys and values out of pages: which boxes a block of keys consists of, and who loads them. Their swizzle repeats every 8 rows, so boxes of
// 16 rows or more lie next to each other in shared memory as one of the whole block would. One thread asks for a box in some 150 clocks, which
// is too slow for pages of few rows. So a thread of each warp of the loading warpgroup takes every fourth box: the loading thread the first one,
// and the others, which are told the tiles, go through their blocks by themselves.
//
// Each of them arrives at every stage of the rings, with a box or without one, so none falls a phase behind or gets one ahead.
//
// Nobody has validated a table on the device: numbers of pages are clamped to the pages there are, and entries for keys that do not
// exist are not read.
#pragma once

#include "forward/wgmma_layout.cuh"
#include "memory/keys.cuh"

namespace warptile {

// One of those who load a block together: the loading thread is number 0.
template <class Traits> class PageLoader {
  public:
    using Layout = SharedLayout<Traits>;

    __device__ PageLoader(const ForwardTma& params, Layout layout, int number)
        : params(params), pages(params.forward.pages), layout(layout), number(number)
    {
    }

    // Whether blocks come out of pages.
    __device__ bool exist() const { return pages.table; }

    // Asks for this loader's share of a tile's blocks, in the order of `Producer`. `before(block)` is called ahead of each block, `after(block)`
    // behind its keys and the values of the block before.
    template <class Before, class After>
    __device__ void load_tile(const Tile& tile, const Part& part, Before before, After after)
    {
        const int* const table = pages.table + tile.batch * pages.table_row;
        const int first_block = tile.first_block;
        Block block = {tile.end_block - 1, tile.key_len, part.kv_head};
        if constexpr (AHEAD) look_up(table, block);
#pragma unroll 1
        while (block.number >= first_block) {
            before(block.number);
            Block next = block;
            next.number--;
            if constexpr (!AHEAD)
                look_up(table, block);
            else if (next.number >= first_block)
                look_up(table, next);
            load<Traits::SLABS>(block, params.k_map, layout.keys(keys_at.stage), layout.keys_full(keys_at.stage), keys_at);
            load_pending_values();
            after(block.number);
            pending = block;
            block = next;
        }
    }

    __device__ void load_pending_values()
    {
        if (pending.number == Block::NONE) return;
        load<Traits::VALUE_SLABS>(pending, params.v_map, layout.values(values_at.stage), layout.values_full(values_at.stage), values_at);
        pending.number = Block::NONE;
    }

  private:
    // Whether the table is read a block ahead, so that nobody waits for it. With three computing warpgroups ptxas would spill in these.
    static constexpr bool AHEAD = Traits::CONSUMERS < 3;
    static constexpr int MOST_BOXES = (Traits::BLOCK_N / MIN_BOX_ROWS + Layout::LOADERS - 1) / Layout::LOADERS;

    // A block of a tile, and in which pages this loader's boxes lie: every fourth.
    struct Block {
        int number;
        int key_len;
        int head;
        int pages[MOST_BOXES];

        static constexpr int NONE = -1;
    };

    __device__ int key_of(const Block& block, int box) const
    {
        return block.number * Traits::BLOCK_N + (number + box * Layout::LOADERS) * box_rows();
    }
    // There are no boxes without a key.
    __device__ bool has(const Block& block, int box) const
    {
        return key_of(block, box) < min(block.key_len, (block.number + 1) * Traits::BLOCK_N);
    }

    __device__ void look_up(const int* table, Block& block) const
    {
#pragma unroll
        for (int box = 0; box < MOST_BOXES; box++)
            if (has(block, box)) block.pages[box] = table[page_number(pages, key_of(block, box))];
    }

    template <int SLABS>
    __device__ void load(const Block& block, const TensorMap& map, unsigned destination, unsigned full, RingPosition<Traits::STAGES>& at)
    {
        // All that can be known is worked out before the wait.
        int boxes = 0, row[MOST_BOXES], page[MOST_BOXES];
#pragma unroll
        for (int box = 0; box < MOST_BOXES; box++) {
            const int key = key_of(block, box);
            boxes += has(block, box);
            row[box] = key - page_number(pages, key) * pages.rows;
            page[box] = min(max(block.pages[box], 0), pages.count - 1);
        }
        const unsigned box_bytes = box_rows() * SWIZZLE_BYTES, to = destination + number * box_bytes;
        const unsigned bytes = boxes * SLABS * box_bytes;
        barrier_wait(full + 8, at.parity ^ 1); // the stage is empty
        at.advance();
        barrier_arrive_expect_bytes(full, bytes);
#pragma unroll
        for (int box = 0; box < MOST_BOXES; box++) {
            if (box >= boxes) break;
#pragma unroll
            for (int slab = 0; slab < SLABS; slab++)
                copy_box(to + box * Layout::LOADERS * box_bytes + slab * Traits::KEY_SLAB_BYTES, map, full, slab * SLAB_COLUMNS, row[box],
                         block.head, page[box]);
        }
    }

    // The largest power of two that divides a page and a block: the host has made the maps for it.
    __device__ int box_rows() const
    {
        constexpr int OF_BLOCK = Traits::BLOCK_N & -Traits::BLOCK_N;
        return min(pages.rows & -pages.rows, OF_BLOCK);
    }

    const ForwardTma& params;
    const Pages& pages;
    const Layout layout;
    const int number;
    RingPosition<Traits::STAGES> keys_at, values_at;
    Block pending = {Block::NONE}; // whose values are still to be loaded
};

// A thread of a warp that helps the loading thread.
template <class Traits> class LoadingHelper {
  public:
    using Layout = SharedLayout<Traits>;

    __device__ LoadingHelper(const ForwardTma& params, unsigned char* shared, Layout layout, int number)
        : shared(shared), layout(layout), loader(params, layout, number)
    {
    }

    __device__ void run()
    {
        if (!loader.exist()) return;
        const auto nothing = [](int) {};
        RingPosition<Layout::TILE_SLOTS> at;
        while (true) {
            barrier_wait(layout.tile_full(at.stage), at.parity);
            const Tile tile = Layout::tile(shared, at.stage);
            const Part part = Layout::part(shared, at.stage);
            barrier_arrive(layout.tile_empty(at.stage));
            at.advance();
            if (!tile.is_empty()) {
                loader.load_tile(tile, part, nothing, nothing);
                continue;
            }
            loader.load_pending_values();
            if (tile.is_end()) return;
        }
    }

  private:
    unsigned char* shared;
    Layout layout;
    PageLoader<Traits> loader;
};

} // namespace warptile
