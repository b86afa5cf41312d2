// What the family `mma` loads: the queries of a tile, and blocks of keys and values, from the last one to the first.
#pragma once

#include "forward/mma_tile_layout.cuh"
#include "memory/copy.cuh"
#include "memory/keys.cuh"

namespace warptile {

template <class Traits> class TileLoader {
  public:
    using Element = typename Traits::Element;

    // `block` is the last one.
    __device__ TileLoader(const Forward& params, unsigned shared, const Segment& tile, int block) : params(params), tile(tile)
    {
        const int row = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS;
        to = kept(shared + Traits::place(row, column));
        if (is_paged()) {
            find_pages(block);
        } else {
            const KeyRows<Element> rows(params, tile.batch, tile.kv_head, tile.k);
            const int key = tile.first_key + block * Traits::BLOCK_N + threadIdx.x / ACROSS;
            keys = static_cast<const Element*>(params.k.address) + rows.offset(params, params.k, key, 0) + first_column();
            values = static_cast<const Element*>(params.v.address) + rows.offset(params, params.v, key, 0) + first_column();
        }
    }

    // Rows that do not exist become zeros. A lane finds one row's place.
    __device__ void load_queries(int group) const
    {
        static_assert(Traits::WARP_ROWS <= 32 && Traits::BLOCK_M / DOWN * WARP_ROWS == Traits::WARP_ROWS, "as many rows a warp");
        const int lane = threadIdx.x % 32, existing = existing_rows<Traits>(tile, group);
        const long long offset = row_offset(params.q, tile, group, row_of_lane(lane % Traits::WARP_ROWS));
#pragma unroll
        for (int pass = 0; pass < Traits::BLOCK_M / DOWN; pass++) {
            const Element* const from = static_cast<const Element*>(params.q.address) +
                                        row_offset_of(offset, pass * WARP_ROWS + lane / ACROSS) + first_column();
            copy_row(to + Traits::QUERIES_AT + pass * DOWN * Traits::ROW_BYTES, from,
                     pass * DOWN + (int)threadIdx.x / ACROSS < existing);
        }
    }

    // Asks for the last block, which may lack rows: for the keys as a group of cp.async, with what has been asked for before, and for the
    // values as another. `stage`: bytes into shared memory.
    __device__ void load_last_block(int stage, int block)
    {
        const int rows = tile.end_key - tile.first_key - block * Traits::BLOCK_N;
        if (is_paged()) {
            load_pages<true, false>(stage, block, rows);
            cp_async_commit();
            load_pages<false, true>(stage, block, rows);
            find_pages(block - 1);
        } else {
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                if (part == PARTS / 2) cp_async_commit();
                load_part(true, stage, part, pass_of(part) * DOWN + (int)threadIdx.x / ACROSS < rows);
            }
            step_back();
        }
        cp_async_commit();
    }

    // The blocks before are asked for part by part, while others are computed: `begin`, all parts, `end`, which closes their group.
    static constexpr int PARTS = 2 * Traits::BLOCK_N * Traits::ROW_CHUNKS / Traits::THREADS;
    __device__ void begin(int stage, int block)
    {
        load_stage = stage;
        is_open = block >= 0;
        if (is_paged() && is_open) {
            load_pages<true, true>(stage, block, Traits::BLOCK_N);
            find_pages(block - 1);
            is_open = false;
        }
    }
    __device__ void load(int part) const { load_part(is_open, load_stage, part, true); }
    __device__ void load_rest(int part)
    {
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            if (i >= part) load(i);
        end();
    }
    __device__ void end()
    {
        is_open = false;
        step_back();
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
    __device__ static int first_column() { return threadIdx.x % ACROSS * CHUNK<Element>; }

    // Of the rows that this warp copies, WARP_ROWS in a pass, which one is a lane's.
    __device__ static int row_of_lane(int lane)
    {
        return lane / WARP_ROWS * DOWN + threadIdx.x / 32 * WARP_ROWS + lane % WARP_ROWS;
    }

    // A part is a chunk of a row of this thread's: first those of keys, then of values.
    static constexpr int ROW_PARTS = Traits::ROW_CHUNKS / ACROSS;
    __device__ static constexpr int pass_of(int part) { return part % (PARTS / 2) / ROW_PARTS; }
    __device__ void load_part(bool active, int stage, int part, bool exists) const
    {
        const bool is_value = part >= PARTS / 2;
        const int pass = pass_of(part), chunk = part % ROW_PARTS * ACROSS;
        const Element* const from = (is_value ? values : keys) + pass * DOWN * (is_value ? params.v : params.k).row;
        copy_chunk(active, to + stage + (is_value ? Traits::KEY_BYTES : 0) + pass * DOWN * Traits::ROW_BYTES, from, chunk, exists);
    }
    __device__ void step_back()
    {
        keys -= Traits::BLOCK_N * params.k.row;
        values -= Traits::BLOCK_N * params.v.row;
    }

    // The first `rows` of the block exist.
    template <bool KEYS, bool VALUES> __device__ void load_pages(int stage, int block, int rows) const
    {
        const KeyRows<Element> place(params, tile.batch, tile.kv_head, tile.k);
        const int lane = threadIdx.x % 32;
#pragma unroll 1
        for (int pass = 0; pass < PASSES; pass++) {
            const int row = pass * DOWN + threadIdx.x / ACROSS, key = tile.first_key + block * Traits::BLOCK_N + row;
            const int page = __shfl_sync(0xffffffff, pages, pass * WARP_ROWS + lane / ACROSS);
            const unsigned at = to + stage + pass * DOWN * Traits::ROW_BYTES;
            const auto from = [&](const Tensor& tensor) {
                return static_cast<const Element*>(tensor.address) + place.offset(params, tensor, key, page) + first_column();
            };
            if (KEYS) copy_row(at, from(params.k), row < rows);
            if (VALUES) copy_row(at + Traits::KEY_BYTES, from(params.v), row < rows);
        }
    }
    // The pages of the keys that this warp copies of a block, a lane one: asked for a block ahead.
    __device__ void find_pages(int block)
    {
        if (block < 0) return;
        const KeyRows<Element> place(params, tile.batch, tile.kv_head, tile.k);
        const int lane = threadIdx.x % 32, key = tile.first_key + block * Traits::BLOCK_N + row_of_lane(lane);
        pages = lane < PASSES * WARP_ROWS && key < tile.end_key ? *place.page_of(params, key) : 0;
    }

    // This thread's chunks of a row.
    __device__ void copy_row(unsigned at, const Element* from, bool exists) const
    {
#pragma unroll
        for (int chunk = 0; chunk < Traits::ROW_CHUNKS; chunk += ACROSS) copy_chunk(true, at, from, chunk, exists);
    }
    __device__ void copy_chunk(bool active, unsigned at, const Element* from, int chunk, bool exists) const
    {
        cp_async_16_if(active, at + chunk * CHUNK_BYTES, from + chunk * CHUNK<Element>,
                    exists && first_column() + chunk * CHUNK<Element> < params.head_dim);
    }

    const Forward& params;
    const Segment& tile;
    unsigned to;
    int pages;
    int load_stage = 0;
    bool is_open = false;
    const Element *keys, *values; // this thread's first chunk of the next block, unless they are in pages
};

} // namespace warptile
