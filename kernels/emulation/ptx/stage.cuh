#pragma once
namespace warptile {
inline void store_matrices_transposed(unsigned address, const unsigned* m)
{
    EX;
    e.w[LANE][0] = address;
    WB();
    for (int matrix = 0; matrix < 4; matrix++)
        for (int i = 0; i < 2; i++)
            memcpy(shared + e.w[8 * matrix + LANE % 4 * 2 + i][0] + LANE / 4 * 2, reinterpret_cast<const char*>(&m[matrix]) + 2 * i, 2);
}
inline float load_one(unsigned address)
{
    float number;
    memcpy(&number, shared + address, sizeof number);
    return number;
}
inline float2 load_two(unsigned address)
{
    float2 two;
    memcpy(&two, shared + address, sizeof two);
    return two;
}
}
