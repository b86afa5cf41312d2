// A division of numbers of CTAs, heads and blocks, in fewer instructions than one of any integers.
#pragma once

#include "base/abi.cuh"
#include "base/math.cuh"

namespace warptile {

// Exact for numbers up to abi::MAX_QUOTIENT: the half keeps rounding from crossing an integer.
static_assert(abi::MAX_QUOTIENT <= 1 << 20, "half of one in so many is more than two roundings to 24 bits and an error of one unit");
__device__ inline unsigned quotient(unsigned x, unsigned by) { return (unsigned)((x + 0.5f) * reciprocal_approximate((float)by)); }

} // namespace warptile
