// One mask for everything: query i sees key j iff diagonal(i) - left <= j <= diagonal(i) + right and j < key_len. No mask,
// causal and window differ only in `left` and `right` (WINDOW_UNLIMITED where a side is open).
#pragma once

#include "base/abi.cuh"

namespace warptile {

struct Mask {
    int shift; // diagonal(i) = i + shift
    int left;
    int right;
    int query_len;
    int key_len;

    __device__ Mask(const Scoring& scoring, int query_len, int key_len)
        : shift(scoring.align_top_left ? 0 : key_len - query_len), left(scoring.window_left), right(scoring.window_right),
          query_len(query_len), key_len(key_len)
    {
    }

    __device__ bool sees(int query, int key) const
    {
        const int diagonal = query + shift;
        return key >= diagonal - left && key <= diagonal + right && key < key_len;
    }

    // Keys seen by at least one query of [first_query, first_query + rows) lie in [first_key, end_key); empty when
    // first_key >= end_key.
    __device__ int first_key(int first_query) const { return max(0, first_query + shift - left); }
    __device__ int end_key(int first_query, int rows) const
    {
        return min(key_len - 1, last_query(first_query, rows) + shift + right) + 1;
    }

    // Returns true if some key of [first_key, first_key + keys) is hidden from some query of the tile. If not, the per-element test is
    // skipped.
    __device__ bool hides_part_of(int first_query, int rows, int first_key, int keys) const
    {
        return first_key + keys > key_len || first_key < last_query(first_query, rows) + shift - left ||
               first_key + keys - 1 > first_query + shift + right;
    }

  private:
    // Rows past the sequence's end are computed but never written; they don't widen the range of keys.
    __device__ int last_query(int first_query, int rows) const { return min(first_query + rows, query_len) - 1; }
};

// A lane's scores of a row in 128 keys, as bits, the first key's lowest: set for keys from `key` on. `key` counts from the
// lane's first column; its columns are 0, 1, 8, 9, 16, 17, ...
__device__ inline unsigned columns_from(int key)
{
    const int below = 2 * (key >> 3) + min(key & 7, 2);
    return below >= 32 ? 0 : ~0u << max(below, 0);
}

} // namespace warptile
