// Loads of the family `mma`: the queries of a tile, and blocks of keys and values, from the last one to the first.
#pragma once

#include "forward/mma_tile_layout.cuh"
#include "memory/chunk.cuh"
#include "memory/copy.cuh"
#include "memory/keys.cuh"
#include "ptx/prefetch_l1.cuh"
#include "ptx/words.cuh"

namespace warptile {

// Additional state of images that also take rows that do not start at multiples of 16 bytes: true if some do not. They are loaded by way of
// registers, when they would be asked for otherwise: nothing reads what was there before any more, and a barrier follows.
template <bool TAKES_UNALIGNED> struct UnalignedLoading {};
template <> struct UnalignedLoading<true> {
    bool is_unaligned;
};

template <class Traits> class TileLoader : UnalignedLoading<bool(Traits::FEATURES & FEATURE_UNALIGNED)> {
  public:
    using Element = typename Traits::Element;
    __device__ static constexpr bool takes_unaligned() { return Traits::FEATURES & FEATURE_UNALIGNED; }

    // `block` is the last one.
    __device__ TileLoader(const Forward& params, unsigned shared, const Segment& tile, int block) : params(params), tile(tile)
    {
        const int row = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS;
        to = kept(shared + Traits::place(row, column));
        if constexpr (takes_unaligned())
            this->is_unaligned = !(in_chunks<Element>(params.q) && in_chunks<Element>(params.k) && in_chunks<Element>(params.v));
        if (is_paged()) {
            find_pages(block);
        } else {
            const KeyRows<Element> rows(params, tile.batch, kv_head(), tile.k);
            keys = uniform_of(static_cast<const Element*>(params.k.address) + rows.offset(params, params.k, tile.first_key, 0));
            values = uniform_of(static_cast<const Element*>(params.v.address) + rows.offset(params, params.v, tile.first_key, 0));
        }
    }

    // Rows that do not exist become zeros. A lane finds one row's place.
    __device__ void load_queries(int group) const
    {
        constexpr int ROWS = Traits::BLOCK_M / Traits::WARPS; // that a warp copies
        static_assert(ROWS <= 32 && Traits::BLOCK_M / DOWN * WARP_ROWS == ROWS, "as many rows a warp");
        const int lane = threadIdx.x % 32, existing = existing_rows<Traits>(tile, group);
        const long long offset = row_offset(params.q, tile, group, row_of_lane(lane % ROWS));
        if constexpr (takes_unaligned())
            if (this->is_unaligned) {
#pragma unroll 1
                for (int pass = 0; pass < Traits::BLOCK_M / DOWN; pass++) {
                    const Element* const from = static_cast<const Element*>(params.q.address) +
                                                row_offset_of(offset, pass * WARP_ROWS + lane / ACROSS) + first_column();
                    copy_row_by_element(to + Traits::QUERIES_AT + pass * DOWN * Traits::ROW_BYTES, from,
                                        pass * DOWN + (int)threadIdx.x / ACROSS < existing, params.head_dim);
                }
                return;
            }
#pragma unroll
        for (int pass = 0; pass < Traits::BLOCK_M / DOWN; pass++) {
            const Element* const from = static_cast<const Element*>(params.q.address) +
                                        row_offset_of(offset, pass * WARP_ROWS + lane / ACROSS) + first_column();
            copy_row(to + Traits::QUERIES_AT + pass * DOWN * Traits::ROW_BYTES, from,
                     pass * DOWN + (int)threadIdx.x / ACROSS < existing, params.head_dim);
        }
    }

    // Asks for the last block, which may lack rows: for the keys as a group of cp.async, with what has been asked for before, and for the
    // values as another. `stage`: bytes into shared memory.
    __device__ void load_last_block(int stage, int block)
    {
        const int rows = tile.end_key - tile.first_key - block * Traits::BLOCK_N;
        if (block >= 0) load<true, false>(stage, block, rows);
        cp_async_commit();
        if (block >= 0) {
            load<false, true>(stage, block, rows);
            if (is_paged()) find_pages(block - 1);
        }
        cp_async_commit();
    }
    // Asks for a complete block's keys alone, as a group, and for its values, as another.
    __device__ void load_keys(int stage, int block)
    {
        if (block >= 0) load<true, false>(stage, block, Traits::BLOCK_N);
        cp_async_commit();
    }
    __device__ void load_values(int stage, int block)
    {
        load<false, true>(stage, block, Traits::BLOCK_N);
        if (is_paged()) find_pages(block - 1);
        cp_async_commit();
    }
    // Both as one group.
    __device__ void load_block(int stage, int block)
    {
        if (block >= 0) {
            load<true, true>(stage, block, Traits::BLOCK_N);
            if (is_paged()) find_pages(block - 1);
        }
        cp_async_commit();
    }

  protected:
    // Neighbouring threads take neighbouring chunks of a row; a thread stays in its columns, and steps through rows by DOWN.
    static constexpr int ACROSS = Traits::SPAN;
    static constexpr int DOWN = Traits::THREADS / ACROSS;
    static constexpr int PASSES = Traits::BLOCK_N / DOWN;
    static constexpr int WARP_ROWS = 32 / ACROSS; // of a pass
    static_assert(Traits::BLOCK_N % DOWN == 0 && Traits::BLOCK_M % DOWN == 0, "whole passes");
    static_assert(DOWN % 8 == 0, "rows of a thread are swapped alike");
    static_assert(PASSES * WARP_ROWS <= 32, "a lane finds the page of one key");

    __device__ bool is_paged() const
    {
        if constexpr (lists_blocks<Traits>()) return false;
        return params.pages.table;
    }
    __device__ static int first_column() { return threadIdx.x % ACROSS * CHUNK<Element>; }

    __device__ int kv_head() const
    {
        if constexpr (lists_blocks<Traits>()) return tile.kv_head / (params.heads / params.kv_heads);
        return tile.kv_head;
    }

    // The row that belongs to a lane, of the rows that this warp copies (WARP_ROWS in a pass).
    __device__ static int row_of_lane(int lane)
    {
        return lane / WARP_ROWS * DOWN + threadIdx.x / 32 * WARP_ROWS + lane % WARP_ROWS;
    }

    // The first `rows` of the block exist.
    template <bool KEYS, bool VALUES> __device__ void load(int stage, int block, int rows) const
    {
        if (is_paged()) {
            load_pages<KEYS, VALUES>(stage, block, rows);
            return;
        }
        const unsigned first_row = threadIdx.x / ACROSS, row = block * Traits::BLOCK_N + first_row;
        const Element* key = keys + row * (unsigned long long)params.k.row + first_column();
        const Element* value = values + row * (unsigned long long)params.v.row + first_column();
        const long long key_step = DOWN * params.k.row, value_step = DOWN * params.v.row;
        if constexpr (takes_unaligned())
            if (this->is_unaligned) {
                if (KEYS) copy_rows_by_element(to + stage, key, key_step, rows, params.head_dim);
                if (VALUES) copy_rows_by_element(to + stage + Traits::KEY_BYTES, value, value_step, rows, params.value_dim);
                return;
            }
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const unsigned at = to + stage + pass * DOWN * Traits::ROW_BYTES;
            const bool exists = rows == Traits::BLOCK_N || pass * DOWN + (int)first_row < rows;
            if (KEYS) copy_row(at, key, exists, params.head_dim);
            if (VALUES) copy_row(at + Traits::KEY_BYTES, value, exists, params.value_dim);
            key += key_step;
            value += value_step;
        }
    }

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
            if constexpr (takes_unaligned())
                if (this->is_unaligned) {
                    if (KEYS) copy_row_by_element(at, from(params.k), row < rows, params.head_dim);
                    if (VALUES) copy_row_by_element(at + Traits::KEY_BYTES, from(params.v), row < rows, params.value_dim);
                    continue;
                }
            if (KEYS) copy_row(at, from(params.k), row < rows, params.head_dim);
            if (VALUES) copy_row(at + Traits::KEY_BYTES, from(params.v), row < rows, params.value_dim);
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

