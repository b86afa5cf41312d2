// Order among operations that do not depend on each other, against too many values under way at once.
#pragma once

namespace warptile {

// `x`, but not before `earlier` is known. `zero` is 0, which the compiler does not know.
__device__ inline float after(float x, float earlier, int zero)
{
    return __int_as_float(__float_as_int(x) | (__float_as_int(earlier) & zero));
}

// An opaque copy, so that what depends on it is computed here and does not stay in registers. `anew` (base/anew.cuh) is for numbers that
// are not negative.
__device__ inline int computed_here(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}
__device__ inline float computed_here(float x) { return __int_as_float(computed_here(__float_as_int(x))); }

} // namespace warptile
