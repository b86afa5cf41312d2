// Softcap on Hopper, in other forms than `ScoreRule`'s. Scores are small against the cap nearly always, and there tanh(x) = x P(x^2) with a
// polynomial P of degree 2 or 3: fewer operations than e^2x and a reciprocal take, and none of the unit that the weights' exponentials
// wait for. Where a warp has a larger score, it takes the exact tanh (base/math.cuh).
#pragma once

#include "base/abi.cuh"
#include "base/after.cuh"
#include "base/math.cuh"

namespace warptile {

// Returns true if a bit of t = 1 + x^2, which is 1 at least, says that |x| is 1/2 or more, or not a number. Bits of several t are or-ed.
__device__ inline bool is_large(unsigned seen) { return seen & 0x40600000; }

// tanh of numbers below 1/2, in place, to 6e-7: a minimax fit of tanh(x) / x in x^2, by Remez's exchange. `zero` is 0, which the compiler
// does not know: it keeps ptxas from having more of them under way than there are registers.
template <int AT_ONCE, int COUNT> __device__ inline void tanh_of_small(float (&x)[COUNT], int zero)
{
    float cube = -4.440222584e-2f;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (i >= AT_ONCE && i % (AT_ONCE / 2) == 0) cube = after(cube, x[i - AT_ONCE], zero);
        const float square = x[i] * x[i];
        x[i] *= fmaf(fmaf(fmaf(square, cube, 1.319029659e-1f), square, -3.332631794e-1f), square, 9.999994558e-1f);
    }
}

// Turns dot products into exponents of 2 at once, by a polynomial: a minimax fit of tanh, by Remez's exchange, to 1e-6 up to x = 0.387.
struct CappedExponents {
    float factors[3]; // of even powers of a dot product

    // `argument`: of tanh, for a dot product of 1. `exponent`: of 2, likewise, without a softcap.
    __device__ CappedExponents(float argument, float exponent)
    {
        const float square = argument * argument;
        factors[0] = exponent * 9.999824932e-1f;
        factors[1] = exponent * square * -3.323811286e-1f;
        factors[2] = exponent * square * square * 1.202462519e-1f;
    }

    // `last` is the last factor.
    __device__ float exponent(float dot, float last, float offset) const
    {
        const float square = dot * dot;
        return fmaf(dot, fmaf(fmaf(last, square, factors[1]), square, factors[0]), offset);
    }

    // Where its range ends, as an argument of tanh, and as the score, in units of the cap.
    __device__ static constexpr float largest_argument() { return 0.387f; }
    __device__ static constexpr float largest_score() { return 0.3688f; }
};

// The cap; far above all scores without one, in an image that has the option.
__device__ inline float softcap_of(const Scoring& scoring) { return scoring.softcap > 0 ? scoring.softcap : 1e9f; }
// The cap in units of exp2.
__device__ inline float cap_exponent(const Scoring& scoring) { return softcap_of(scoring) * LOG2_E; }
// The weight of a product that is bent; 0 if it has been hidden since. `cap`: `cap_exponent`.
__device__ inline float weight_of_bent(float bent, float cap, float lse) { return exp2_approximate(fmaf(bent, cap, -lse)); }
// That times the derivative of the score by the product, in units of the scale.
__device__ inline float slope_of_bent(float weight, float bent) { return weight * fmaxf(fmaf(-bent, bent, 1), 0); }

} // namespace warptile
