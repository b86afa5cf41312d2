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

// Turns dot products into exponents of 2 at once: dot Q(y) with y = dot^2 + `range`, a power of 2. So y has range's exponent unless the
// score is large, and a warp looks at that of all y together. Degree 3 is exact to 6e-7 up to x = 0.35 to 0.5, as range falls, and degree 2
// to 3e-6 up to 0.25 to 0.35. Both are minimax fits, as above.
template <int DEGREE> struct CappedExponents {
    static_assert(DEGREE == 2 || DEGREE == 3);
    float range;
    float factors[DEGREE + 1]; // of powers of y

    // `argument`: of tanh, for a dot product of 1. `exponent`: of 2, likewise, without a softcap.
    __device__ CappedExponents(float argument, float exponent)
    {
        const float square = argument * argument;
        const bool has_powers = argument > 1e-4f && argument < 1e4f && exponent < 1e10f;
        constexpr float LIMIT = DEGREE == 3 ? 0.25f : 0.125f; // of x^2
        range = has_powers ? __uint_as_float(__float_as_uint(LIMIT * reciprocal_approximate(square)) & 0x7f800000) : 0;
        // In powers of square * y instead of x^2 = square * (dot^2 + range) - begin.
        const float begin = -square * range;
        if constexpr (DEGREE == 3) {
            constexpr float C[] = {9.999994558e-1f, -3.332631794e-1f, 1.319029659e-1f, -4.440222584e-2f};
            factors[0] = exponent * (C[0] + begin * (C[1] + begin * (C[2] + begin * C[3])));
            factors[1] = exponent * square * (C[1] + begin * (2 * C[2] + begin * (3 * C[3])));
            factors[2] = exponent * square * square * (C[2] + begin * (3 * C[3]));
            factors[3] = exponent * square * square * square * C[3];
        } else {
            constexpr float C[] = {9.999969562e-01f, -3.328927047e-01f, 1.237693807e-01f};
            factors[0] = exponent * (C[0] + begin * (C[1] + begin * C[2]));
            factors[1] = exponent * square * (C[1] + begin * (2 * C[2]));
            factors[2] = exponent * square * square * C[2];
        }
    }

    // `range` is this one's; `seen` gets the bits of y.
    __device__ float exponent(float dot, float range, float offset, unsigned& seen) const
    {
        const float y = fmaf(dot, dot, range);
        seen |= __float_as_uint(y);
        float sum = factors[DEGREE];
#pragma unroll
        for (int i = DEGREE - 1; i >= 0; i--) sum = fmaf(sum, y, factors[i]);
        return fmaf(dot, sum, offset);
    }
    // Returns true if some score was large, or not a number; always, if there is no softcap, or powers of the argument do not have the
    // range.
    __device__ bool has_large(unsigned seen) const { return seen >= __float_as_uint(2 * range); }
};

// Which of them a warp takes in plain blocks: those of lower degree until a score was too large for them in its tile, then the exact tanh
// after the others.
enum class Capping { NARROW, WIDE, EXACT };

// What an image has that keeps factors in registers.
template <class Traits, bool = Traits::has_fast_cap() && !Traits::looks_first()> struct KeptExponents {
    __device__ explicit KeptExponents(const Scoring&) {}
};
template <class Traits> struct KeptExponents<Traits, true> {
    CappedExponents<2> capped;
    Capping capping = Capping::NARROW;

    __device__ explicit KeptExponents(const Scoring& scoring) : capped(scoring.scale / scoring.softcap, scoring.scale * LOG2_E) {}
};

} // namespace warptile
