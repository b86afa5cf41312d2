// From a dot product to a score, and the online softmax in base 2.
#pragma once

#include "work/item.cuh"

namespace warptile {

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
constexpr float MAX_FLOAT = 3.4028234663852886e38f;

__device__ inline float negative_infinity() { return __int_as_float(0xff800000); }

// 2^x; 0 for -inf. Relative error 2^-22.
// PTX ISA, "Floating Point Instructions: ex2"; .ftz flushes results below 2^-126, which no sum notices.
__device__ inline float exp2_approximate(float x)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// x limited to [-limit, limit]; NaN stays NaN, unlike fminf and fmaxf.
// PTX ISA, "Floating Point Instructions: min, max"; modifier .NaN.
__device__ inline float clamp_keeping_nan(float x, float limit)
{
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(limit));
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-limit));
    return x;
}

// tanh without branches; absolute error 2e-7, relative 2e-6. For scores of tensor-core products, whose inputs carry 2^-11.
__device__ inline float tanh_approximate(float x)
{
    // Near 0 the quotient cancels; there the series to x^5 is closer than 1e-8.
    const float square = x * x;
    const float series = fmaf(x * square, fmaf(square, 2.0f / 15, -1.0f / 3), x);
    const float quotient = 1 - __fdividef(2, exp2_approximate(x * (2 * LOG2_E)) + 1);
    return fabsf(x) < 0.1f ? series : quotient;
}

// Dot product -> score, in the order scale, softcap, ALiBi. Scores come out multiplied by `unit`: LOG2_E makes them
// exponents of 2, so that p = 2^(t - m) needs no further multiplication; 1 keeps them as they are.
struct ScoreRule {
    float scale; // in units; with softcap: of the argument of tanh, scale / cap
    float cap;   // softcap in units; 0 for none
    float slope; // ALiBi slope in units; 0 for none
    int shift;   // ALiBi distance of query i and key j is |i + shift - j|, whatever the mask's alignment

    __device__ ScoreRule(const AttentionParams& params, float alibi_slope, int query_len, int key_len, float unit)
        : scale(params.softcap > 0 ? params.scale / params.softcap : params.scale * unit), cap(params.softcap * unit),
          slope(alibi_slope * unit), shift(key_len - query_len)
    {
    }

    // Bounds the dot product so that no score becomes infinite: a quarter of the range, so that the ALiBi term may be added
    // to the largest.
    __device__ float dot_limit() const { return MAX_FLOAT / 4 / fmaxf(1.0f, fabsf(scale)); }
    __device__ float score(float dot) const { return clamp_keeping_nan(dot, dot_limit()) * scale; }
    __device__ bool has_softcap() const { return cap > 0; }
    __device__ float with_softcap(float score) const { return cap * tanhf(score); }
    __device__ float with_softcap_approximate(float score) const { return cap * tanh_approximate(score); }
    __device__ bool has_alibi() const { return slope != 0; }
    __device__ float with_alibi(float score, int query, int key) const
    {
        return score - slope * fabsf((float)(query + shift - key));
    }
};

// What a running max is subtracted as: a row that has seen no key yet has m = -inf, and -inf - -inf would be NaN.
__device__ inline float finite_max(float m) { return m == negative_infinity() ? 0.0f : m; }

// Natural-log lse of a row from its running max and running sum; -inf for a row that saw no key.
__device__ inline float log_sum_exp(float max, float sum) { return sum == 0 ? negative_infinity() : max + logf(sum); }

} // namespace warptile
