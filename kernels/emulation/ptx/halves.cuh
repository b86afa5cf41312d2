#pragma once
namespace warptile {
inline void tell(unsigned address, unsigned word) { memcpy(shared + address, &word, sizeof word); }
inline void tell_byte(unsigned address, unsigned byte) { shared[address] = (unsigned char)byte; }
inline unsigned told(unsigned address)
{
    unsigned word;
    memcpy(&word, shared + address, sizeof word);
    return word;
}
inline unsigned highest_of_halves(unsigned word) { return (word >> 15 & 0x10001) * 0xffff; }
}
