// Writes a finished tile: normalized output and log-sum-exp.
#pragma once

#include "forward/wgmma_softmax.cuh"
#include "work/lengths.cuh"

namespace warptile {

// The 16 rows of a tile that one warp writes: of one head, 8 of each of two, or packed ones.
template <class Traits> class OutputRows {
  public:
    using Element = typename Traits::Element;

    // Works out where to write, so that it can be done while products run.
    __device__ OutputRows(const Forward& params, const Tile& tile, int warpgroup) : params(params)
    {
        tile_row = warpgroup * MMA_ROWS + thread_index() % WARPGROUP_THREADS / 32 * WARP_ROWS;
        if constexpr (Traits::packs_rows()) {
            find_packed(tile);
            return;
        }
        const int first_row = tile.first_query + first_in_tile();
        rows = tile.query_len - first_row;
        out = static_cast<Element*>(params.out.address) + tile.batch * params.out.batch +
              first_head(tile) * params.out.head + (long long)(tile.query_offset + first_row) * params.out.row;
        lse = nullptr;
        if (params.lse)
            lse = params.lse + tile.batch * params.lse_batch + first_head(tile) * params.lse_head +
                  tile.query_offset + first_row;
    }

    // Those of another warp: packed rows from `tile_row` of the tile on.
    __device__ OutputRows(int tile_row, const Forward& params, const Tile& tile) : params(params), tile_row(tile_row)
    {
        static_assert(Traits::packs_rows(), "other rows are those of the calling warp");
        find_packed(tile);
    }

    __device__ bool has_rows() const { return rows > 0; }

    // The head of one of the thread's packed rows.
    __device__ int head(int i) const { return tile_head + heads[i]; }

    // Log-sum-exp of the thread's rows, written by the first lane of each quad.
    __device__ void write_lse(const float (&values)[ROWS_PER_THREAD]) const
    {
#pragma unroll
        for (int i = 0; i < ROWS_PER_THREAD; i++)
            if (lse && thread_index() % 4 == 0 && exists(quad_row(i))) lse[own_query(i) + own_head(i) * params.lse_head] = values[i];
    }

    // Through `buffer`, the warpgroup's in shared memory: every warp lays its rows out for itself, with swizzled chunks as a box has
    // them, and the copy engine takes them from there. Once `wait_for_store_reads<0>` returns in the first lane, it has read them.
    __device__ void write_through(unsigned char* buffer, const TensorMap& map, const Tile& tile,
                                  const float (&output)[Traits::VALUE_DIM / 2], const float (&inverse)[ROWS_PER_THREAD]) const
    {
        constexpr int CHUNKS = Traits::VALUE_DIM / CHUNK;
        // If the buffer has no room for all columns, a slab is written to it while the previous one is read.
        constexpr int CHUNKS_AT_ONCE = Traits::OUTPUT_BUFFER ? SLAB_CHUNKS : CHUNKS;

        const int lane = thread_index() % 32;
        unsigned char* const all_staged = buffer + tile_row % MMA_ROWS * SWIZZLE_BYTES;
        const int matrix_swizzle = lane % 8 ^ lane / 16;
        const int row = uniform(tile.query_offset + tile.first_query + first_in_tile());
        const int head = uniform(first_head(tile));
        const int batch = params.sequences.query_offsets ? 0 : uniform(tile.batch);
#pragma unroll
        for (int part = 0; part < CHUNKS; part += CHUNKS_AT_ONCE) {
            if constexpr (Traits::OUTPUT_BUFFER) {
                if (lane == 0) part == 0 ? wait_for_store_reads<0>() : wait_for_store_reads<1>();
                __syncwarp();
            }
            unsigned char* const staged = all_staged + part / CHUNKS_AT_ONCE % 2 * Traits::QUERY_SLAB_BYTES;
            const unsigned matrix_row = shared_address(staged + lane % 16 * SWIZZLE_BYTES);
            const int chunks = CHUNKS - part < CHUNKS_AT_ONCE ? CHUNKS - part : CHUNKS_AT_ONCE;
#pragma unroll
            for (int i = 0; i < chunks; i += 2)
                store_matrices(matrix_row + i / SLAB_CHUNKS * Traits::QUERY_SLAB_BYTES +
                                   (i % SLAB_CHUNKS ^ matrix_swizzle) * 16,
                               word(output, inverse, 0, part + i), word(output, inverse, 1, part + i),
                               word(output, inverse, 0, part + i + 1), word(output, inverse, 1, part + i + 1));
            const unsigned source = uniform(shared_address(staged));
            fence_shared_for_async();
            __syncwarp();
            if (__builtin_expect(ends_with_map(), true)) {
                if (lane == 0) {
#pragma unroll
                    for (int i = 0; i < chunks; i += SLAB_CHUNKS)
                        store_box(map, source + i / SLAB_CHUNKS * Traits::QUERY_SLAB_BYTES, (part + i) * CHUNK, row, head, batch);
                    commit_stores();
                }
            } else {
                write_rows(staged, part, chunks);
            }
        }
    }

    // Straight from registers. A lane holds two neighbouring columns of every 8. It swaps with its neighbour, so that of two
    // blocks of 8 columns the even lane has four columns of the first and the odd lane four of the second: a quad stores
    // whole sectors.
    __device__ void write(const float (&output)[Traits::VALUE_DIM / 2], const float (&inverse)[ROWS_PER_THREAD]) const
    {
        write_columns(output, inverse, 0);
    }
    // Some of the columns, from `first_column` on, a multiple of 16, or of 8 where they are a single block.
    template <int COUNT>
    __device__ void write_columns(const float (&output)[COUNT], const float (&inverse)[ROWS_PER_THREAD], int first_column) const
    {
        if constexpr (COUNT == CHUNK / 2) {
#pragma unroll
            for (int i = 0; i < ROWS_PER_THREAD; i++)
                if (exists(quad_row(i)) && first_column < params.value_dim)
                    *reinterpret_cast<unsigned*>(out + own_query(i) * params.out.row + own_head(i) * params.out.head + first_column +
                                                 thread_index() % 4 * 2) = word(output, inverse, i, 0);
            return;
        }
        const bool odd = thread_index() & 1;
        Element* const first = out + first_column + (odd ? CHUNK : 0) + thread_index() % 4 / 2 * 4;
#pragma unroll
        for (int i = 0; i < ROWS_PER_THREAD; i++) {
            const int query = own_query(i), head = own_head(i);
            Element* const to = first + query * params.out.row + head * params.out.head;
            const bool exists = Traits::packs_rows() ? this->exists(quad_row(i)) : query < rows;
            const int columns = exists ? params.value_dim - first_column - (odd ? CHUNK : 0) : 0;
#pragma unroll
            for (int block = 0; block < COUNT / (CHUNK / 2); block += 2) {
                const unsigned left = word(output, inverse, i, block);
                const unsigned right = word(output, inverse, i, block + 1);
                const unsigned received = __shfl_xor_sync(0xffffffff, odd ? left : right, 1);
                if (block * CHUNK < columns)
                    *reinterpret_cast<uint2*>(to + block * CHUNK) = {odd ? received : left, odd ? right : received};
            }
        }
    }

    __device__ void write_zeros() const
    {
        const int column = thread_index() % 32 * 8;
        if constexpr (Traits::GROUPS || Traits::packs_rows()) {
            for (int row = 0; row < WARP_ROWS && column < params.value_dim; row++)
                if (exists(row))
                    *reinterpret_cast<uint4*>(out + query_of(row) * params.out.row + head_of(row) * params.out.head + column) = {0, 0, 0, 0};
        } else {
            for (int row = 0; row < min(rows, WARP_ROWS) && column < params.value_dim; row++)
                *reinterpret_cast<uint4*>(out + row * params.out.row + column) = {0, 0, 0, 0};
        }
    }

  private:
    static constexpr int WARP_ROWS = abi::OUTPUT_BOX_ROWS;
    static constexpr int CHUNK = 8; // columns in 16 bytes, and of an accumulator block
    static constexpr int SLAB_CHUNKS = SLAB_COLUMNS / CHUNK;

    // The head of the warp's first row.
    __device__ int first_head(const Tile& tile) const
    {
        if constexpr (Traits::GROUPS) return tile.head + (tile_row % MMA_ROWS << group_log(params)) / MMA_ROWS;
        return tile.head;
    }

    __device__ void find_packed(const Tile& tile)
    {
        packed = PackedRows(params, tile.first_query + tile_row);
        rows = rows_of_queries<Traits>(params, tile.query_len) - tile.first_query - tile_row;
        out = static_cast<Element*>(params.out.address) + tile.batch * params.out.batch + tile.head * params.out.head +
              (long long)tile.query_offset * params.out.row;
        lse = nullptr;
        if (params.lse) lse = params.lse + tile.batch * params.lse_batch + tile.head * params.lse_head + tile.query_offset;
        tile_head = tile.head;
#pragma unroll
        for (int i = 0; i < ROWS_PER_THREAD; i++) {
            queries[i] = packed.query(quad_row(i));
            heads[i] = packed.head(quad_row(i));
        }
    }

    // Returns true if one of the warp's rows is one of the sequence.
    __device__ bool exists(int row) const
    {
        if constexpr (Traits::packs_rows()) return row < rows;
        return query_of(row) < rows;
    }

    // The query and the head of one of the warp's rows, both relative to those of its first row, or of packed rows to the sequence's.
    __device__ int query_of(int row) const
    {
        if constexpr (Traits::packs_rows()) return packed.query(row);
        if constexpr (Traits::GROUPS) return row & (warpgroup_queries<Traits>(params) - 1);
        return row;
    }
    __device__ int head_of(int row) const
    {
        if constexpr (Traits::packs_rows()) return packed.head(row);
        if constexpr (Traits::GROUPS) return row >= warpgroup_queries<Traits>(params);
        return 0;
    }

    // Those of one of the thread's rows.
    __device__ int own_query(int i) const
    {
        if constexpr (Traits::packs_rows()) return queries[i];
        return query_of(quad_row(i));
    }
    __device__ int own_head(int i) const
    {
        if constexpr (Traits::packs_rows()) return heads[i];
        return head_of(quad_row(i));
    }

    // The warp's first query, counted from the tile's.
    __device__ int first_in_tile() const
    {
        if constexpr (Traits::GROUPS) {
            const int queries = warpgroup_queries<Traits>(params);
            return tile_row / MMA_ROWS * queries + (tile_row & (queries - 1));
        }
        return tile_row;
    }

    // Returns true if all of the warp's rows that the map covers belong to the sequence. Otherwise other sequences' rows may follow.
    __device__ bool ends_with_map() const
    {
        return !reads_lengths(params.sequences) || rows >= min(WARP_ROWS, warpgroup_queries<Traits>(params));
    }

    // The rows that there are, by the lanes: `chunks` of each from the chunk `first` on.
    __device__ void write_rows(const unsigned char* staged, int first, int chunks) const
    {
#pragma unroll 1
        for (int i = thread_index() % 32; i < (Traits::GROUPS ? WARP_ROWS : rows) * chunks; i += 32) {
            const int row = i / chunks, chunk = i % chunks;
            if ((first + chunk) * CHUNK >= params.value_dim || (Traits::GROUPS && query_of(row) >= rows)) continue;
            store_global(out + query_of(row) * params.out.row + head_of(row) * params.out.head + (first + chunk) * CHUNK,
                         *reinterpret_cast<const uint4*>(staged + chunk / SLAB_CHUNKS * Traits::QUERY_SLAB_BYTES +
                                                         row * SWIZZLE_BYTES + (chunk % SLAB_CHUNKS ^ row % 8) * 16));
        }
        fence_shared_for_async();
        __syncwarp(); // every lane has read what it stores
    }

    __device__ static int quad_row(int i) { return thread_index() % 32 / 4 + 8 * i; }

    template <int COUNT>
    __device__ static unsigned word(const float (&output)[COUNT], const float (&inverse)[ROWS_PER_THREAD], int row, int block)
    {
        const int at = 4 * block + 2 * row;
        return pack<Element>(output[at] * inverse[row], output[at + 1] * inverse[row]);
    }

    const Forward& params;
    Element* out; // of the warp's first row; of packed rows the sequence's first one
    float* lse;   // likewise; null if not wanted
    int rows;     // from the warp's first row to the end of the sequence
    int tile_row; // the warp's first row in the tile
    PackedRows packed; // if they are
    int queries[ROWS_PER_THREAD], heads[ROWS_PER_THREAD], tile_head; // of the thread's packed rows: worked out once, as code for it is long
};

} // namespace warptile
