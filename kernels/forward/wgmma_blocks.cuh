// Loads keys and values from pages, in boxes that make up the blocks of keys. Their swizzle repeats every 8 rows, so boxes of 16 rows or
// more that lie next to each other in shared memory look like one box of the whole block.
//
// A warp of the loading warpgroup loads keys, and another one values. The loading thread tells them the tiles, and they go through the
// blocks by themselves. Each shares a scheduler with warps that compute, so a block takes few instructions: the lanes look up the pages
// of 32 boxes at once, and one of them starts all copies.
//
// The page table on the device is not validated: page numbers are clamped to the pages that exist, and entries for keys that do not
// exist are not read.
#pragma once

#include "forward/wgmma_layout.cuh"
#include "memory/keys.cuh"
#include "ptx/lanes.cuh"

namespace warptile {

// A warp that fills one of the rings, of rows of SLABS slabs.
template <class Traits, int SLABS> class PageLoader {
  public:
    using Layout = SharedLayout<Traits>;

    // `bytes_at` and `full_at` are the place of the bytes of the ring's first stage, and the barrier that completes when they are there.
    __device__ PageLoader(const Pages& pages, unsigned char* shared, Layout layout, const TensorMap& map, unsigned bytes_at, unsigned full_at)
        : pages(pages), map(map), shared(shared), layout(layout), bytes_at(bytes_at), full_at(full_at),
          box_rows(min(pages.rows & -pages.rows, BLOCK_N & -BLOCK_N)), boxes(BLOCK_N / box_rows)
    {
    }

    // All blocks of all tiles.
    __device__ void run()
    {
        RingPosition<Layout::TILE_SLOTS> told_at;
        while (true) {
            barrier_wait(layout.tile_full(told_at.stage), told_at.parity);
            const Tile tile = Layout::tile(shared, told_at.stage);
            const Part part = Layout::part(shared, told_at.stage);
            __syncwarp(); // all lanes have read it
            if (elect_one()) barrier_arrive(layout.tile_empty(told_at.stage));
            told_at.advance();
            if (!uniform(tile.is_empty()))
                load_tile(tile, part);
            else if (uniform(tile.is_end()))
                return;
        }
    }

  private:
    static constexpr int BLOCK_N = Traits::BLOCK_N, MOST_BOXES = BLOCK_N / MIN_BOX_ROWS;
    static_assert(MOST_BOXES <= LANES, "a lane for each box of a block");

    __device__ void load_tile(const Tile& tile, const Part& part)
    {
        table = pages.table + uniform(tile.batch) * pages.table_row;
        key_len = uniform(tile.key_len);
        head = uniform(part.kv_head);
        const int first_block = uniform(tile.first_block);
        int block = uniform(tile.end_block) - 1;
        look_up((block + 1) * boxes);
        take_looked_up();
        for (; block >= first_block; block--) {
            if (block * boxes < end_box - LANES) take_looked_up();
            load_block(block);
        }
    }

    // All that the request takes is known before the stage is empty.
    __device__ void load_block(int block)
    {
        const int rows = min(key_len - block * BLOCK_N, BLOCK_N); // there are no boxes without a key
        const int first_lane = end_box - 1 - block * boxes;
        int row[MOST_BOXES], page[MOST_BOXES];
#pragma unroll
        for (int box = 0; box < MOST_BOXES; box++) {
            if (box * box_rows >= rows) break;
            row[box] = rows_of_boxes[first_lane - box];
            page[box] = pages_of_boxes[first_lane - box];
        }
        const unsigned full = full_at + at.stage * 16, to = bytes_at + at.stage * SLABS * Traits::KEY_SLAB_BYTES;
        barrier_wait(full + 8, at.parity ^ 1); // the stage is empty
        at.advance();
        if (elect_one()) {
            barrier_arrive_expect_bytes(full, (rows + box_rows - 1 & -box_rows) * SLABS * SWIZZLE_BYTES);
#pragma unroll
            for (int box = 0; box < MOST_BOXES; box++) {
                if (box * box_rows >= rows) break;
#pragma unroll
                for (int slab = 0; slab < SLABS; slab++)
                    copy_box(to + box * box_rows * SWIZZLE_BYTES + slab * Traits::KEY_SLAB_BYTES, map, full, slab * SLAB_COLUMNS, row[box], head,
                             page[box]);
            }
        }
    }

    __device__ int key_of(int end, int lane) const { return (end - 1 - lane) * box_rows; }

    // Starts to look up the pages of the boxes below `end`. Only boxes of whole blocks are used.
    __device__ void look_up(int end)
    {
        end_box_looked_up = end;
        looked_up.fill([&](int lane) {
            const int key = key_of(end, lane);
            return key >= 0 && key < key_len ? table[page_number(pages, key)] : 0;
        });
    }

    // Goes on to the pages that were looked up, and looks up those below, so that the table is waited for only at the beginning of a tile.
    __device__ void take_looked_up()
    {
        end_box = end_box_looked_up;
        pages_of_boxes.fill([&](int lane) { return min(max(looked_up.own(lane), 0), pages.count - 1); });
        rows_of_boxes.fill([&](int lane) {
            const int key = key_of(end_box, lane);
            return key - page_number(pages, key) * pages.rows;
        });
        look_up(end_box - LANES / boxes * boxes);
    }

    const Pages& pages;
    const TensorMap& map;
    unsigned char* shared;
    const Layout layout;
    const unsigned bytes_at, full_at;
    const int box_rows; // the largest power of two that divides a page and a block: the host has made the maps for it
    const int boxes;    // of a block
    RingPosition<Traits::RING_STAGES> at;

    // State of the current tile.
    const int* table;
    int key_len, head;
    // Lane i has box end_box - 1 - i of the sequence: the page, and the row in it; and what the table says of one further down.
    Lanes pages_of_boxes, rows_of_boxes, looked_up;
    int end_box, end_box_looked_up;
};

} // namespace warptile
