// Dropout: the weights that a call keeps, as `Dropout` in crates/spec/src/dropout.rs has them.
#pragma once

#include "base/abi_dropout.cuh"

namespace warptile {

// The halves of a product of Philox, the upper one first.
struct PhiloxProduct {
    unsigned upper, lower;

    __device__ PhiloxProduct(unsigned factor, unsigned x)
    {
        const unsigned long long product = (unsigned long long)factor * x;
        upper = (unsigned)(product >> 32);
        lower = (unsigned)product;
    }
};
__device__ inline PhiloxProduct philox_of_x(unsigned x) { return {0xd2511f53u, x}; }
__device__ inline PhiloxProduct philox_of_z(unsigned z) { return {0xcd9e8d57u, z}; }
// The key of a round, by the numbers of the call.
__device__ inline unsigned philox_first(unsigned first, int round) { return first + round * 0x9e3779b9u; }
__device__ inline unsigned philox_second(unsigned second, int round) { return second + round * 0xbb67ae85u; }

// Philox4x32 with 7 rounds, of which `BEGIN` have been computed.
template <int BEGIN = 0> __device__ inline uint4 philox(uint4 counter, unsigned first, unsigned second)
{
#pragma unroll
    for (int round = BEGIN; round < 7; round++) {
        const PhiloxProduct x = philox_of_x(counter.x), z = philox_of_z(counter.z);
        counter = {z.upper ^ counter.y ^ philox_first(first, round), z.lower, x.upper ^ counter.w ^ philox_second(second, round), x.lower};
    }
    return counter;
}

// 8 random bits for each of 16 weights: those of queries q and q + 8 with keys k and k + 1, k + 8 and k + 9, k + 16 and k + 17, k + 24 and
// k + 25. Each word has those of two neighbouring keys with q, then with q + 8.
//
// Of 65,536 weights `dropped` are dropped: those whose 8 bits are below a threshold, which is the upper byte of `dropped`, or one more in as
// many of 256 cells as the lower byte says.
struct DropoutCell {
    enum : int { STRIDE = 32 }; // keys from a cell to the next that has the same place among them

    uint4 words;
    unsigned dropped;

    __device__ unsigned word(int number) const { return number == 0 ? words.x : number == 1 ? words.y : number == 2 ? words.z : words.w; }
    __device__ unsigned is_raised() const { return (words.x ^ words.y ^ words.z) < dropped << 24; }

    // `half`: 1 of q + 8. `number` of a pair of keys; `odd`: 1 of the second one.
    __device__ bool keeps(int half, int number, int odd) const
    {
        return (word(number) >> 8 * (2 * half + odd) & 0xff) >= (dropped >> 8) + is_raised();
    }

    // The weights of a pair of keys: the highest bit of each byte says whether one is kept. Other bits mean nothing.
    __device__ unsigned kept(int number) const
    {
        const unsigned threshold = dropped >> 8, is_low = threshold < 128 ? ~0u : 0;
        // A sum's highest bit is set from where the lower bits of a byte are those of the threshold.
        const unsigned to_highest = ((is_low ? 128 : 256) - threshold - is_raised()) * 0x01010101u;
        const unsigned bytes = word(number), sums = (bytes & 0x7f7f7f7f) + to_highest;
        return (bytes & sums) | (bytes & is_low) | (sums & is_low);
    }

    // Those of q or, `half`, of q + 8: bit 2 * number + odd is set if one is kept.
    __device__ unsigned kept_of(int half) const
    {
        unsigned all = 0; // bit 2 * number of each byte
#pragma unroll
        for (int number = 0; number < 4; number++) all |= kept(number) >> (7 - 2 * number) & 0x01010101u << 2 * number;
        const unsigned pair = all >> 16 * half;
        return (pair & 0x55) | (pair >> 7 & 0xaa);
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
        return {philox({(q >> 4) << 3 | (q & 7), (k >> 5) << 2 | (k >> 1 & 3), sequence, head + of_head}, first, second), dropped};
    }
    __device__ bool keeps(int of_head, int of_query, int of_key) const
    {
        return cell(of_head, of_query, of_key).keeps(of_query >> 3 & 1, of_key >> 3 & 3, of_key & 1);
    }
};

// The cells of a query. They share the most of three rounds of Philox, and some of the fourth.
class DropoutCells {
  public:
    DropoutCells() = default;
    __device__ DropoutCells(const DropoutMask& mask, int of_head, int of_query) : first(mask.first), second(mask.second)
    {
        const unsigned q = mask.query + of_query;
        const PhiloxProduct row = philox_of_x((q >> 4) << 3 | (q & 7)), sequence = philox_of_z(mask.sequence);
        const PhiloxProduct z = philox_of_z(row.upper ^ (mask.head + of_head) ^ second);
        const PhiloxProduct x = philox_of_x(z.upper ^ sequence.lower ^ philox_first(first, 1));
        rounds[0] = sequence.upper ^ first;
        rounds[1] = row.lower ^ philox_second(second, 1);
        rounds[2] = z.lower ^ philox_first(first, 2);
        rounds[3] = x.upper ^ philox_second(second, 2);
        rounds[4] = x.lower ^ philox_second(second, 3);
    }

    // The words of one of them, by its number: 4 for every 32 keys.
    __device__ uint4 words(unsigned number) const
    {
        const PhiloxProduct one = philox_of_x(number ^ rounds[0]), two = philox_of_z(one.upper ^ rounds[1]);
        const PhiloxProduct x = philox_of_x(two.upper ^ rounds[2]), z = philox_of_z(one.lower ^ rounds[3]);
        return philox<4>({z.upper ^ two.lower ^ philox_first(first, 3), z.lower, x.upper ^ rounds[4], x.lower}, first, second);
    }

  private:
    unsigned first, second; // the key
    unsigned rounds[5];     // what is added in rounds 0 to 3; in 2 two numbers
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
