// What a row of a slab of a tensor is in shared memory: who it is, from which its number follows.
#pragma once
#include <cmath>

namespace numbers {

using Tag = unsigned long long;
constexpr Tag NOTHING = ~0ull; // has been written there
constexpr Tag ZERO = 0;        // outside of the tensor

enum Of { QUERIES, KEYS, VALUES };
constexpr Tag tag(Of of, int slab, int head, int batch, int row)
{
    return 1ull << 62 | (Tag)of << 60 | (Tag)slab << 54 | (Tag)head << 42 | (Tag)batch << 26 | (Tag)row;
}
// If not 0, the sign of all dot products: numbers of queries lie around 0.9, those of keys around as much with this sign.
inline int sign_of_products = 0;
// Between -1 and 1; NaN where nothing has been written.
inline float number(Tag tag)
{
    if (tag == ZERO) return 0;
    if (tag == NOTHING) return NAN;
    const Of of = (Of)(tag >> 60 & 3);
    tag ^= tag >> 29;
    tag *= 0xbf58476d1ce4e5b9ull;
    tag ^= tag >> 32;
    tag *= 0x94d049bb133111ebull;
    tag ^= tag >> 29;
    const float any = (float)(int)(tag >> 40) * 0x1p-23f - 1;
    return sign_of_products == 0 || of == VALUES ? any : 0.9f * (of == KEYS ? sign_of_products : 1) + 0.1f * any;
}

} // namespace numbers
