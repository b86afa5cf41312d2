// Dropout in the backward kernels for Hopper.
#pragma once

#include "base/abi_backward_tma_dropout.cuh"
#include "ptx/halves.cuh"
#include "ptx/launch.cuh"
#include "ptx/sm90.cuh"
#include "ptx/wgmma.cuh"
#include "rule/dropout.cuh"

namespace warptile {

template <class Traits> __device__ inline DropoutMask& held_mask()
{
    return reinterpret_cast<DropoutMask*>(dynamic_shared<SWIZZLE_GROUP_BYTES>() + Traits::MASKS_AT)[thread_index() / 32 - 4];
}

// Traits of a kernel with dropout in which WARPGROUPS have transposed scores: each of their threads is told a word.
template <class Plain, int WARPGROUPS> struct TransposedDropping : Dropping<Plain> {
    static constexpr int BITS_AT = Plain::SHARED_BYTES, SHARED_BYTES = BITS_AT + WARPGROUPS * 128 * (int)sizeof(unsigned);
};

// Those of one whose warps have their mask in shared memory: registers have no room for it.
template <class Plain, int WARPS> struct HeldDropping : Dropping<Plain> {
    static constexpr int MASKS_AT = Plain::SHARED_BYTES, SHARED_BYTES = MASKS_AT + WARPS * (int)sizeof(DropoutMask);
};

// A kernel's mask, which all lanes of a warp hold: of sequence 0.
__device__ inline DropoutMask kernel_mask(const BackwardTma& block)
{
    DropoutMask mask(dropout_of<BackwardTmaDropout>(block), 0);
    for (unsigned* const word : {&mask.first, &mask.second, &mask.sequence, &mask.head, &mask.query, &mask.key}) *word = (unsigned)uniform((int)*word);
    return mask;
}

// Weights are multiplied by it as they are computed, so that sums need not be. In f16 that of one of 65,536 would be infinite.
__device__ inline float kept_factor(const BackwardTma& block) { return fminf(dropout_of<BackwardTmaDropout>(block).factor, 65504.0f); }

// Moves the highest bits of bytes in; those before move down.
__device__ inline void add_highest(unsigned& bits, unsigned bytes) { bits = (bits >> 1 & 0x7f7f7f7f) | (bytes & 0x80808080); }

// Which of its scores of a block of queries x keys a thread keeps.
class DrawnScores {
  public:
    __device__ void draw(const DropoutMask& mask, int head, int first_query, int first_key)
    {
        const int lane = thread_index() % 32, query = first_query + thread_index() % 128 / 32 * 16 + lane / 4;
        unsigned kept = 0;
#pragma unroll
        for (int group = 0; group < 2; group++) {
            const DropoutCell cell = mask.cell(head, query, first_key + DropoutCell::STRIDE * group + lane % 4 * 2);
#pragma unroll
            for (int number = 0; number < 4; number++) add_highest(kept, cell.kept(number));
        }
        dropped = ~kept;
    }

    // The weight of one of the thread's scores, in the order of accumulators. One that is dropped is marked by a minus.
    __device__ float marked(float weight, int score) const
    {
        return __uint_as_float(__float_as_uint(weight) | (dropped << (31 - 8 * (score % 4) - score / 4) & 0x80000000u));
    }

  private:
    unsigned dropped; // bit i of byte j for score 4 * i + j
};

// The same of a warpgroup's block of keys x queries.
class DrawnPairs {
  public:
    // A thread has 4 of a cell's weights. The thread of the neighbouring keys has those of the others in the same rows, and the two of
    // these lanes in the next warp have 8. Each draws the cells of 16 of the block's queries, and tells the others. `number`: of such warpgroups.
    __device__ void draw(const DropoutMask& mask, int head, int first_query, int first_key, unsigned words, int number)
    {
        const int lane = thread_index() % 32, odd = lane / 4 % 2;
        const int warp = uniform(thread_index() / 32 & 1), pair = uniform(thread_index() / 64 & 1);
        const int query = first_query + 32 * warp + 16 * odd + lane % 4 * 2, key = first_key + DropoutCell::STRIDE * pair + lane / 4;
        const DropoutCell one = mask.cell(head, query, key), next = mask.cell(head, query + 1, key);
        // Bytes are of a query, then of the one 8 after it; then the same of the next one. Bits are of two keys 8 apart, of even ones and of odd
        // ones, of the first warp and of the second.
        unsigned drawn = 0;
#pragma unroll
        for (int of_warp = 0; of_warp < 2; of_warp++) {
            unsigned odd_bytes[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const unsigned of_one = one.kept(2 * of_warp + i), of_next = next.kept(2 * of_warp + i);
                add_highest(drawn, __byte_perm(of_one, of_next, 0x6420));
                odd_bytes[i] = __byte_perm(of_one, of_next, 0x7531);
            }
            add_highest(drawn, odd_bytes[0]);
            add_highest(drawn, odd_bytes[1]);
        }
        // The thread's keys, two bits of 16 queries.
        const unsigned by_lane = __shfl_xor_sync(0xffffffff, drawn, 4);
        const unsigned two = odd ? (drawn & 0xcccccccc) | (by_lane >> 2 & 0x33333333) : (drawn & 0x33333333) | (by_lane << 2 & 0xcccccccc);
        const int barrier = 4 + 2 * number + pair;
        const unsigned at = words + (number * 128 + thread_index() % 128) * (unsigned)sizeof(unsigned);
        named_barrier_wait(barrier, 64); // what was told before has been read
        tell(warp ? at - 128 : at + 128, two);
        named_barrier_wait(barrier, 64);
        const unsigned by_warp = told(at);
        dropped = ~(warp ? (two & 0xf0f0f0f0) | (by_warp >> 4 & 0x0f0f0f0f) : (two & 0x0f0f0f0f) | (by_warp << 4 & 0xf0f0f0f0));
    }

    // Word i of the weights, two in 16 bits each: 0 in place of those that are dropped, and these marked by a minus.
    __device__ unsigned kept_pair(unsigned weights, int i) const { return weights & ~highest_of_halves(at_top(i)); }
    __device__ unsigned marked_pair(unsigned weights, int i) const { return weights | (at_top(i) & 0x80008000u); }

  private:
    // A word has two queries of every 8, and one of two keys.
    __device__ unsigned at_top(int i) const { return dropped << (15 - (8 * (i / 2 % 2) + 2 * (i / 4) + i % 2)); }

    unsigned dropped; // in each half the bits of one of two queries: 2 * j + k of the key's k for 16 j queries on, and of those 8 further in the upper byte
};

// Scores and their mask; of a kernel without dropout nothing.
template <class Traits, bool DROPS = drops<Traits>()> struct MaskedScores {
    __device__ explicit MaskedScores(const BackwardTma&) {}
};
template <class Traits> struct MaskedScores<Traits, true> : DrawnPairs {
    DropoutMask mask; // of sequence 0

    __device__ explicit MaskedScores(const BackwardTma& block) : mask(kernel_mask(block)) {}

    // Those of one of a number of warpgroups with transposed scores.
    __device__ void draw(int sequence, int head, int first_query, int first_key, unsigned shared, int number)
    {
        DropoutMask of_sequence = mask;
        of_sequence.sequence += sequence;
        DrawnPairs::draw(of_sequence, head, first_query, first_key, shared + Traits::BITS_AT, number);
    }
};

} // namespace warptile
