// A warpgroup's rows of gradients on their way to memory, and rows in shared memory that are no sequence's.
#pragma once

#include "backward/wgmma_tile.cuh"
#include "backward/write.cuh"
#include "base/math.cuh"
#include "ptx/words.cuh"

namespace warptile {

// Two numbers of 16 bits.
template <class Element> __device__ inline float2 unpacked(unsigned word)
{
    const Element(&two)[2] = reinterpret_cast<const Element(&)[2]>(word);
    return {widen(two[0]), widen(two[1])};
}

// A warpgroup's 64 rows of a gradient, as wgmma leaves them: of the tile's own rows those from `first` on. If APART, the code of the two
// ways of writing is: one's between that of the other would be fetched with it at the end of each tile.
template <class Element, bool APART = true, class Tile, int COUNT>
__device__ inline void write_rows(const Backward& params, const Tensor& to, const Tile& tile, int first, int dim, const float (&sums)[COUNT], float factor)
{
    if (!to.address) return;
    const auto write = [&](const bool chunks) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first + thread_index() % 128 / 32 * 16 + thread_index() % 32 / 4 + 8 * half;
            const long long at = tile.own_entry() * to.batch + (tile.own().first + row) * to.row + tile.own_head() * to.head;
#pragma unroll
            for (int i = 0; i < COUNT; i += 16) {
                float2 pairs[4];
#pragma unroll
                for (int j = 0; j < 4; j++) pairs[j] = {sums[i + 4 * j + 2 * half] * factor, sums[i + 4 * j + 2 * half + 1] * factor};
                write_groups<Element, true>(to, params.gradients, chunks, at, row < tile.own().len, 2 * i, dim, pairs);
            }
        }
    };
    const bool chunks = writes_chunks<Element>(to, params.gradients, dim);
    if (!APART || chunks)
        write(chunks);
    else
        write(false);
}

// Hides transposed scores, keys down and queries across, that the mask does not show: those of the 64 keys from `first_key` on, and of a
// block's queries, the first of which has its diagonal at `diagonal`.
template <int QUERIES, int COUNT> __device__ inline void hide_unseen(float (&scores)[COUNT], const Mask& mask, int first_key, int diagonal)
{
    if (first_key + MMA_ROWS > mask.key_len || first_key + MMA_ROWS - 1 > diagonal + mask.right || first_key < diagonal + QUERIES - 1 - mask.left) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int lane = thread_index() % 32;
            const int key = first_key + thread_index() % 128 / 32 * 16 + lane / 4 + 8 * half, column = diagonal + lane % 4 * 2;
            const int from = key < mask.key_len ? key - mask.right - column : QUERIES, to = key + mask.left - column;
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                if (j % 4 / 2 == half && (j / 4 * 8 + j % 2 < from || j / 4 * 8 + j % 2 > to)) scores[j] = negative_infinity();
        }
    }
}

// Warps meet: as many as the barrier takes, each for the `turn`th time. They may come from different places of the code, which a hardware
// barrier takes, but compute-sanitizer's synccheck reports.
__device__ inline void meet(unsigned barrier, unsigned turn)
{
    __syncwarp();
    if (thread_index() % 32 == 0) barrier_arrive(barrier);
    barrier_wait(barrier, turn & 1);
}

// The thread that draws tiles. `draw` fills in one, which exists or not.
template <class Shared, class Draw> __device__ inline void draw_tiles(const Shared& shared, Draw draw)
{
    for (unsigned turn = 0;; turn++) {
        auto& tile = shared.tile(turn);
        barrier_wait(shared.tile_empty(turn % 2), ~(turn / 2) & 1);
        draw(tile);
        barrier_arrive(shared.tile_full(turn % 2));
        if (!tile.exists) return;
    }
}

// The rows from `rows` on of a tile of ROWS become 0, where they are not the sequence's: a weight of 0 does not hide a NaN. THREADS threads
// share the work, whole warpgroups; products see the zeros once these have met.
template <int ROWS, int SLABS, int THREADS> __device__ inline void clear_rows(unsigned tile, int rows)
{
    constexpr int SLAB_BYTES = ROWS * SWIZZLE_BYTES;
    const unsigned zeros[4] = {};
#pragma unroll
    for (int slab = 0; slab < SLABS; slab++)
#pragma unroll 1
        for (int byte = rows * SWIZZLE_BYTES + thread_index() % THREADS * 16; byte < SLAB_BYTES; byte += THREADS * 16)
            store_four_words(tile + slab * SLAB_BYTES + byte, zeros);
    fence_shared_for_async();
}

// `clear_rows` by one warpgroup, which meets at a barrier of its own. Every warpgroup that reads the tile does so before, so that they need not
// wait for each other.
template <int ROWS, int SLABS> __device__ inline void clear_end(unsigned tile, int rows, int warpgroup)
{
    clear_rows<ROWS, SLABS, 128>(tile, rows);
    named_barrier_wait(1 + warpgroup, 128);
}

} // namespace warptile
