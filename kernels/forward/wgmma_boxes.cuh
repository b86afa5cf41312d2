// A bias alone, or a key mask of queries and keys alone, at the plain images' tilings: it lies in shared memory beside the keys of its
// block, and a plain block takes it from there while it works out exponents.
#pragma once

#include "forward/wgmma_softmax.cuh"
#include "ptx/bf16_pairs.cuh"
#include "ptx/box_words.cuh"

namespace warptile {

template <class Traits> class BoxHere {
  public:
    // `box`: of the warpgroup's rows and a block's keys.
    __device__ explicit BoxHere(unsigned box)
    {
        const unsigned rows = box + thread_index() % WARPGROUP_THREADS / 32 * (Traits::BOX_SLAB_BYTES / WARPGROUP_WARPS);
        address = Traits::has_bias_boxes() ? number_address(rows, thread_index() % 32) : byte_address(rows, thread_index() % 32);
    }

    // The words of 16 keys.
    __device__ void operator()(int first_key, unsigned (&words)[4]) const
    {
        const unsigned slab = address + first_key / SLAB_COLUMNS * Traits::BOX_SLAB_BYTES;
        if constexpr (Traits::has_bias_boxes())
            load_numbers(words, slab, first_key % SLAB_COLUMNS);
        else
            load_bytes(words, slab, first_key % SLAB_COLUMNS);
    }

    // The exponent of accumulator i of 8. `added`: to that of its row without a bias.
    __device__ static float exponent(const unsigned (&words)[4], int i, float dot, float scale_log2, float added)
    {
        if constexpr (Traits::has_bias_boxes())
            return fmaf(dot, scale_log2, fmaf(number_of_word<Element>(words, i), LOG2_E, added));
        else
            return byte_of_word(words, i) ? dot * scale_log2 + added : negative_infinity();
    }

    // Adds the bias to a block's scores, or hides keys. `unit`: of dot products.
    __device__ void add(float (&scores)[Traits::BLOCK_N / 2], float unit) const
    {
        constexpr int OF_KEYS = 16 / 2; // scores
#pragma unroll
        for (int begin = 0; begin < Traits::BLOCK_N / 2; begin += OF_KEYS) {
            unsigned words[4];
            (*this)(2 * begin, words);
            if constexpr (Traits::has_bias_boxes() && !IS_HALF<Element>) bound(words, unit);
#pragma unroll
            for (int i = 0; i < OF_KEYS; i++)
                if constexpr (Traits::has_bias_boxes())
                    scores[begin + i] = fmaf(number_of_word<Element>(words, i), unit, scores[begin + i]);
                else if (!byte_of_word(words, i))
                    scores[begin + i] = negative_infinity();
        }
        __syncwarp(); // all lanes have read, before one of them releases the block
    }

  private:
    using Element = typename Traits::Element;

    // Not below the range where they are finite in units, as masks are that are added: rows of nothing else have equal weights.
    __device__ static void bound(unsigned (&words)[4], float unit)
    {
        const float least = fmaxf(-MAX_FLOAT / 4 * reciprocal_approximate(unit), -MAX_FLOAT);
        const unsigned upper = __float_as_uint(least) >> 16;
#pragma unroll
        for (unsigned& word : words) word = at_least(word, upper << 16 | upper);
    }

    unsigned address; // the lane's, of the first keys
};

} // namespace warptile
