// A division of numbers of CTAs, heads and blocks, in fewer instructions than one of any integers.
#pragma once

#include "base/math.cuh"

namespace warptile {

// Exact for numbers below 2^20: the half keeps rounding from crossing an integer.
__device__ inline unsigned quotient(unsigned x, unsigned by) { return (unsigned)((x + 0.5f) * reciprocal_approximate((float)by)); }

} // namespace warptile
