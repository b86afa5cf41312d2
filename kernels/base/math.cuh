// The few functions of fp32 that a softmax needs, without branches.
#pragma once

namespace warptile {

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
constexpr float MAX_FLOAT = 3.4028234663852886e38f;

__device__ inline float positive_infinity() { return __int_as_float(0x7f800000); }
__device__ inline float negative_infinity() { return __int_as_float(0xff800000); }
__device__ inline float not_a_number() { return __int_as_float(0x7fffffff); }

// 2^x; 0 for -inf. Relative error 2^-22.
// PTX ISA, "Floating Point Instructions: ex2"; .ftz flushes results below 2^-126, which no sum notices.
__device__ inline float exp2_approximate(float x)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// 1 / x to 1 ulp; 0 for infinity.
// PTX ISA, "Floating Point Instructions: rcp.approx.ftz.f32".
__device__ inline float reciprocal_approximate(float x)
{
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// Approximate reciprocal that also takes and returns subnormal numbers, which `reciprocal_approximate` flushes to zero.
// PTX ISA, "Floating Point Instructions: rcp.approx.f32".
__device__ inline float reciprocal_of_any(float x)
{
    float result;
    asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// x limited to [-limit, limit]; NaN stays NaN, unlike fminf and fmaxf.
// PTX ISA, "Floating Point Instructions: min, max"; modifier .NaN.
__device__ inline float min_keeping_nan(float x, float limit)
{
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(limit));
    return x;
}
__device__ inline float clamp_keeping_nan(float x, float limit)
{
    x = min_keeping_nan(x, limit);
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-limit));
    return x;
}

// tanh to 1e-6 relative, however small x is: 1 - 2 / (e^2x + 1) cancels near 0, so a polynomial takes its place below 0.25. Its
// coefficients are a minimax fit of (tanh(x) - x) / x^3 in x^2, by Lawson's iteration; a longer one takes more registers than
// wgmma has. (tanh.approx has 2^-11, which a cap of 50 turns into 0.02.)
__device__ inline float tanh_approximate(float x)
{
    const float square = x * x;
    const float series = fmaf(x * square, fmaf(square, 1.28584825e-1f, -3.33238627e-1f), x);
    const float quotient = 1 - 2 * reciprocal_approximate(exp2_approximate(x * (2 * LOG2_E)) + 1);
    return fabsf(x) < 0.25f ? series : quotient;
}

} // namespace warptile
