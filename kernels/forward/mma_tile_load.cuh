// What the family `mma` loads: the queries of a tile, and blocks of keys and values, from the last one to the first.
#pragma once

#include "forward/mma_tile_layout.cuh"
#include "memory/copy.cuh"
#include "memory/keys.cuh"

namespace warptile {

template <class Traits> class TileLoader {
  public:
    using Element = typename Traits::Element;
    using Tile = typename Traits::Schedule::Tile;

    __device__ explicit TileLoader(const Forward& params)
        : params(params), place(kept(Traits::place(threadIdx.x / ACROSS, threadIdx.x % ACROSS)))
    {
    }

    // Rows that do not exist become zeros. A lane finds one row's place.
    __device__ void load_queries(const Tile& tile, int group, unsigned queries) const
    {
        constexpr int ROWS = Traits::BLOCK_M / Traits::WARPS; // that a warp copies
        static_assert(ROWS <= 32 && Traits::BLOCK_M / DOWN * WARP_ROWS == ROWS, "as many rows a warp");
        const int lane = anew(threadIdx.x) % 32, existing = existing_rows<Traits>(tile, group);
        const long long offset = row_offset(params.q, tile, group, row_of_lane(lane % ROWS));
        const Chunk first = first_chunk();
#pragma unroll
        for (int pass = 0; pass < Traits::BLOCK_M / DOWN; pass++) {
            const Element* const from = static_cast<const Element*>(params.q.address) +
                                        row_offset_of(offset, pass * WARP_ROWS + lane / ACROSS) + first.column;
            const bool exists = pass * DOWN + first.row < existing;
            copy_row(queries + first.place + pass * DOWN * Traits::ROW_BYTES, from, exists ? params.head_dim - first.column : 0);
        }
    }

    // Asks for a block, as a group of cp.async with what has been asked for before. `to`: where its keys go, and behind them its values.
    // `is_first`: of what is loaded of the tile. It is the last block, which may lack rows. There may be none: -1.
    __device__ void load_block(const Tile& tile, int block, bool is_first, unsigned to)
    {
        if (block >= 0) {
            const int rows = min(Traits::BLOCK_N, tile.end_key - tile.first_key - block * Traits::BLOCK_N);
            if (is_paged()) {
                if (is_first) find_pages(tile, block);
                load_pages(tile, block, rows, to);
                find_pages(tile, block - 1);
            } else {
                load(tile, block, rows, to);
            }
        }
        cp_async_commit();
    }

  private:
    // Neighbouring threads take neighbouring chunks of a row; a thread stays in its columns, and steps through rows by DOWN.
    static constexpr int ACROSS = Traits::SPAN;
    static constexpr int DOWN = Traits::THREADS / ACROSS;
    static constexpr int PASSES = Traits::BLOCK_N / DOWN;
    static constexpr int WARP_ROWS = 32 / ACROSS; // of a pass
    static_assert(Traits::BLOCK_N % DOWN == 0 && Traits::BLOCK_M % DOWN == 0, "whole passes");
    static_assert(DOWN % 8 == 0, "rows of a thread are swapped alike");
    static_assert(PASSES * WARP_ROWS <= 32, "a lane finds the page of one key");

    __device__ bool is_paged() const { return params.pages.table; }
    // This thread's first chunk in a block of rows. It follows from its place, and anew each time: nothing else is kept in registers.
    struct Chunk {
        unsigned place;
        int row, column;
    };
    __device__ Chunk first_chunk() const
    {
        const unsigned place = kept(this->place), row = place / Traits::ROW_BYTES;
        return {place, (int)row, (int)((place / CHUNK_BYTES ^ Traits::swap(row)) % Traits::SPAN * CHUNK<Element>)};
    }

    // Of the rows that this warp copies, WARP_ROWS in a pass, which one is a lane's.
    __device__ static int row_of_lane(int lane)
    {
        return lane / WARP_ROWS * DOWN + anew(threadIdx.x) / 32 * WARP_ROWS + lane % WARP_ROWS;
    }

    // The first `rows` of the block exist.
    __device__ void load(const Tile& tile, int block, int rows, unsigned to) const
    {
        const Chunk first = first_chunk();
        const unsigned row = block * Traits::BLOCK_N + first.row;
        const Element* key = tile.keys + row * (unsigned long long)params.k.row + first.column;
        const Element* value = tile.values + row * (unsigned long long)params.v.row + first.column;
        const long long key_step = DOWN * params.k.row, value_step = DOWN * params.v.row;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const unsigned at = to + first.place + pass * DOWN * Traits::ROW_BYTES;
            const bool exists = rows == Traits::BLOCK_N || pass * DOWN + first.row < rows;
            copy_row(at, key, exists ? params.head_dim - first.column : 0);
            copy_row(at + Traits::KEY_BYTES, value, exists ? params.value_dim - first.column : 0);
            key += key_step;
            value += value_step;
        }
    }

    __device__ void load_pages(const Tile& tile, int block, int rows, unsigned to) const
    {
        const KeyRows<Element> keys(params, tile.batch, tile.kv_head, tile.k);
        const int lane = threadIdx.x % 32;
        const Chunk first = first_chunk();
#pragma unroll 1
        for (int pass = 0; pass < PASSES; pass++) {
            const int row = pass * DOWN + first.row, key = tile.first_key + block * Traits::BLOCK_N + row;
            const int page = __shfl_sync(0xffffffff, pages, pass * WARP_ROWS + lane / ACROSS);
            const unsigned at = to + first.place + pass * DOWN * Traits::ROW_BYTES;
            const auto from = [&](const Tensor& tensor) {
                return static_cast<const Element*>(tensor.address) + keys.offset(params, tensor, key, page) + first.column;
            };
            copy_row(at, from(params.k), row < rows ? params.head_dim - first.column : 0);
            copy_row(at + Traits::KEY_BYTES, from(params.v), row < rows ? params.value_dim - first.column : 0);
        }
    }
    // The pages of the keys that this warp copies of a block, a lane one: asked for a block ahead.
    __device__ void find_pages(const Tile& tile, int block)
    {
        if (block < 0) return;
        const KeyRows<Element> keys(params, tile.batch, tile.kv_head, tile.k);
        const int lane = anew(threadIdx.x) % 32, key = tile.first_key + block * Traits::BLOCK_N + row_of_lane(lane);
        pages = lane < PASSES * WARP_ROWS && key < tile.end_key ? *keys.page_of(params, key) : 0;
    }

    // This thread's chunks of a row that has `left` columns from the first of them on.
    __device__ static void copy_row(unsigned at, const Element* from, int left)
    {
#pragma unroll
        for (int chunk = 0; chunk < Traits::ROW_CHUNKS; chunk += ACROSS)
            cp_async_16(at + chunk * CHUNK_BYTES, from + chunk * CHUNK<Element>, chunk * CHUNK<Element> < left);
    }

    const Forward& params;
    const unsigned place; // of this thread's first chunk in a block of rows
    int pages;
};

} // namespace warptile
