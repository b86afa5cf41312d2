// Which tiles a CTA computes. CTAs stay for the whole launch. With a tile counter each CTA draws its next number when it is free,
// which balances causal work; without one, CTA c computes tiles c, c + grid, c + 2 * grid, ...
#pragma once

#include "forward/wgmma_packed_rows.cuh"
#include "rule/mask.cuh"
#include "work/order.cuh"

namespace warptile {

// Returns true if the CTAs of a pair take two heads, false if they take two tiles of one head (forward/wgmma_pair.cuh).
__device__ inline bool pairs_heads(const Forward& params) { return params.heads / params.kv_heads % 2 == 0; }

template <class Traits> class TileOrder {
  public:
    __device__ explicit TileOrder(const ForwardTma& block)
        : block(block), params(block.forward), reads_lengths(warptile::reads_lengths(params.sequences)), number(blockIdx.x / Traits::CLUSTER)
    {
        if constexpr (Traits::SERVING) whole_tiles = params.work.tiles - (params.work.splits > 1 ? params.work.tiles % gridDim.x : 0);
    }

    __device__ bool done() const { return number >= numbers(); }

    // Draws the next number; its memory access overlaps with what follows until `advance`.
    __device__ void draw()
    {
        unsigned* const counter = params.work.counter;
        // Each number's CTA draws once, whether the tile exists or not, so a launch makes exactly as many draws as there are
        // numbers; atomicInc
        // wraps to 0 after the last of them and leaves the counter ready for the next launch.
        next = gridDim.x / Traits::CLUSTER + (counter ? atomicInc(counter, numbers() - 1) : number);
    }
    __device__ void advance() { number = next; }

    // The part of the tile that the present number stands for, in place of the tile. Of one that the sequence does not have nothing is
    // computed, but its parts come and go like others: whoever reads other lengths counts on them.
    __device__ Part cut(Tile& tile, bool exists) const
    {
        const int kv_head = tile.head / (params.heads / params.kv_heads);
        if (number < whole_tiles) return {Part::WHOLE, 0, kv_head};
        const int splits = params.work.splits, shared_tile = (number - whole_tiles) / splits;
        const int split = number - whole_tiles - shared_tile * splits;
        if (!exists) {
            tile.first_query = -Traits::BLOCK_M; // no warpgroup has rows
            tile.first_block = tile.end_block = 0;
        }
        const int first = tile.first_block, blocks = max(tile.end_block - first, 0);
        tile.first_block = first + blocks * split / splits;
        tile.end_block = first + blocks * (split + 1) / splits;
        return {shared_tile, split, kv_head};
    }

    // Writes the present tile to `tile`; false if the sequence does not have it. Reads memory only if it waits for the launch before.
    __device__ bool describe(Tile& tile) const
    {
        if (__builtin_expect(reads_lengths, false)) {
            grid_dependency_wait();
            if constexpr (Traits::PAIRS)
                if (!pairs_heads(params))
                    return describe_place<2 * Traits::BLOCK_M>(tile);
            return describe_place<Traits::BLOCK_M>(tile);
        }
        // A short cut for dense problems of one length. The loading thread computes this before it can load the next tile's keys, which
        // matters for short rows: the general way costs them 2%.
        const Work& work = params.work;
        const int signed_number = tile_number();
        const int tiles_at_once = work.heads_at_once * work.query_tiles;
        const int group = signed_number / tiles_at_once;
        const int first_head = group * work.heads_at_once;
        const int heads = numbered_heads();
        const int group_heads = min(work.heads_at_once, heads * params.sequences.batch - first_head);
        const int rest = signed_number - group * tiles_at_once;
        const int tile_row = rest / group_heads;
        const int batch_head = first_head + rest - tile_row * group_heads;
        const int batch = batch_head / heads;
        write(tile, batch, batch_head - batch * heads, tile_row, {0, params.sequences.query_len},
              {0, params.sequences.key_len});
        return true;
    }

  private:
    // Number of work items that CTAs draw: one for each whole tile, and one for each split of the keys of the last tiles. Tiles that fill
    // all CTAs of the grid stay whole.
    __device__ unsigned numbers() const
    {
        if constexpr (Traits::SERVING) return whole_tiles + (params.work.tiles - whole_tiles) * params.work.splits;
        return params.work.tiles;
    }
    __device__ unsigned tile_number() const
    {
        if constexpr (Traits::SERVING)
            if (number >= whole_tiles) return whole_tiles + (number - whole_tiles) / params.work.splits;
        // Dense launches may bring an order of tiles (crates/attention/src/plan/tile_order.rs).
        if constexpr (!Traits::PAIRS && !Traits::GROUPS && !Traits::packs_rows())
            if (block.ordered) return block.order[number];
        return number;
    }

    // Those that numbers tell apart.
    __device__ int numbered_heads() const
    {
        if constexpr (Traits::PAIRS)
            if (pairs_heads(params))
                return params.heads / 2;
        if constexpr (Traits::GROUPS || Traits::packs_rows()) return params.kv_heads;
        return params.heads;
    }

    // With lengths read from memory. A number stands for ROWS rows of a head.
    template <int ROWS> __device__ bool describe_place(Tile& tile) const
    {
        int rows_of_query = 1;
        if constexpr (Traits::GROUPS) rows_of_query = 1 << group_log(params);
        if constexpr (Traits::packs_rows()) rows_of_query = group_size(params);
        const TilePlace place = tile_place<ROWS>(params, tile_number(), numbered_heads(), rows_of_query);
        const int tiles = (place.q.len * rows_of_query + ROWS - 1) / ROWS;
        write(tile, place.batch, place.head, tiles - 1 - place.tile, place.q, place.k);
        return place.template exists<ROWS>(rows_of_query);
    }

    // `tile_row` counts from the end: a sequence's incomplete tile is its first one, which under a causal mask sees the fewest
    // keys.
    __device__ void write(Tile& tile, int batch, int head, int tile_row, const Extent& q, const Extent& k) const
    {
        const int queries = warpgroup_queries<Traits>(params), tile_queries = Traits::CONSUMERS * queries;
        int step = tile_queries;
        if constexpr (Traits::PAIRS) {
            if (pairs_heads(params))
                head *= 2;
            else
                step *= 2;
        }
        if constexpr (Traits::GROUPS) head <<= group_log(params);
        if constexpr (Traits::packs_rows()) head *= group_size(params);
        const int len = rows_of_queries<Traits>(params, q.len);
        // ptxas divides by what it does not know to be a power of 2. With lists of blocks tiles begin at multiples of their rows.
        const int all_queries = lists_blocks<Traits>() ? (len + tile_queries - 1) / tile_queries * tile_queries :
            Traits::GROUPS ? len + queries - 1 & -queries : (len + queries - 1) / queries * queries;
        const int end_query = all_queries - tile_row * step;
        const int first_query = end_query - tile_queries;
        tile.batch = batch;
        tile.head = head;
        tile.first_query = first_query;
        tile.query_len = q.len;
        tile.key_len = k.len;
        tile.query_offset = q.first;
        tile.key_offset = k.first;

        const Mask mask(params.scoring, q.len, k.len);
        if constexpr (lists_blocks<Traits>()) {
            // Keys: the loading thread makes blocks of them.
            tile.first_block = mask.first_key(first_query);
            tile.end_block = mask.end_key(first_query, tile_queries);
            return;
        }
        int first_seeing = first_query, seeing = tile_queries;
        if constexpr (Traits::packs_rows()) {
            const QueryRange range = queries_of_rows<Traits>(params, first_query, end_query - max(first_query, 0));
            first_seeing = range.first;
            seeing = range.count;
        }
        tile.first_block = mask.first_key(max(first_seeing, 0)) / Traits::BLOCK_N;
        tile.end_block = (mask.end_key(first_seeing, seeing) + Traits::BLOCK_N - 1) / Traits::BLOCK_N;
    }

    const ForwardTma& block;
    const Forward& params;
    const bool reads_lengths; // asked once: short rows feel it
    unsigned number;
    unsigned next;
    unsigned whole_tiles; // of the variant that serves
};

} // namespace warptile
