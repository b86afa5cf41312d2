// Which boxes the next blocks of keys consist of: one of a dense or packed tensor, or several out of pages. The swizzle of a box repeats every
// 8 rows, so boxes of 16 rows or more lie next to each other in shared memory as one of the whole block would.
//
// Nobody has validated a table on the device: numbers of pages are clamped to the pages there are, and entries for keys that do not
// exist are not read.
#pragma once

#include "forward/wgmma_layout.cuh"

namespace warptile {

template <class Traits> class BlockList {
  public:
    using Layout = SharedLayout<Traits>;
    using Entry = typename Layout::Block;

    __device__ BlockList(const Forward& params, unsigned char* shared) : params(params), shared(shared) {}

    // Lists a block of the tile. The numbers of its pages are on their way then.
    __device__ void ask(unsigned number, const Tile& tile, int block) const
    {
        Entry& entry = Layout::block(shared, number);
        entry.head = tile.head / (params.heads / params.kv_heads);
        int row = block * Traits::BLOCK_N;
        if (!params.pages.table) {
            entry.boxes = 0;
            entry.row = tile.key_offset + row;
            entry.batch = params.sequences.key_offsets ? 0 : tile.batch;
        } else {
            const int rows = box_rows(), keys = min(tile.key_len - row, Traits::BLOCK_N);
            const int boxes = (keys + rows - 1) / rows;
            const int page = (unsigned)row / (unsigned)params.pages.rows;
            const int* from = params.pages.table + tile.batch * params.pages.table_row + page;
            row -= page * params.pages.rows;
            entry.boxes = boxes;
            entry.row = row;
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
        }
        commit();
    }

    // Until the numbers are there of all blocks but the last one that was asked for.
    __device__ static void wait_for_all_but_last() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

    // The keys or the values of a block, by the map of either.
    __device__ void load(unsigned number, const TensorMap& map, unsigned destination, unsigned barrier) const
    {
        const Entry& entry = Layout::block(shared, number);
        int row = entry.row;
        if (entry.boxes == 0) {
            barrier_arrive_expect_bytes(barrier, Traits::KEY_BYTES);
            copy(map, destination, barrier, row, entry.head, entry.batch);
            return;
        }
        const int rows = box_rows();
        barrier_arrive_expect_bytes(barrier, entry.boxes * rows * Traits::SLABS * SWIZZLE_BYTES);
#pragma unroll 1
        for (int box = 0; box < entry.boxes; box++) {
            copy(map, destination, barrier, row, entry.head, min(max(entry.pages[box], 0), params.pages.count - 1));
            destination += rows * SWIZZLE_BYTES;
            row += rows;
            if (row == params.pages.rows) row = 0;
        }
    }

  private:
    // The largest power of two that divides a page and a block: the host has made the maps for it.
    __device__ int box_rows() const
    {
        constexpr int OF_BLOCK = Traits::BLOCK_N & -Traits::BLOCK_N;
        return min(params.pages.rows & -params.pages.rows, OF_BLOCK);
    }

    __device__ static void copy(const TensorMap& map, unsigned destination, unsigned barrier, int row, int head, int batch)
    {
#pragma unroll
        for (int slab = 0; slab < Traits::SLABS; slab++)
            copy_box(destination + slab * Traits::KEY_SLAB_BYTES, map, barrier, slab * SLAB_COLUMNS, row, head, batch);
    }

    // "Data Movement and Conversion Instructions: cp.async".
    __device__ static void copy_word(unsigned to, const int* from)
    {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
    }
    __device__ static void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

    const Forward& params;
    unsigned char* shared;
};

} // namespace warptile
