#pragma once
#include "base/element.cuh"
#include "ptx/sm90.cuh"
// Of the first lane: its rows are 0 and 8 of the warp's, where a row's first chunk lies first.
namespace warptile {
inline unsigned number_address(unsigned rows, int) { return rows; }
inline unsigned byte_address(unsigned rows, int) { return rows; }
template <int BYTES> void load_words(unsigned (&words)[4], unsigned address, int column)
{
    emulation::Cta& cta = emulation::launch.cta();
    for (int i = 0; i < 4; i++) {
        const unsigned from = address + column * BYTES + i / 2 * 8 * BYTES + i % 2 * 8 * 64 * BYTES;
        emulation::launch.must_be_there(cta, {from, from + 8 * BYTES});
        words[i] = 0;
        memcpy(&words[i], cta.memory + from, 2 * BYTES);
    }
}
inline void load_numbers(unsigned (&words)[4], unsigned address, int column) { load_words<2>(words, address, column); }
inline void load_bytes(unsigned (&words)[4], unsigned address, int column) { load_words<1>(words, address, column); }
template <class Element> float number_of_word(const unsigned (&words)[4], int i)
{
    Element two[2];
    memcpy(two, &words[i / 2], sizeof two);
    return widen(two[i % 2]);
}
inline bool byte_of_word(const unsigned (&words)[4], int i) { return words[i / 2] >> i % 2 * 8 & 0xff; }
}
