// Computing anew what registers need not hold.
#pragma once

namespace warptile {

// The same number, which the compiler does not know to be: what follows from it is computed here, and not kept in registers that the
// loop over the keys needs.
__device__ inline int anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

} // namespace warptile
