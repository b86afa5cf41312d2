// Keys and values out of pages: which boxes a block of keys consists of, and who loads them. Their swizzle repeats every 8 rows, so boxes of
// 16 rows or more lie next to each other in shared memory as one of the whole block would. One thread asks for a box in 110 ns, which is
// too slow for pages of few rows: a thread of each other warp of its warpgroup helps, and takes every third box.
//
// Nobody has validated a table on the device: numbers of pages are clamped to the pages there are, and entries for keys that do not
// exist are not read.
#pragma once

#include "forward/wgmma_layout.cuh"
#include "memory/keys.cuh"

namespace warptile {

template <class Traits> class BlockList {
  public:
    using Layout = SharedLayout<Traits>;
    using Entry = typename Layout::Block;

    __device__ BlockList(const Forward& params, unsigned char* shared) : params(params), shared(shared) {}

    // Whether blocks come out of pages.
    __device__ bool exist() const { return params.pages.table; }

    // Lists a block of a tile. The numbers of its pages are on their way then.
    __device__ void ask(int number, const Tile& tile, const Part& part, int block) const
    {
        Entry& entry = Layout::block(shared, number);
        int row = block * Traits::BLOCK_N;
        const int rows = box_rows(), keys = min(tile.key_len - row, Traits::BLOCK_N);
        const int boxes = (keys + rows - 1) / rows;
        const int page = page_number(params.pages, row);
        const int* from = params.pages.table + tile.batch * params.pages.table_row + page;
        row -= page * params.pages.rows;
        entry.boxes = boxes;
        entry.row = row;
        entry.head = part.kv_head;
        unsigned to = shared_address(entry.pages);
#pragma unroll 1
        for (int box = 0; box < boxes; box++) {
            copy_word(to, from);
            to += sizeof(int);
            row += rows;
            if (row == params.pages.rows) {
                row = 0;
                from++;
            }
        }
        ask_for_none();
    }
    __device__ static void ask_for_none() { close_copies(); }

    // Until the numbers are there of all but what was asked for last.
    __device__ static void wait_for_all_but_last() { wait_for_copies<1>(); }

    // Tells the warps that help what to load next.
    __device__ void request(const Layout& layout, unsigned number, Request what) const
    {
        const unsigned slot = number % Layout::REQUEST_SLOTS, round = number / Layout::REQUEST_SLOTS;
        barrier_wait(layout.requests_empty(slot), ~round & 1);
        Layout::request(shared, slot) = what;
        barrier_arrive(layout.requests_full(slot));
    }

    // What all boxes of a block together bring; a helper that loads some may be ahead.
    __device__ void expect(int number, int slabs, unsigned barrier) const
    {
        barrier_arrive_expect_bytes(barrier, Layout::block(shared, number).boxes * box_rows() * slabs * SWIZZLE_BYTES);
    }

    __device__ int boxes(int number) const { return Layout::block(shared, number).boxes; }

    // A helper's share of the keys or the values of a block, by the map of either, in so many slabs.
    template <int SLABS>
    __device__ void load_share(int number, const TensorMap& map, unsigned destination, unsigned barrier, int helper) const
    {
        const Entry& entry = Layout::block(shared, number);
        const int rows = box_rows(), boxes = entry.boxes, head = entry.head, first_row = entry.row;
#pragma unroll 1
        for (int box = helper; box < boxes; box += Layout::HELPERS) {
            const int page = min(max(entry.pages[box], 0), params.pages.count - 1);
            int row = 0;
            if (rows < params.pages.rows) {
                row = first_row + box * rows;
                while (row >= params.pages.rows) row -= params.pages.rows;
            }
            const unsigned to = destination + box * rows * SWIZZLE_BYTES;
#pragma unroll
            for (int slab = 0; slab < SLABS; slab++)
                copy_box(to + slab * Traits::KEY_SLAB_BYTES, map, barrier, slab * SLAB_COLUMNS, row, head, page);
        }
    }

  private:
    // The largest power of two that divides a page and a block: the host has made the maps for it.
    __device__ int box_rows() const
    {
        constexpr int OF_BLOCK = Traits::BLOCK_N & -Traits::BLOCK_N;
        return min(params.pages.rows & -params.pages.rows, OF_BLOCK);
    }

    const Forward& params;
    unsigned char* shared;
};

// A thread of a warp that helps the loading thread.
template <class Traits> class LoadingHelper {
  public:
    using Layout = SharedLayout<Traits>;

    __device__ LoadingHelper(const ForwardTma& params, unsigned char* shared, Layout layout, int number)
        : params(params), shared(shared), layout(layout), number(number), blocks(params.forward, shared)
    {
    }

    __device__ void run()
    {
        if (!blocks.exist()) return;
        RingPosition<Layout::REQUEST_SLOTS> at;
        while (true) {
            barrier_wait(layout.requests_full(at.stage), at.parity);
            const Request request = Layout::request(shared, at.stage);
            if (request.is_end()) return;
            if (request.values)
                load<Traits::VALUE_SLABS>(request.block, params.v_map, layout.values(values_at.stage),
                                          layout.values_full(values_at.stage), values_at);
            else
                load<Traits::SLABS>(request.block, params.k_map, layout.keys(keys_at.stage), layout.keys_full(keys_at.stage), keys_at);
            barrier_arrive(layout.requests_empty(at.stage));
            at.advance();
        }
    }

  private:
    template <int SLABS>
    __device__ void load(int block, const TensorMap& map, unsigned destination, unsigned full, RingPosition<Traits::STAGES>& at)
    {
        // A block is complete, and its stage emptied again, only after this helper's boxes, so the phase waited for cannot be two behind. One
        // without a box is waited for by nobody: it would take the next phase but one for this one, and wait for ever.
        if (number < blocks.boxes(block)) {
            barrier_wait(full + 8, at.parity ^ 1); // the stage is empty
            blocks.template load_share<SLABS>(block, map, destination, full, number);
        }
        at.advance();
    }

    const ForwardTma& params;
    unsigned char* shared;
    Layout layout;
    const int number;
    const BlockList<Traits> blocks;
    RingPosition<Traits::STAGES> keys_at, values_at;
};

} // namespace warptile
