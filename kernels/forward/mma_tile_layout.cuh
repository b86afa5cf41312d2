// Sizes and the shared memory layout of the family `mma`. A CTA computes a tile of rows, and each warp 16 or 32 of them. Above head
// size 256 a warp cannot hold their results: two warps share the rows, each with all scores and half of the values' columns.
#pragma once

#include "forward/mma_layout.cuh"
#include "rule/blocks.cuh"
#include "rule/dropout.cuh"
#include "work/one_tile.cuh"

// Behind the others: the order of headers is that of symbols in an image.
#include "base/abi_bias.cuh"

namespace warptile {

// A number of this thread that is kept in a register, and not worked out again from special ones, which take long to read.
__device__ inline unsigned kept(unsigned x)
{
    asm volatile("" : "+r"(x));
    return x;
}

// A value that all lanes hold, which the compiler then knows to be uniform.
__device__ inline unsigned uniform_of(unsigned x) { return (unsigned)__shfl_sync(0xffffffff, x, 0); }
__device__ inline int uniform_of(int x) { return (int)uniform_of((unsigned)x); }
template <class Element> __device__ inline const Element* uniform_of(const Element* pointer)
{
    return reinterpret_cast<const Element*>(__shfl_sync(0xffffffff, reinterpret_cast<unsigned long long>(pointer), 0));
}

__device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_> struct TileTraits {
    using Element = Element_;
    using Keys = SameKeys<Element>;
    using Schedule = OneTile<TileTraits>;
    static constexpr int HEAD_DIM = HEAD_DIM_;
    static constexpr int BLOCK_M = BLOCK_M_; // rows: queries and heads that share a key/value head
    static constexpr int BLOCK_N = BLOCK_N_; // keys of a block
    static constexpr int WARPS = WARPS_;
    static constexpr int STAGES = STAGES_; // blocks of keys and values in shared memory
    static constexpr int K_STRIDE = 0, V_STRIDE = 0; // rows are swizzled, not padded
    static constexpr unsigned ROLE = ROLE_FORWARD, SCHEDULE = Schedule::SCHEDULE;
    static constexpr unsigned FEATURES = SCORE_OPTIONS | FEATURE_PACKED | FEATURE_PAGED |
                                         FEATURE_DEVICE_LENGTHS | FEATURE_NEGATIVE_SCALE | FEATURE_LSE;

    static constexpr int THREADS = 32 * WARPS;
    __device__ static constexpr int column_parts() { return column_parts_of(HEAD_DIM); }
    __device__ static constexpr int row_warps() { return WARPS / column_parts(); } // of the first columns; the others follow them
    static constexpr int WARP_ROWS = BLOCK_M / (WARPS / column_parts_of(HEAD_DIM));
    static constexpr int ROW_TILES = WARP_ROWS / FRAGMENT_ROWS; // of a warp
    static constexpr int COLUMN_TILES = HEAD_DIM / column_parts_of(HEAD_DIM) / FRAGMENT_COLUMNS; // of a warp
    static constexpr int KEY_TILES = BLOCK_N / FRAGMENT_COLUMNS;
    static constexpr int DEPTH_STEPS = HEAD_DIM / FRAGMENT_DEPTH; // of the products with keys
    static constexpr int KEY_STEPS = BLOCK_N / FRAGMENT_DEPTH;    // of those with values
    static_assert(sizeof(Element) == 2, "mma.sync takes f16 and bf16");
    static_assert(WARPS % column_parts_of(HEAD_DIM) == 0, "warps of all columns");
    static_assert(WARP_ROWS % FRAGMENT_ROWS == 0 && BLOCK_M % WARP_ROWS == 0, "a product has 16 rows");
    static_assert(HEAD_DIM % 32 == 0, "the swizzle, and columns are taken two products at a time");
    // Registers of a lane for outputs and scores.
    static constexpr int ACCUMULATORS = ROW_TILES * (HEAD_DIM / column_parts_of(HEAD_DIM) + BLOCK_N) / 2;

    // Shared memory.
    static constexpr int ROW_BYTES = HEAD_DIM * (int)sizeof(Element);
    static constexpr int ROW_CHUNKS = ROW_BYTES / CHUNK_BYTES;
    static constexpr int KEY_BYTES = BLOCK_N * ROW_BYTES; // of a block, and as many of values
    static constexpr int STAGE_BYTES = 2 * KEY_BYTES;
    static constexpr int QUERIES_AT = STAGES * STAGE_BYTES; // later the results
    static constexpr int TILE_AT = QUERIES_AT + BLOCK_M * ROW_BYTES;
    static constexpr int SHARED_BYTES = TILE_AT + (int)sizeof(Segment);
    // With one stage a block's keys make way for the next ones once all warps have their scores, and its values for the next ones once all
    // have added them. So a block of twice the keys fits, with as many barriers a key. A block that begins again has no keys then: whether
    // it must is known before they go.
    static constexpr bool WEIGHS_FIRST = STAGES == 1;

    // CTAs of an SM: 12 warps with 168 registers each where these are enough, else 8 with 255.
    static constexpr bool IS_SMALL = ACCUMULATORS <= 96 && ROW_TILES * BLOCK_N <= 64 && 3 * SHARED_BYTES <= 227 * 1024;
    static constexpr int MIN_CTAS = WARPS == 4 && IS_SMALL ? 3 : 8 / WARPS;
    // Registers hold as many of the queries as fit without spills, in steps of 16 columns. How many fit was found by compiling: fewer on
    // 8.0, and fewer where two warps share rows, because of their columns' addresses. Half of head size 192 is faster than all of it.
#if __CUDA_ARCH__ >= 890
    static constexpr int FOR_WEIGHTS = 8;
#else
    static constexpr int FOR_WEIGHTS = 12;
#endif
    static constexpr int FOR_PARTS = column_parts_of(HEAD_DIM) > 1 ? 8 : 0;
    static constexpr int ROOM = (ROW_TILES > 1 ? 176 : BLOCK_N < 64 ? 192 : 216) - (WEIGHS_FIRST ? FOR_WEIGHTS + FOR_PARTS : 0) - ACCUMULATORS;
    static constexpr int MOST_HELD = WEIGHS_FIRST && HEAD_DIM == 192 ? DEPTH_STEPS / 2 : DEPTH_STEPS;
    __device__ static constexpr int held_in(int room) { return MIN_CTAS * WARPS > 8 || room < 0 ? 0 : min_of(MOST_HELD, room / (4 * ROW_TILES)); }
    static constexpr int HELD_STEPS = held_in(ROOM);
    // Shared memory is asked for words of keys and values some turns ahead of the products with them. How many is measured
    // (docs/notebook/mma.md): ptxas moves the loads as it likes, and how it then orders everything decides.
    static constexpr int LOADS_AHEAD = ROW_TILES == 1 || HEAD_DIM >= 128 ? 3 : HEAD_DIM == 96 ? 1 : 2;
    // True if the first half of a block's keys is multiplied before the second, so that its weights are computed during the second half's
    // products.
    static constexpr bool SPLITS_KEYS = HEAD_DIM <= 64;
    static_assert(BLOCK_N % ((SPLITS_KEYS ? 2 : 1) * FRAGMENT_DEPTH) == 0, "the products with the values take 16 keys at a time");

    // A row's 16-byte chunks are swapped with others of SPAN, so that 8 rows' same chunk lies in different banks.
    static constexpr int SPAN = ROW_CHUNKS % 8 == 0 ? 8 : 4;
    __device__ static constexpr int swap(int row) { return SPAN == 8 ? row % 8 : row / 2 % 4; }
    // Bytes of a chunk into a block of rows.
    __device__ static int place(int row, int chunk) { return row * ROW_BYTES + (chunk ^ swap(row)) * CHUNK_BYTES; }
    // From the place of a row's chunk `c` below SPAN to that of chunk c + `chunks`, where `chunks` has no bit of c.
    __device__ static unsigned further(unsigned place, int chunks)
    {
        return (place ^ (unsigned)(chunks % SPAN * CHUNK_BYTES)) + chunks / SPAN * SPAN * CHUNK_BYTES;
    }
};

// Traits for scores with a bias and a key mask, whose addresses take registers.
template <class Element, int HEAD_DIM, int BLOCK_M, int BLOCK_N, int WARPS, int STAGES>
struct TensorTileTraits : TileTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES> {
    using Plain = TileTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES>;
    static constexpr unsigned FEATURES = Plain::FEATURES | SCORE_TENSORS;
    static constexpr int FOR_TENSORS = 28;
    static constexpr int HELD_STEPS = Plain::held_in(Plain::ROOM - FOR_TENSORS);
};

// Traits for dropout, too: bits of the weights that are kept, and what they are computed of. How many registers that takes was found by
// compiling.
template <class Element, int HEAD_DIM, int BLOCK_M, int BLOCK_N, int WARPS, int STAGES>
struct DroppingTileTraits : Dropping<TensorTileTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES>> {
    using Others = TensorTileTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES>;
#if __CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200
    static constexpr int FOR_DROPOUT = 12;
#else
    static constexpr int FOR_DROPOUT = 8;
#endif
    static constexpr int HELD_STEPS = Others::held_in(Others::ROOM - Others::FOR_TENSORS - FOR_DROPOUT);
    static_assert(BLOCK_N % 32 == 0, "a random number is for weights of 32 keys");
};

// Traits for rows that do not start at multiples of 16 bytes, and for a bias of f32 beside tensors of another type, too. The test for such rows
// between loads and products costs 4 to 5%, which others need not pay.
template <class Element, int HEAD_DIM, int BLOCK_M, int BLOCK_N, int WARPS, int STAGES>
struct UnalignedTileTraits : TensorTileTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES> {
    using Others = TensorTileTraits<Element, HEAD_DIM, BLOCK_M, BLOCK_N, WARPS, STAGES>;
    static constexpr unsigned FEATURES = Others::FEATURES | FEATURE_UNALIGNED | FEATURE_BIAS_F32;
    static constexpr int FOR_BOTH = HEAD_DIM == 256 ? 4 : 0;
    static constexpr int HELD_STEPS = Others::held_in(Others::ROOM - Others::FOR_TENSORS - FOR_BOTH);
};

// Rows of the tile that exist.
template <class Traits> __device__ inline int existing_rows(const Segment& tile, int group)
{
    return min(Traits::BLOCK_M, (tile.q.len - tile.first_query) * group - tile.first_head);
}

// Where a row of the tile begins in a tensor, in elements.
__device__ inline long long row_offset(const Tensor& tensor, const Segment& tile, int group, int row_of_tile)
{
    const Row row(tile, group, row_of_tile);
    return tile.batch * tensor.batch + row.head * tensor.head + (long long)(tile.q.first + row.query) * tensor.row;
}
// The row offset that lane `lane` computed.
__device__ inline long long row_offset_of(long long own, int lane)
{
    return (long long)__shfl_sync(0xffffffff, (unsigned long long)own, lane);
}

} // namespace warptile
