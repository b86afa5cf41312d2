#pragma once
namespace warptile {
inline void store_half(unsigned address, unsigned half) { memcpy(shared + address, &half, 2); }
inline unsigned load_half(unsigned address)
{
    unsigned half = 0;
    memcpy(&half, shared + address, 2);
    return half;
}
inline unsigned highest_of_halves(unsigned word) { return (word >> 15 & 0x10001) * 0xffff; }
}
