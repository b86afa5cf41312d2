// Dropout: the weights that a call keeps, as `Dropout` in crates/spec/src/dropout.rs has them.
#pragma once

#include "base/abi_dropout.cuh"

namespace warptile {

// Philox4x32 with 7 rounds.
__device__ inline uint4 philox(uint4 counter, unsigned first, unsigned second)
{
#pragma unroll
    for (int round = 0; round < 7; round++) {
        const unsigned x = counter.x, z = counter.z;
        counter = {__umulhi(0xcd9e8d57u, z) ^ counter.y ^ first, 0xcd9e8d57u * z, __umulhi(0xd2511f53u, x) ^ counter.w ^ second, 0xd2511f53u * x};
        first += 0x9e3779b9u;
        second += 0xbb67ae85u;
    }
    return counter;
}

// 16 random bits for each of 8 weights: those of queries q and q + 8 with keys k, k + 8, k + 16 and k + 24.
struct DropoutCell {
    uint4 words;
    unsigned dropped;

    // `half`: 1 of q + 8. `number`: of the key.
    __device__ bool keeps(int half, int number) const
    {
        const unsigned word = number == 0 ? words.x : number == 1 ? words.y : number == 2 ? words.z : words.w;
        return word << 16 * (1 - half) >= dropped << 16; // of 16 bits: from 0 to 0xffff
    }
};

// The weights of a sequence.
struct DropoutMask {
    unsigned first, second, sequence, head, query, key, dropped;

    // A call that drops nothing has no state.
    __device__ DropoutMask(const Dropout& dropout, int batch) : first(0), second(0), sequence(0), head(0), query(0), key(0), dropped(dropout.dropped)
    {
        if (dropped == 0) return;
        const unsigned* const state = dropout.state;
        const uint4 of_offset = philox({state[2], state[3], 0, 0}, state[0], state[1]);
        first = of_offset.x;
        second = of_offset.y;
        sequence = state[4] + batch;
        head = state[5];
        query = state[6] & ~31u;
        key = state[7] & ~31u;
    }

    // Any of the cell's queries and keys name it.
    __device__ DropoutCell cell(int of_head, int of_query, int of_key) const
    {
        const unsigned q = query + of_query, k = key + of_key;
        return {philox({(q >> 4) << 3 | (q & 7), (k >> 5) << 3 | (k & 7), sequence, head + of_head}, first, second), dropped};
    }
    __device__ bool keeps(int of_head, int of_query, int of_key) const
    {
        return cell(of_head, of_query, of_key).keeps(of_query >> 3 & 1, of_key >> 3 & 3);
    }
};

// True of traits whose kernels have dropout.
template <class Traits> __device__ constexpr bool drops() { return Traits::FEATURES & FEATURE_DROPOUT; }

// Traits of a kernel that has dropout, too. Its block begins with the other's.
template <class Plain> struct Dropping : Plain {
    static constexpr unsigned FEATURES = Plain::FEATURES | FEATURE_DROPOUT;
};

// The numbers of dropout of a block that a `Dropping` kernel was given.
template <class Block, class Params> __device__ inline const Dropout& dropout_of(const Params& params)
{
    return reinterpret_cast<const Block&>(params).dropout;
}

} // namespace warptile
