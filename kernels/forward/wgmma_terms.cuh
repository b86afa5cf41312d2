// Terms that are added to a block's scores (bias and ALiBi), and the key mask. They are loaded while the products with the keys run, and
// used when these have ended.
//
// Terms are added in units of the dot products, `unit`, so that a block stays a plain one: exponents are what they are without terms.
//
// A thread has two neighboring keys of each 8 in a row, and the four lanes of a quad have all 8. Where rows are aligned, each lane loads 8
// neighboring keys of 32 for the quad: a fourth of the loads.
#pragma once

#include "forward/wgmma_softmax.cuh"
#include "ptx/bf16_pairs.cuh"
#include "ptx/lanes.cuh"
#include "ptx/quad.cuh"
#include "rule/tensors.cuh"

namespace warptile {

// Calls use(i, both) for two neighboring 16-bit numbers, or two bytes, in each 8 keys, with the first one in the lower half. The first
// key's number lies at `row`, and there are `keys` of them. Nothing is read behind them; the mask hides those keys. `in_pairs`: all of
// them exist and are contiguous, and pairs are aligned to their size.
template <int PAIRS, class One, class Both, class Use>
__device__ inline void each_pair(const One* row, long long step, int keys, bool in_pairs, Use use)
{
    if (in_pairs) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) use(i, (unsigned)reinterpret_cast<const Both*>(row)[4 * i]);
    } else {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const unsigned first = 8 * i < keys ? row[0] : 0, second = 8 * i + 1 < keys ? row[step] : 0;
            use(i, first | second << 8 * sizeof(One));
            row += 8 * step;
        }
    }
}

// Bits 2 * i and 2 * i + 1 for two neighboring bytes in each 8 keys: whether they exist and are not 0.
template <int PAIRS> __device__ inline unsigned pairs_not_zero(const unsigned char* row, long long step, int keys)
{
    unsigned bits = 0;
#pragma unroll 4
    for (int i = 0; i < PAIRS; i++) {
        if (8 * i < keys && row[0]) bits |= 1u << 2 * i;
        if (8 * i + 1 < keys && row[step]) bits |= 2u << 2 * i;
        row += 8 * step;
    }
    return bits;
}

// Bit i is set if byte i is not 0.
__device__ inline unsigned bytes_not_zero(unsigned bytes)
{
    const unsigned tops = (((bytes & 0x7f7f7f7f) + 0x7f7f7f7f) | bytes) & 0x80808080;
    return tops * 0x00204081 >> 28;
}

// Images without the options have none.
template <class Traits, bool = Traits::has_tensors(), bool = Traits::has_fast_terms()> class ScoreTerms {};

