#pragma once
namespace warptile {
inline void store_four_words(unsigned to, const unsigned (&words)[4]) { memcpy(shared + to, words, sizeof words); }
inline void load_four_words(unsigned (&words)[4], unsigned from) { memcpy(words, shared + from, sizeof words); }
}
