// How a warp knows whether a softcap's polynomial (rule/softcap.cuh) is right for its scores. A plain block need not look at them: beyond its
// range the polynomial ascends faster than tanh, so a large score leaves a large sum of weights, and one far below 0 a weight that is as good
// as 0.
#pragma once

#include "base/abi.cuh"
#include "rule/softcap.cuh"

namespace warptile {

// How the plain blocks of a warp's tile take tanh.
enum class Bending {
    FITS,  // by the polynomial: the sums of weights tell where it does not hold
    LOOKS, // likewise, after a look at all scores, as the rows' maxima are too near the ends of its range
    EXACT, // a score was too large, or there is no softcap
};

// What an image with the polynomial keeps: how tanh is taken, and the factors where there are registers for them.
template <bool KEPT> struct KeptFactors {
    __device__ explicit KeptFactors(const Scoring&) {}
};
template <> struct KeptFactors<true> {
    CappedExponents capped;

    __device__ explicit KeptFactors(const Scoring& scoring) : capped(scoring.scale / scoring.softcap, scoring.scale * LOG2_E) {}
};
template <class Traits, bool = Traits::has_fast_cap()> struct KeptExponents {
    __device__ explicit KeptExponents(const Scoring&) {}
};
template <class Traits> struct KeptExponents<Traits, true> : KeptFactors<Traits::keeps_factors()> {
    Bending bending;
    float limits[2]; // that sums of a lane's weights must stay below, of each of its rows

    __device__ explicit KeptExponents(const Scoring& scoring) : KeptFactors<Traits::keeps_factors()>(scoring) { begin_tile(scoring); }
    __device__ void begin_tile(const Scoring& scoring) { bending = scoring.softcap > 0 ? Bending::LOOKS : Bending::EXACT; }
};

} // namespace warptile
