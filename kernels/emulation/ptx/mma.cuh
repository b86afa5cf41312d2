#pragma once
#include "base/element.cuh"
#pragma GCC push_options
#pragma GCC optimize("O3")
namespace warptile {
constexpr int FRAGMENT_ROWS = 16, FRAGMENT_COLUMNS = 8, FRAGMENT_DEPTH = 16;
// Two neighbours of a row, as numbers.
template <class E> void widen_two(unsigned word, float& first, float& second)
{
    E x[2];
    memcpy(x, &word, 4);
    first = widen(x[0]);
    second = widen(x[1]);
}
inline void multiply(Product& product)
{
    for (int row = 0; row < FRAGMENT_ROWS; row++)
        for (int k = 0; k < FRAGMENT_DEPTH; k++)
            for (int column = 0; column < FRAGMENT_COLUMNS; column++) product.c[row][column] += product.a[row][k] * product.b[k][column];
}
// The last lane multiplies for all.
template <class E> void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    EX;
    Product& product = e.product;
    const int row = LANE / 4, two = LANE % 4 * 2;
    for (int i = 0; i < 4; i++) {
        float* const to = &product.a[row + 8 * (i % 2)][two + 8 * (i / 2)];
        widen_two<E>(a[i], to[0], to[1]);
    }
    widen_two<E>(b0, product.b[two][row], product.b[two + 1][row]);
    widen_two<E>(b1, product.b[two + 8][row], product.b[two + 9][row]);
    for (int j = 0; j < 4; j++) product.c[row + 8 * (j / 2)][two + j % 2] = c[j];
    warp_bar[threadIdx.x / 32]->arrive_and_wait([&] { multiply(product); });
    for (int j = 0; j < 4; j++) c[j] = product.c[row + 8 * (j / 2)][two + j % 2];
}
inline void lm(unsigned (&w)[4], unsigned address, bool transposed)
{
    EX;
    e.w[LANE][0] = address;
    WB();
    const int row = LANE / 4, two = LANE % 4 * 2;
    for (int m = 0; m < 4; m++) {
        if (!transposed) {
            memcpy(&w[m], shared + e.w[8 * m + row][0] + 2 * two, 4);
            continue;
        }
        uint16_t elements[2];
        for (int i = 0; i < 2; i++) memcpy(&elements[i], shared + e.w[8 * m + two + i][0] + 2 * row, 2);
        memcpy(&w[m], elements, 4);
    }
}
inline void load_matrices(unsigned(&w)[4],unsigned a){lm(w,a,false);} inline void load_matrices_transposed(unsigned(&w)[4],unsigned a){lm(w,a,true);}
inline uint2 load_two_words(unsigned a){uint2 two;memcpy(&two,shared+a,sizeof two);return two;}
inline void store_word(unsigned a,unsigned word){memcpy(shared+a,&word,sizeof word);}
inline void store_two(unsigned a,float2 two){memcpy(shared+a,&two,sizeof two);}
}
#pragma GCC pop_options
