#pragma once
#include "ptx/wgmma.cuh"
// For the scores of a block once more: of the first lane, which gives the address of the first row of what is multiplied.
namespace warptile {
constexpr int FRAGMENT_ROWS = 16, FRAGMENT_COLUMNS = 8, FRAGMENT_DEPTH = 16;
inline void load_matrices(unsigned (&words)[4], unsigned address)
{
    words[0] = words[1] = address;
    words[2] = words[3] = address + 8 * SWIZZLE_BYTES;
}
template <class Element> void mma(float (&sums)[4], const unsigned (&left)[4], unsigned right, unsigned)
{
    if (left[0] % SWIZZLE_BYTES != 0) return; // a slab has one number
    emulation::launch.must_be_there(emulation::launch.cta(), {right, right + 8 * SWIZZLE_BYTES});
    add_scores(sums, left[0], right);
}
}
