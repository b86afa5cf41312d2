// Dropout in the backward kernels for Hopper. A thread draws for two neighbouring queries or keys at once, which a word of its weights
// holds.
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

// Traits of a kernel with dropout in which WARPGROUPS have transposed scores: each of their threads is told 16 bits.
template <class Plain, int WARPGROUPS> struct TransposedDropping : Dropping<Plain> {
    static constexpr int BITS_AT = Plain::SHARED_BYTES, SHARED_BYTES = BITS_AT + WARPGROUPS * 128 * 2;
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

// Which of its scores of a block a thread keeps.
class DrawnScores {
  public:
    // Draws for a block of queries x keys.
    __device__ void draw(const DropoutMask& mask, int head, int first_query, int first_key)
    {
        const int lane = thread_index() % 32, query = first_query + thread_index() % 128 / 32 * 16 + lane / 4;
        dropped = 0;
#pragma unroll
        for (int group = 0; group < 2; group++) {
            const int key = first_key + 32 * group + lane % 4 * 2;
            const uint4 one = mask.cell(head, query, key).words, next = mask.cell(head, query, key + 1).words;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int at = i / 2;
                add(dropped, at == 0 ? one.x : at == 1 ? one.y : at == 2 ? one.z : one.w, at == 0 ? next.x : at == 1 ? next.y : at == 2 ? next.z : next.w, i % 2,
                    mask.dropped);
            }
        }
    }

    // Draws for a warpgroup whose scores are keys x queries. A thread has two of a cell's four keys, and the thread of the same lane in the next
    // warp the others: each of these draws the cells of half of a block's queries, and tells the other through shared memory. `number`: of
    // such warpgroups.
    __device__ void draw_transposed(const DropoutMask& mask, int head, int first_query, int first_key, unsigned told, int number)
    {
        const int lane = thread_index() % 32, half = uniform(thread_index() / 32 & 1), pair = uniform(thread_index() / 64 & 1);
        const int key = first_key + 32 * pair + lane / 4;
        // Bits of the first warp's keys, and of the second's.
        unsigned first = 0, second = 0;
#pragma unroll
        for (int tile = 0; tile < 2; tile++) {
            const int query = first_query + 32 * half + 16 * tile + lane % 4 * 2;
            const uint4 one = mask.cell(head, query, key).words, next = mask.cell(head, query + 1, key).words;
#pragma unroll
            for (int upper = 0; upper < 2; upper++) {
                add(first, one.x, next.x, upper, mask.dropped);
                add(first, one.y, next.y, upper, mask.dropped);
                add(second, one.z, next.z, upper, mask.dropped);
                add(second, one.w, next.w, upper, mask.dropped);
            }
        }
        const int barrier = 4 + 2 * number + pair;
        const unsigned at = told + (number * 128 + thread_index() % 128) * 2;
        named_barrier_wait(barrier, 64); // what was told before has been read
        store_half(half ? at - 64 : at + 64, __byte_perm(half ? first : second, 0, 0x4420));
        named_barrier_wait(barrier, 64);
        const unsigned other = load_half(at);
        dropped = half ? __byte_perm(second, other, 0x5240) : __byte_perm(first, other, 0x2504);
    }

    // The weight of one of the thread's scores, in the order of accumulators. One that is dropped is marked by a minus.
    __device__ float marked(float weight, int score) const
    {
        return __uint_as_float(__float_as_uint(weight) | (dropped << (score % 2 ? score / 2 : score / 2 + 16) & 0x80000000u));
    }
    // Two of them in 16 bits: 0 in place of those that are dropped, and these marked.
    __device__ unsigned kept_pair(unsigned weights, int i) const { return weights & ~highest_of_halves(dropped << i); }
    __device__ unsigned marked_pair(unsigned weights, int i) const { return weights | (dropped << i & 0x80008000u); }

  private:
    // Tells of random numbers of neighbours whether those in the upper or lower halves are below the threshold: the lowest bit of each half of
    // `bits`. What was added before moves up.
    __device__ static void add(unsigned& bits, unsigned one, unsigned next, bool upper, unsigned threshold)
    {
        const unsigned halves = __byte_perm(one, next, upper ? 0x7632 : 0x5410), above = __vmaxu2(halves, threshold * 0x10001u) - halves;
        bits = bits * 2 + __vminu2(above, 0x10001u);
    }

    unsigned dropped = 0; // bit 15 - i of each half for word i of the weights
};

// Scores and their mask; of a kernel without dropout nothing.
template <class Traits, bool DROPS = drops<Traits>()> struct MaskedScores {
    __device__ explicit MaskedScores(const BackwardTma&) {}
};
template <class Traits> struct MaskedScores<Traits, true> : DrawnScores {
    DropoutMask mask; // of sequence 0

    __device__ explicit MaskedScores(const BackwardTma& block) : mask(kernel_mask(block)) {}

    // Those of one of a number of warpgroups with transposed scores.
    __device__ void draw(int sequence, int head, int first_query, int first_key, unsigned shared, int number)
    {
        DropoutMask of_sequence = mask;
        of_sequence.sequence += sequence;
        draw_transposed(of_sequence, head, first_query, first_key, shared + Traits::BITS_AT, number);
    }
};

} // namespace warptile
