// Rematerialization: values that are computed again instead of staying in registers.
#pragma once

namespace warptile {

// An opaque copy of x, which must not be negative. The compiler cannot tell that it equals x, so it computes values that depend on it
// here instead of keeping them in registers, which the loop over the keys needs.
__device__ inline int anew(int x)
{
    asm volatile("" : "+r"(x));
    __builtin_assume(x >= 0);
    return x;
}

// Makes the compiler compute an address up to here, and not where it is used.
template <class T> __device__ inline void compute_here(T*& address) { asm volatile("" : "+l"(address)); }

} // namespace warptile