template <class Traits> class ScoreTerms<Traits, true, true> {
  public:
    using Element = typename Traits::Element;

    // Asks for those of a warpgroup's rows from `first_row` on and the keys from `first_key` on. `dot_unit`: of dot products.
    __device__ void ask(const Scoring& scoring, const Tile& tile, int first_row, int first_key, float dot_unit)
    {
        unit = dot_unit;
        distance = first_row + tile.key_len - tile.query_len - first_key;
        slope = scoring.slopes ? scoring.slopes[tile.batch * scoring.slopes_batch + tile.head] * -unit : 0;
        if (!scoring.bias && !has_mask(scoring)) return;
        const int keys = tile.key_len - first_key;
        const bool in_quads = scoring.bias && ask_for_bias(scoring, tile, first_row, first_key, keys);
        if (has_mask(scoring)) {
            if (masks_keys_alone(scoring))
                find_hidden_keys(mask_row(scoring, tile.batch, 0, 0) + first_key * scoring.mask_key, scoring.mask_key, keys);
            else
                find_hidden(scoring, tile, first_row, first_key, keys);
        }
        if (in_quads)
#pragma unroll
            for (int row = 0; row < ROWS_PER_THREAD; row++)
#pragma unroll
                for (int i = 0; i < quads_of_row(); i++) bias[row][i].transpose();
        if constexpr (!IS_HALF<Element>)
            if (scoring.bias) bound_bias();
    }

    // Returns true if the block lies before or behind the diagonals of all rows, so that distances are linear in the key.
    __device__ bool is_linear(const Scoring& scoring) const
    {
        return !scoring.slopes || distance >= Traits::BLOCK_N - 1 || distance <= 1 - MMA_ROWS;
    }

    // Adds them, and hides keys. `linear` blocks leave out a number for each row, which `of_rows` gets.
    __device__ void add(float (&scores)[Traits::BLOCK_N / 2], const Scoring& scoring, bool linear, float (&of_rows)[ROWS_PER_THREAD]) const
    {
        of_rows[0] = of_rows[1] = 0;
        if (scoring.slopes) {
            if (linear)
                add_linear(scores, of_rows);
            else
                add_distances(scores);
        }
        if (scoring.bias) add_bias(scores);
        if (has_mask(scoring) && __any_sync(0xffffffff, hidden[0] | hidden[1])) hide(scores);
    }

  private:
    __device__ static constexpr int key_pairs() { return Traits::BLOCK_N / 8; } // of a row
    __device__ static constexpr int quads_of_row() { return Traits::BLOCK_N / (8 * QUAD_LANES); }
    __device__ static constexpr int key_groups() { return (Traits::BLOCK_N + LANES - 1) / LANES; }
    __device__ static constexpr unsigned all_keys() { return ~0u >> (32 - Traits::BLOCK_N / 4); } // bits of a row
    static_assert(Traits::BLOCK_N <= 128 && Traits::BLOCK_N % 32 == 0, "a word has a thread's keys of a row, and quads have whole ones");

    __device__ static int row_of(const Tile& tile, int first_row, int row) { return min(first_row + lane_row() + 8 * row, tile.query_len - 1); }

    // Returns true if the words of quads are still to be transposed.
    __device__ bool ask_for_bias(const Scoring& scoring, const Tile& tile, int first_row, int first_key, int keys)
    {
        using Bits = unsigned short;
        const long long strides = scoring.bias_batch | scoring.bias_head | scoring.bias_row, step = scoring.bias_key;
        const unsigned long long address = (unsigned long long)scoring.bias;
        const bool whole = keys >= Traits::BLOCK_N && step == 1, in_quads = whole && strides % 8 == 0 && address % 16 == 0;

        const bool in_pairs = whole && strides % 2 == 0 && address % 4 == 0;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            const Bits* const numbers = bias_row<Bits>(scoring, tile.batch, tile.head, row_of(tile, first_row, row)) + first_key * step;
            if (in_quads)
#pragma unroll
                for (int i = 0; i < quads_of_row(); i++)
                    bias[row][i].fill([&](int lane) { return *reinterpret_cast<const uint4*>(numbers + 32 * i + 8 * lane); });
            else
                each_pair<key_pairs(), Bits, unsigned>(numbers + lane_column() * step, step, keys - lane_column(), in_pairs,
                                       [&](int i, unsigned both) { bias[row][i / QUAD_LANES][i % QUAD_LANES] = both; });
        }
        return in_quads;
    }

    // Not below the range where it is finite in units, as masks are that are added: rows of nothing else have equal weights.
    __device__ void bound_bias()
    {
        const float least = fmaxf(-MAX_FLOAT / 4 * reciprocal_approximate(unit), -MAX_FLOAT);
        const unsigned upper = __float_as_uint(least) >> 16;
#pragma unroll
        for (int i = 0; i < Traits::BLOCK_N / 4; i++) {
            unsigned& pair = bias[i % 2][i / 2 / QUAD_LANES][i / 2 % QUAD_LANES];
            pair = at_least(pair, upper << 16 | upper);
        }
    }

    // By a mask of keys alone, whose row begins at `mask` with the block.
    __device__ void find_hidden_keys(const unsigned char* mask, long long step, int keys)
    {
        Lanes shown[key_groups()];
#pragma unroll
        for (int group = 0; group < key_groups(); group++)
            shown[group].fill([&](int lane) {
                const int key = LANES * group + lane;
                return key < keys ? (int)mask[key * step] : 1;
            });
        hidden[0] = 0;
#pragma unroll
        for (int group = 0; group < key_groups(); group++) {
            const unsigned own = ~shown[group].not_zero() >> lane_column() & 0x03030303; // two of each 8
            hidden[0] |= ((own | own >> 6 | own >> 12 | own >> 18) & 0xff) << 8 * group;
        }
        hidden[1] = hidden[0];
    }

    // By any other mask.
    __device__ void find_hidden(const Scoring& scoring, const Tile& tile, int first_row, int first_key, int keys)
    {
        const long long strides = scoring.mask_batch | scoring.mask_head | scoring.mask_row, step = scoring.mask_key;
        const unsigned long long address = (unsigned long long)mask_row(scoring, 0, 0, 0);
        const bool in_quads = keys >= Traits::BLOCK_N && step == 1 && (strides | address) % 8 == 0;
        const auto mask = [&](int row) { return mask_row(scoring, tile.batch, tile.head, row_of(tile, first_row, row)) + first_key * step; };
        unsigned shown[ROWS_PER_THREAD] = {0, 0};
        if (in_quads) {
            QuadNumbers quads[ROWS_PER_THREAD];
#pragma unroll
            for (int row = 0; row < ROWS_PER_THREAD; row++)
                quads[row].fill([&](int lane) {
                    unsigned bits = 0; // byte i: of 8 of each 32 keys
#pragma unroll
                    for (int i = 0; i < quads_of_row(); i++) {
                        const uint2 bytes = *reinterpret_cast<const uint2*>(mask(row) + 32 * i + 8 * lane);
                        bits |= (bytes_not_zero(bytes.x) | bytes_not_zero(bytes.y) << 4) << 8 * i;
                    }
                    return bits;
                });
#pragma unroll
            for (int row = 0; row < ROWS_PER_THREAD; row++)
#pragma unroll
                for (int lane = 0; lane < QUAD_LANES; lane++)
                    shown[row] |= (quads[row][lane] >> lane_column() & 0x03030303) << 2 * lane;
        } else {
#pragma unroll 1
            for (int row = 0; row < ROWS_PER_THREAD; row++) {
                shown[0] = shown[1];
                shown[1] = pairs_not_zero<key_pairs()>(mask(row) + lane_column() * step, step, keys - lane_column());
            }
        }
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) hidden[row] = ~shown[row] & all_keys();
    }

    __device__ void add_bias(float (&scores)[Traits::BLOCK_N / 2]) const
    {
#pragma unroll
        for (int i = 0; i < Traits::BLOCK_N / 2; i++) {
            const int pair = i / 4;
            const unsigned both = bias[i / 2 % 2][pair / QUAD_LANES][pair % QUAD_LANES];
            scores[i] = fmaf(widen(reinterpret_cast<const Element(&)[2]>(both)[i % 2]), unit, scores[i]);
        }
    }

    // `distance` of the thread's first row and first key.
    __device__ int own_distance() const { return distance + lane_row() - lane_column(); }

    __device__ void add_distances(float (&scores)[Traits::BLOCK_N / 2]) const
    {
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            const float of_row = (float)(own_distance() + 8 * row);
#pragma unroll
            for (int i = 0; i < key_pairs(); i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float& score = scores[4 * i + 2 * row + j];
                    score = fmaf(fabsf(of_row - (float)(8 * i + j)), slope, score);
                }
        }
    }

    // Adds distances that are linear in the key, without a number that all scores of a row have in common: `of_rows`.
    __device__ void add_linear(float (&scores)[Traits::BLOCK_N / 2], float (&of_rows)[ROWS_PER_THREAD]) const
    {
        const float of_key = distance > 0 ? -slope : slope; // from a key to the next
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) of_rows[row] = -of_key * (float)(own_distance() + 8 * row);
#pragma unroll
        for (int i = 0; i < Traits::BLOCK_N / 2; i++) scores[i] = fmaf((float)(i / 4 * 8 + i % 2), of_key, scores[i]);
    }

    __device__ void hide(float (&scores)[Traits::BLOCK_N / 2]) const
    {
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
#pragma unroll
            for (int i = 0; i < Traits::BLOCK_N / 4; i++)
                if (hidden[row] & 1u << i) scores[i / 2 * 4 + 2 * row + i % 2] = negative_infinity();
    }

    QuadWords bias[ROWS_PER_THREAD][quads_of_row()]; // of a row, pairs of keys
    unsigned hidden[ROWS_PER_THREAD];    // bit 2 * i + j: key j of pair i
    float unit;
    float slope;  // ALiBi's, in units: what a key's distance adds
    int distance; // of the warpgroup's first row and the block's first key, counted bottom-right, wherever the mask's diagonal is
};

} // namespace warptile