    // This thread's chunks of a row of `columns`.
    __device__ void copy_row(unsigned at, const Element* from, bool exists, int columns) const
    {
        const int left = exists ? columns - first_column() : 0;
#pragma unroll
        for (int chunk = 0; chunk < Traits::ROW_CHUNKS; chunk += ACROSS)
            cp_async_16(at + chunk * CHUNK_BYTES, from + chunk * CHUNK<Element>, chunk * CHUNK<Element> < left);
    }

    // Those of a row that starts anywhere.
    __device__ static void copy_row_by_element(unsigned at, const Element* from, bool exists, int columns)
    {
        const int left = exists ? columns - first_column() : 0;
#pragma unroll 1
        for (int chunk = 0; chunk < Traits::ROW_CHUNKS; chunk += ACROSS) {
            uint4 bits = {0, 0, 0, 0};
            if (chunk * CHUNK<Element> < left) bits = load_chunk(from + chunk * CHUNK<Element>, false, CHUNK<Element>).bits;
            store_four_words(at + chunk * CHUNK_BYTES, {bits.x, bits.y, bits.z, bits.w});
        }
    }
    // This thread's rows of a block. There are few registers for loads under way, so all lines are brought near first.
    __device__ static void copy_rows_by_element(unsigned at, const Element* from, long long step, int rows, int columns)
    {
        const int first_row = threadIdx.x / ACROSS;
        const Element* line = from;
#pragma unroll 1
        for (int row = first_row; row < Traits::BLOCK_N && row < rows; row += DOWN) {
#pragma unroll 1
            for (int column = 0; column < columns - first_column(); column += ACROSS * CHUNK<Element>) prefetch_to_l1(line + column);
            line += step;
        }
#pragma unroll 1
        for (int row = first_row; row < Traits::BLOCK_N; row += DOWN) {
            copy_row_by_element(at, from, row < rows, columns);
            at += DOWN * Traits::ROW_BYTES;
            from += step;
        }
    }

    const Forward& params;
    const Segment& tile;
    unsigned to;
    int pages;
    const Element *keys, *values; // of the tile's first key, unless they are in pages
};

} // namespace warptile
