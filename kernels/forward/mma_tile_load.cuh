// What the family `mma` loads: the queries of a tile, and blocks of keys and values, from the last one to the first.
#pragma once

#include "forward/mma_tile_layout.cuh"
#include "memory/copy.cuh"
#include "memory/keys.cuh"

namespace warptile {

template <class Traits> class TileLoader {
  public:
    using Element = typename Traits::Element;

    __device__ TileLoader(const Forward& params, unsigned shared, const Segment& tile, int blocks)
        : params(params), shared(shared), tile(tile), next(blocks - 1)
    {
        const int row = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS;
        to = shared + Traits::place(row, column);
        const KeyRows<Element> rows(params, tile.batch, tile.kv_head, tile.k);
        is_paged = rows.is_paged();
        if (is_paged) {
            if (next >= 0) find_pages();
        } else {
            // The last rows first.
            const int key = tile.first_key + next * Traits::BLOCK_N + (PASSES - 1) * DOWN + row;
            keys = static_cast<const Element*>(params.k.address) + rows.offset(params, params.k, key, 0) + column * CHUNK<Element>;
            values = static_cast<const Element*>(params.v.address) + rows.offset(params, params.v, key, 0) + column * CHUNK<Element>;
        }
    }

    // Rows that do not exist become zeros.
    __device__ void load_queries(int group) const
    {
        constexpr int COUNT = Traits::BLOCK_M * Traits::ROW_CHUNKS;
#pragma unroll 4
        for (int i = threadIdx.x; i < COUNT; i += Traits::THREADS) {
            const int at = i / Traits::ROW_CHUNKS, chunk = i % Traits::ROW_CHUNKS;
            const Row row(tile, group, at);
            const Element* const from = static_cast<const Element*>(params.q.address) + tile.batch * params.q.batch +
                                        row.head * params.q.head + (long long)(tile.q.first + row.query) * params.q.row +
                                        chunk * CHUNK<Element>;
            copy(shared + Traits::QUERIES_AT + Traits::place(at, chunk), from,
                 row.query < tile.q.len && chunk * CHUNK<Element> < params.head_dim);
        }
    }

    // Asks for the next block, if there is one, as a group of cp.async. `stage`: bytes into shared memory.
    __device__ void load_block(int stage)
    {
        if (next >= 0) {
            const int rows = tile.end_key - tile.first_key - next * Traits::BLOCK_N;
            if (is_paged)
                load_pages(stage, rows);
            else if (rows >= Traits::BLOCK_N)
                load_rows<true>(stage, rows);
            else
                load_rows<false>(stage, rows);
            next--;
            if (is_paged && next >= 0) find_pages();
        }
        cp_async_commit();
    }

  private:
    // Neighbouring threads take neighbouring chunks of a row; a thread stays in its columns, and steps through rows by DOWN.
    static constexpr int ACROSS = Traits::SPAN;
    static constexpr int DOWN = Traits::THREADS / ACROSS;
    static constexpr int PASSES = Traits::BLOCK_N / DOWN;
    static constexpr int WARP_ROWS = 32 / ACROSS; // of a pass
    static_assert(Traits::BLOCK_N % DOWN == 0, "whole passes");
    static_assert(DOWN % 8 == 0, "rows of a thread are swapped alike");
    static_assert(PASSES * WARP_ROWS <= 32, "a lane finds the page of one key");

    // Of the rows that this thread copies; `rows` of the block exist.
    template <bool ALL> __device__ void load_rows(int stage, int rows)
    {
        const long long key_step = DOWN * params.k.row, value_step = DOWN * params.v.row;
#ifdef V_POINTERS_ANEW
        const KeyRows<Element> place(params, tile.batch, tile.kv_head, tile.k);
        const int row = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS;
        const int key = tile.first_key + next * Traits::BLOCK_N + (PASSES - 1) * DOWN + row;
        const Element* keys = static_cast<const Element*>(params.k.address) + place.offset(params, params.k, key, 0) + column * CHUNK<Element>;
        const Element* values = static_cast<const Element*>(params.v.address) + place.offset(params, params.v, key, 0) + column * CHUNK<Element>;
#endif
#pragma unroll
        for (int pass = PASSES - 1; pass >= 0; pass--) {
            copy_row(stage, pass, keys, values, ALL || pass * DOWN + (int)threadIdx.x / ACROSS < rows);
            keys -= key_step;
            values -= value_step;
        }
    }

    __device__ void load_pages(int stage, int rows) const
    {
        const KeyRows<Element> place(params, tile.batch, tile.kv_head, tile.k);
        const int lane = threadIdx.x % 32, column = threadIdx.x % ACROSS * CHUNK<Element>;
#pragma unroll 1
        for (int pass = 0; pass < PASSES; pass++) {
            const int row = pass * DOWN + threadIdx.x / ACROSS;
            const int key = tile.first_key + next * Traits::BLOCK_N + row;
            const int page = __shfl_sync(0xffffffff, pages, pass * WARP_ROWS + lane / ACROSS);
            copy_row(stage, pass, static_cast<const Element*>(params.k.address) + place.offset(params, params.k, key, page) + column,
                     static_cast<const Element*>(params.v.address) + place.offset(params, params.v, key, page) + column, row < rows);
        }
    }
    // The pages of the keys that this warp copies of the next block, a lane one: asked for a block ahead.
    __device__ void find_pages()
    {
        const KeyRows<Element> place(params, tile.batch, tile.kv_head, tile.k);
        const int lane = threadIdx.x % 32;
        const int row = lane / WARP_ROWS * DOWN + threadIdx.x / 32 * WARP_ROWS + lane % WARP_ROWS;
        const int key = tile.first_key + next * Traits::BLOCK_N + row;
        pages = lane < PASSES * WARP_ROWS && key < tile.end_key ? *place.page_of(params, key) : 0;
    }

    __device__ void copy_row(int stage, int pass, const Element* key, const Element* value, bool valid) const
    {
        const int column = threadIdx.x % ACROSS * CHUNK<Element>;
#pragma unroll
        for (int chunk = 0; chunk < Traits::ROW_CHUNKS; chunk += ACROSS) {
            const bool exists = valid && column + chunk * CHUNK<Element> < params.head_dim;
            const unsigned at = to + stage + pass * DOWN * Traits::ROW_BYTES + chunk * CHUNK_BYTES;
            copy(at, key + chunk * CHUNK<Element>, exists);
            copy(at + Traits::KEY_BYTES, value + chunk * CHUNK<Element>, exists);
        }
    }

    __device__ static void copy(unsigned shared, const void* source, bool valid)
    {
        cp_async_16(__cvta_shared_to_generic(shared), source, valid);
    }

    const Forward& params;
    const unsigned shared;
    const Segment& tile;
    int next; // block
    unsigned to;
    bool is_paged;
    int pages;
    const Element *keys, *values; // of this thread's last row of the next block, unless they are in pages
};

} // namespace warptile
