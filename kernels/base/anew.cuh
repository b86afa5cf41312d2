// Computing anew what registers need not hold.
#pragma once

namespace warptile {

// The same number, not negative, which the compiler does not know to be: what follows from it is computed here, and not kept in registers that the
// loop over the keys needs.
__device__ inline int anew(int x)
{
    asm volatile("" : "+r"(x));
    __builtin_assume(x >= 0);
    return x;
}

// Makes the compiler compute an address up to here, and not where it is used.
template <class T> __device__ inline void compute_here(T*& address) { asm volatile("" : "+l"(address)); }

} // namespace warptile
