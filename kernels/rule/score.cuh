// From a dot product to a score, and from a row's maximum and sum to its result.
#pragma once

#include "base/abi.cuh"
#include "base/math.cuh"

namespace warptile {

// Returns true if scaled products are bent: there is a softcap.
__device__ inline bool are_bent(const Scoring& scoring) { return scoring.softcap > 0; }

// The ALiBi slope of a head; 0 for none. `batch` is only read if there are slopes.
__device__ inline float slope_of(const Scoring& scoring, const int& batch, int head)
{
    return scoring.slopes ? scoring.slopes[batch * scoring.slopes_batch + head] : 0.0f;
}

// What the rule has of a head.
struct HeadTerms {
    float slope; // 0 without ALiBi

    __device__ static HeadTerms of(const Scoring& scoring, const int& batch, int head) { return {slope_of(scoring, batch, head)}; }
};

// Dot product -> score, in the order scale, softcap, ALiBi. Scores come out multiplied by `unit`: LOG2_E makes them
// exponents of 2, so that p = 2^(t - m) needs no further multiplication; 1 keeps them as they are.
struct ScoreRule {
    float scale; // in units; with softcap: of the argument of tanh, scale / cap
    float cap;   // softcap in units; 0 for none
    float slope; // ALiBi slope in units; 0 for none
    int shift;   // ALiBi distance of query i and key j is |i + shift - j|, whatever the mask's alignment

    __device__ ScoreRule(const Scoring& scoring, const HeadTerms& head, int query_len, int key_len, float unit) : ScoreRule(scoring, unit)
    {
        slope = head.slope * unit;
        shift = key_len - query_len;
    }
    // What is the same of all heads. `features`: those that the image has.
    __device__ ScoreRule(const Scoring& scoring, float unit, unsigned features = FEATURE_SOFTCAP)
        : scale(features & FEATURE_SOFTCAP && are_bent(scoring) ? scoring.scale / scoring.softcap
                                                            : fminf(fmaxf(scoring.scale * unit, -MAX_FLOAT), MAX_FLOAT)),
          cap(scoring.softcap * unit), slope(0), shift(0)
    {
    }

    // Folds `factor` into the scale, for dot products that still have to be multiplied by it.
    __device__ void multiply(float factor) { scale = clamp_keeping_nan(scale * factor, MAX_FLOAT); }
    // Bounds the dot product so that no score becomes infinite: a quarter of the range, so that the ALiBi term may be added
    // to the largest.
    __device__ float dot_limit() const { return MAX_FLOAT / 4 / fmaxf(1.0f, fabsf(scale)); }
    __device__ float score(float dot) const { return clamp_keeping_nan(dot, dot_limit()) * scale; }
    // Options that act on each scaled product by itself: softcap.
    __device__ bool bends() const { return cap > 0; }
    __device__ float bent(float score) const { return cap * tanh_approximate(score); }
    // The same, and multiplies the gradient of the result by the derivative if it is WANTED.
    template <bool WANTED> __device__ void bend(float& score, float& gradient) const
    {
        if (!bends()) return;
        const float tanh = tanh_approximate(score);
        if constexpr (WANTED) gradient *= 1 - tanh * tanh;
        score = cap * tanh;
    }
    __device__ bool has_alibi() const { return slope != 0; }
    __device__ float with_alibi(float score, int query, int key) const
    {
        return score - slope * fabsf((float)(query + shift - key));
    }
};

// What the host promises about the numbers of the rule.
__device__ inline bool is_valid(const Scoring& scoring) { return scoring.scale == scoring.scale && scoring.softcap >= 0; }

// Returns true if scores are not positive multiples of the products, biases and masks aside.
__device__ inline bool are_no_multiples(const Scoring& scoring, float scale) { return are_bent(scoring) || scoring.slopes || !(scale > 0); }

// The running max as it is subtracted from scores. A row that has seen no key has m = -inf, and -inf - -inf would be NaN.
__device__ inline float finite_max(float m) { return m == negative_infinity() ? 0.0f : m; }

// Natural-log lse of a row from its running max and running sum; -inf for a row that saw no key and has no last term.
__device__ inline float log_sum_exp(float max, float sum) { return sum == 0 ? negative_infinity() : max + logf(sum); }

// The last term of a row's sum is one without a key: its head's sink, which counts as one more score without a value. Images of calls that
// have one need these features.
enum : unsigned { LAST_TERM_FEATURES = FEATURE_SINKS };

__device__ inline bool have_last_terms(const Scoring& scoring) { return scoring.sinks != nullptr; }

// The score of the head's last term; -inf if there is none. An infinite one would leave infinity - infinity.
__device__ inline float last_term_of(const Scoring& scoring, int head)
{
    return scoring.sinks ? min_keeping_nan(scoring.sinks[head], MAX_FLOAT) : negative_infinity();
}

// A row of max `max` and sum `sum` in exponents of 2, joined by a last term in natural units: whichever is larger becomes the max
// that the others count against, so that neither overflows. Returns what the weights of the row are multiplied by before
// they are divided by the new sum.
__device__ inline float join_last_term(float& max, float& sum, float term)
{
    const float exponent = clamp_keeping_nan(term * LOG2_E, MAX_FLOAT);
    const float larger = fmaxf(max, exponent);
    const float keep = exp2_approximate(max - larger);
    sum = sum * keep + exp2_approximate(exponent - larger);
    max = larger;
    return keep;
}

// Ends rows of which all keys have been seen: each is joined by its last term, if there is one. `head_of`: the head of each, the same of all
// if they are OF_ONE. None must not join: it would be the max of a row that sees no key.
template <bool OF_ONE, int ROWS, class HeadOf>
__device__ inline void end_rows(const Scoring& scoring, HeadOf head_of, float (&max)[ROWS], float (&sum)[ROWS], float (&keep)[ROWS])
{
    if (__builtin_expect(have_last_terms(scoring), false)) {
        float term = last_term_of(scoring, head_of(0));
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            if (!OF_ONE && row > 0) term = last_term_of(scoring, head_of(row));
            if (term != negative_infinity()) keep[row] = join_last_term(max[row], sum[row], term);
        }
    }
}

// The log-sum-exp of a row that sees no key.
__device__ inline float lse_without_keys(const Scoring& scoring, int head) { return last_term_of(scoring, head); }

} // namespace warptile
