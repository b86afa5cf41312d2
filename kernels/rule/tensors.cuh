// Tensors over scores, the bias and the key mask, as a lane of mma.sync's accumulators needs them: of a row, two neighbouring keys in
// each 8.
//
// Nothing is read outside of the sequence: what lies behind the last key is hidden by whoever masks, and gets what that key has.
#pragma once

#include "base/abi.cuh"
#include "base/element.cuh"
#include "base/math.cuh"

namespace warptile {

// Both numbers at once where a row's keys are neighbours and the first of the two lies at a multiple of both.
template <class T> struct alignas(2 * sizeof(T)) Two {
    T first, second;
};

// Calls `use(i, number)` for 2 * PAIRS keys: those of pair p are `key` + 8 * p and the one behind it, of `keys` keys. `row` is where the
// row begins, and keys are `step` apart.
template <int PAIRS, class T, class Use>
__device__ inline void each_of_row(const T* row, long long step, int key, int keys, Use use)
{
    const T* const first = row + key;
    if (step == 1 && key + 8 * (PAIRS - 1) + 1 < keys && reinterpret_cast<unsigned long long>(first) % sizeof(Two<T>) == 0) {
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
            const Two<T> two = *reinterpret_cast<const Two<T>*>(first + 8 * pair);
            use(2 * pair, two.first);
            use(2 * pair + 1, two.second);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) use(i, row[min(key + i / 2 * 8 + i % 2, keys - 1) * step]);
    }
}

// Where a row of the bias begins, and one of the key mask.
template <class Element> __device__ inline const Element* bias_row(const Scoring& scoring, int batch, int head, int query)
{
    return static_cast<const Element*>(scoring.bias) + batch * scoring.bias_batch + head * scoring.bias_head + query * scoring.bias_row;
}
__device__ inline bool has_mask(const Scoring& scoring) { return scoring.key_mask; }
__device__ inline const unsigned char* mask_row(const Scoring& scoring, int batch, int head, int query)
{
    return scoring.key_mask + batch * scoring.mask_batch + head * scoring.mask_head + query * scoring.mask_row;
}

__device__ inline bool mask_shows(const Scoring& scoring, int batch, int head, int query, int key)
{
    return mask_row(scoring, batch, head, query)[key * scoring.mask_key];
}

// A score in exponents of 2 with a bias on top. Not below the range where it is finite, as masks are that are added: rows of nothing else
// have equal weights.
__device__ inline float with_bias(float score, float bias)
{
    constexpr float LEAST = -MAX_FLOAT / 2;
    const float exponent = (bias < LEAST ? LEAST : bias) * LOG2_E;
    return bias == negative_infinity() ? bias : min_keeping_nan(score + exponent, MAX_FLOAT);
}

// Returns true if the key mask depends on the key only, as a padding mask does, and not on head or query.
__device__ inline bool masks_keys_alone(const Scoring& scoring)
{
    return has_mask(scoring) && scoring.mask_head == 0 && scoring.mask_row == 0;
}

} // namespace warptile
