// Element types of keys and values, in memory and in the ring, and their conversion to operands of mma.sync.
#pragma once

#include "ptx/e4m3.cuh"
#include "ptx/mma.cuh"
#include "rule/score.cuh"

namespace warptile {

// Keys and values of the queries' type.
template <class Element_> struct SameKeys {
    using Element = Element_;
    using Weight = Element_; // what weights are rounded to
    using Block = Forward;
    static constexpr unsigned FEATURES = 0;

    __device__ static const Forward& forward(const Block& block) { return block; }
    // Scales of keys and values for the key/value head that was read last.
    struct Scales {
        __device__ explicit Scales(const Block&) {}
        __device__ static void read(int) {}
        __device__ static void multiply(ScoreRule&) {}
        __device__ static float2 times_values(float2 columns) { return columns; }
    };

    // Steps of 16 columns that four chunks of a row have, and the right operands of these steps.
    static constexpr int STEPS = 2;
    __device__ static void key_operands(const unsigned (&words)[4], unsigned (&operands)[2 * STEPS])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) operands[i] = words[i];
    }
    // A left operand of 16 rows for these columns. `address(row, chunk)` is the address of a chunk.
    template <class Address> __device__ static void load_query(int step, int lane, unsigned (&words)[4], Address address)
    {
        load_matrices(words, address(lane % 16, 2 * step + lane / 16));
    }

    // Blocks of 8 output columns that two chunks of 16 values have, the chunk that the first of these begins, and their right operands.
    static constexpr int TILES = 2;
    __device__ static int chunk_of(int tile) { return tile; }
    __device__ static void value_operands(const unsigned (&words)[4], unsigned (&operands)[2 * TILES])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) operands[i] = words[i];
    }

    // Two neighbouring output columns that a lane has of a row; which group of four they are in, and whether they are its second two.
    template <int COUNT> __device__ static float2 columns(const float (&output)[COUNT][4], int half, int tile)
    {
        return {output[tile][2 * half], output[tile][2 * half + 1]};
    }
    __device__ static int column4(int tile, int lane) { return 2 * tile + lane % 4 / 2; }
    __device__ static int second_two(int, int lane) { return lane % 2; }
};

// In e4m3, with a scale for all key/value heads or one for each: half the bytes. Queries are of type Element_, and keys become that; values
// and weights become f16, which has more bits than bf16 for numbers up to 1.
//
// ldmatrix moves units of 16 bits, so two neighbouring columns stay together:
// - A lane gets four columns of a key in a row. The products of a step take them as their columns 2p, 2p + 1 and 2p + 8, 2p + 9, with
//   p = lane % 4, and the queries' fragments are loaded in that order, too.
// - Transposed, a lane gets of two keys the columns 2n and 2n + 1, with n = lane / 4. The even ones are the operand of one block of 8
//   output columns, the odd ones that of the next; so of 16 output columns a lane has four neighbours of a row, 4p to 4p + 3.
template <class Element_> struct E4m3Keys {
    using Element = E4m3;
    using Weight = __half;
    using Block = ForwardE4m3;
    static constexpr unsigned FEATURES = FEATURE_E4M3;

    __device__ static const Forward& forward(const Block& block) { return block.forward; }
    struct Scales {
        __device__ explicit Scales(const Block& block) : scales(block.scales) {}
        __device__ void read(int kv_head)
        {
            of_keys = scales.k[kv_head * scales.k_step];
            of_values = scales.v[kv_head * scales.v_step];
        }
        __device__ void multiply(ScoreRule& rule) const { rule.multiply(of_keys); }
        __device__ float2 times_values(float2 columns) const { return {columns.x * of_values, columns.y * of_values}; }

      private:
        const KeyScales& scales;
        float of_keys, of_values;
    };

    static constexpr int STEPS = 4;
    __device__ static void key_operands(const unsigned (&words)[4], unsigned (&operands)[2 * STEPS])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned two[2];
            widen_e4m3_to<Element_>(words[i], two);
            operands[2 * i] = two[0];
            operands[2 * i + 1] = two[1];
        }
    }
    template <class Address> __device__ static void load_query(int step, int lane, unsigned (&words)[4], Address address)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint2 four = load_two_words(address(half * 8 + lane / 4, 2 * step + lane % 4 / 2) + lane % 2 * 8);
            words[half] = four.x;
            words[half + 2] = four.y;
        }
    }

    static constexpr int TILES = 4;
    __device__ static int chunk_of(int tile) { return tile / 2; }
    __device__ static void value_operands(const unsigned (&words)[4], unsigned (&operands)[2 * TILES])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned two[2];
            widen_e4m3(even_bytes_first(words[i]), two);
            // Word i has keys 8 * (i % 2) on of chunk i / 2.
            operands[4 * (i / 2) + i % 2] = two[0];
            operands[4 * (i / 2) + 2 + i % 2] = two[1];
        }
    }

    template <int COUNT> __device__ static float2 columns(const float (&output)[COUNT][4], int half, int tile)
    {
        const int even = tile / 2 * 2, at = 2 * half + tile % 2;
        return {output[even][at], output[even + 1][at]};
    }
    __device__ static int column4(int tile, int lane) { return 4 * (tile / 2) + lane % 4; }
    __device__ static int second_two(int tile, int) { return tile % 2; }
};

} // namespace warptile
