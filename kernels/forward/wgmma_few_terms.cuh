// Terms at head size 256, where registers are few: a mask of queries takes the place of the bias, as -inf, and blocks with terms are never
// plain ones.
#pragma once

#include "forward/wgmma_terms.cuh"

namespace warptile {

template <class Traits> class ScoreTerms<Traits, true, false> {
  public:
    using Element = typename Traits::Element;

    // Asks for those of a warpgroup's rows from `first_row` on and the keys from `first_key` on.
    __device__ void ask(const Scoring& scoring, const Tile& tile, int first_row, int first_key)
    {
        slope = scoring.slopes ? scoring.slopes[tile.batch * scoring.slopes_batch + tile.head] : 0;
        if (masks_keys_alone(scoring)) {
            const unsigned char* const row = mask_row(scoring, tile.batch, 0, 0);
#pragma unroll
            for (int group = 0; group < key_groups(); group++)
                shown[group].fill([&](int lane) {
                    const int i = LANES * group + lane, key = first_key + i;
                    return i < Traits::BLOCK_N && key < tile.key_len ? (int)row[key * scoring.mask_key] : 1;
                });
        }
        if (!has_pairs(scoring)) return;
        const int key = first_key + lane_column();
        const bool whole = first_key + Traits::BLOCK_N <= tile.key_len;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            const int query = min(first_row + lane_row() + 8 * row, tile.query_len - 1);
            ask_for_bias(scoring, tile, query, key, whole, row);
            ask_for_mask(scoring, tile, query, key, whole, row);
        }
    }

    // Adds them, and hides keys. `unit`: of dot products.
    __device__ void add(float (&scores)[Traits::BLOCK_N / 2], const Scoring& scoring, const Tile& tile, int first_row, int first_key, float unit) const
    {
        if (scoring.slopes) add_distances(scores, first_row + tile.key_len - tile.query_len - first_key, slope * -unit);
        if (has_pairs(scoring)) add_pairs(scores, unit);
        if (masks_keys_alone(scoring)) hide(scores);
    }

  private:
    __device__ static constexpr int key_pairs() { return Traits::BLOCK_N / 8; } // of a row
    __device__ static constexpr int key_groups() { return (Traits::BLOCK_N + LANES - 1) / LANES; }
    __device__ static constexpr unsigned hidden_bits() { return IS_HALF<Element> ? 0xfc00 : 0xff80; } // -inf

    // Returns true if there is a number for each score.
    __device__ static bool has_pairs(const Scoring& scoring) { return scoring.bias || masks_queries(scoring); }
    __device__ static bool masks_queries(const Scoring& scoring) { return has_mask(scoring) && !masks_keys_alone(scoring); }

    __device__ void ask_for_bias(const Scoring& scoring, const Tile& tile, int query, int key, bool whole, int row)
    {
        if (scoring.bias) {
            using Bits = unsigned short;
            const long long strides = scoring.bias_batch | scoring.bias_head | scoring.bias_row, step = scoring.bias_key;
            const bool in_pairs = whole && step == 1 && strides % 2 == 0 && (unsigned long long)scoring.bias % 4 == 0;
            each_pair<key_pairs(), Bits, unsigned>(bias_row<Bits>(scoring, tile.batch, tile.head, query) + key * step, step, tile.key_len - key,
                                                   in_pairs, [&](int i, unsigned both) { words[2 * i + row] = both; });
        } else
#pragma unroll
            for (int i = 0; i < key_pairs(); i++) words[2 * i + row] = 0;
    }

    // -inf in place of the bias where the mask hides a key from a query.
    __device__ void ask_for_mask(const Scoring& scoring, const Tile& tile, int query, int key, bool whole, int row)
    {
        if (!masks_queries(scoring)) return;
        const long long strides = scoring.mask_batch | scoring.mask_head | scoring.mask_row, step = scoring.mask_key;
        const bool in_pairs = whole && step == 1 && strides % 2 == 0 && (unsigned long long)mask_row(scoring, 0, 0, 0) % 2 == 0;
        each_pair<key_pairs(), unsigned char, unsigned short>(mask_row(scoring, tile.batch, tile.head, query) + key * step, step,
                                                              tile.key_len - key, in_pairs, [&](int i, unsigned both) {
                                                                  unsigned& word = words[2 * i + row];
                                                                  if (!(both & 0xff)) word = (word & 0xffff0000) | hidden_bits();
                                                                  if (!(both >> 8)) word = (word & 0xffff) | hidden_bits() << 16;
                                                              });
    }

    __device__ void add_pairs(float (&scores)[Traits::BLOCK_N / 2], float unit) const
    {
#pragma unroll
        for (int i = 0; i < Traits::BLOCK_N / 2; i++) {
            const float term = widen(reinterpret_cast<const Element(&)[2]>(words[i / 2])[i % 2]);
            float sum = fmaf(term, unit, scores[i]);
            // Not below the range where it is finite, as masks are that are added: rows of nothing else have equal weights.
            if constexpr (!IS_HALF<Element>) sum = sum < -MAX_FLOAT / 4 && term != negative_infinity() ? -MAX_FLOAT / 4 : sum;
            scores[i] = sum;
        }
    }

    // `distance`: of the warpgroup's first row and the block's first key, counted bottom-right, wherever the mask's diagonal is.
    __device__ static void add_distances(float (&scores)[Traits::BLOCK_N / 2], int distance, float slope)
    {
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            const float of_row = (float)(distance + lane_row() + 8 * row - lane_column());
#pragma unroll
            for (int i = 0; i < key_pairs(); i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float& score = scores[4 * i + 2 * row + j];
                    score = fmaf(fabsf(of_row - (float)(8 * i + j)), slope, score);
                }
        }
    }

    // By a mask of keys alone.
    __device__ void hide(float (&scores)[Traits::BLOCK_N / 2]) const
    {
#pragma unroll
        for (int group = 0; group < key_groups(); group++) {
            const unsigned all = ~shown[group].not_zero();
            if (all == 0) continue;
            const unsigned hidden = all >> lane_column();
#pragma unroll
            for (int i = 0; i < LANES / 4; i++)
                if (LANES * group + i * 4 < Traits::BLOCK_N && hidden & 1u << (i / 2 * 8 + i % 2)) {
                    float* const both = scores + (LANES / 8 * group + i / 2) * 4 + i % 2;
                    both[0] = both[2] = negative_infinity();
                }
        }
    }

    unsigned words[Traits::BLOCK_N / 4]; // pair i of row r in word 2 * i + r: where a thread's scores 4 * i + 2 * r and the next one lie
    Lanes shown[key_groups()];
    float slope;
};

} // namespace warptile
