// Softcap on the FMA pipe. Scores are small against the cap nearly always, and there tanh(x) = x P(x^2) with a polynomial P of degree 2 or
// 3: fewer operations than e^2x and a reciprocal take, and none of the unit that the weights' exponentials wait for. Where a warp has a
// larger score, it takes the exact tanh (base/math.cuh).
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

// Turns dot products into exponents of 2 at once: dot Q(y) with y = dot^2 + `range`. A y at least twice `power()`, a power of 2, says that its
// score is large: all others have the exponent of `range`, and a warp looks at that of all y together. Exact to 1e-6 up to x = 0.39: a
// minimax fit of tanh, by Remez's exchange.
struct CappedExponents {
    float range;
    float factors[3]; // of powers of y

    // `argument`: of tanh, for a dot product of 1. `exponent`: of 2, likewise, without a softcap.
    __device__ CappedExponents(float argument, float exponent)
    {
        const float square = argument * argument;
        const bool has_powers = argument > 1e-4f && argument < 1e4f && exponent < 1e10f;
        const float limit = 0.15f * reciprocal_approximate(square); // of dot^2
        const float above = __uint_as_float((__float_as_uint(limit) + 0x7fffff) & 0x7f800000);
        range = has_powers ? 2 * above - limit : 0;
        // In powers of square * y instead of x^2 = square * (dot^2 + range) - begin.
        const float begin = -square * range;
        constexpr float C[] = {9.999824154e-1f, -3.323783418e-1f, 1.202275898e-1f};
        factors[0] = exponent * (C[0] + begin * (C[1] + begin * C[2]));
        factors[1] = exponent * square * (C[1] + begin * (2 * C[2]));
        factors[2] = exponent * square * square * C[2];
    }

    // `range` is this one's; `seen` gets the bits of y.
    __device__ float exponent(float dot, float range, float offset, unsigned& seen) const
    {
        const float y = fmaf(dot, dot, range);
        seen |= __float_as_uint(y);
        return fmaf(dot, fmaf(fmaf(factors[2], y, factors[1]), y, factors[0]), offset);
    }
    // Returns true if some score was large, or not a number; always, if there is no softcap, or powers of the argument do not have the
    // range.
    __device__ bool has_large(unsigned seen) const { return seen >= __float_as_uint(2 * power()); }

  private:
    __device__ float power() const { return __uint_as_float(__float_as_uint(range) & 0x7f800000); }
};

// What an image has that keeps factors in registers.
template <class Traits, bool = Traits::has_fast_cap() && !Traits::looks_first()> struct KeptExponents {
    __device__ explicit KeptExponents(const Scoring&) {}
};
template <class Traits> struct KeptExponents<Traits, true> {
    CappedExponents capped;
    bool is_exact = false; // a score of the warp was too large in its tile: plain blocks take the exact tanh

    __device__ explicit KeptExponents(const Scoring& scoring) : capped(scoring.scale / scoring.softcap, scoring.scale * LOG2_E) {}
};

} // namespace warptile
