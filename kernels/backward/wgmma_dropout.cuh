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
    static constexpr int DRAWERS = 0, BITS_AT = Plain::SHARED_BYTES, SHARED_BYTES = BITS_AT + WARPGROUPS * 128 * (int)sizeof(unsigned);
};

// Those of one whose warps have their mask in shared memory: registers have no room for it.
template <class Plain, int WARPS> struct HeldDropping : Dropping<Plain> {
    static constexpr int DRAWERS = 0, MASKS_AT = Plain::SHARED_BYTES, SHARED_BYTES = MASKS_AT + WARPS * (int)sizeof(DropoutMask);
};

// Traits of one with a warpgroup of its own that draws. Its warps share each block: a warpgroup's products wait for the slowest of its warps,
// so a warp that drew alone would make all of them wait. A slot has a block's words of a computing warpgroup.
template <class Plain> struct DrawingDropping : Dropping<Plain> {
    static constexpr int DRAWERS = 4, SLOTS = 4, SLOT_BYTES = 128 * (int)sizeof(unsigned);
    static constexpr int SLOTS_AT = Plain::SHARED_BYTES, SLOT_BARRIERS_AT = SLOTS_AT + SLOTS * SLOT_BYTES;
    static constexpr int SHARED_BYTES = SLOT_BARRIERS_AT + 2 * SLOTS * BARRIER_BYTES;
    static_assert(SLOT_BARRIERS_AT % BARRIER_BYTES == 0, "barriers are aligned");
};
template <class Traits> __device__ constexpr bool has_drawers()
{
    if constexpr (drops<Traits>())
        return Traits::DRAWERS > 0;
    else
        return false;
}

// Words that tell which weights of a block are dropped, from the drawing warps to the threads of a computing warpgroup.
template <class Traits> struct DrawnSlots {
    const unsigned base;

    __device__ unsigned words(int slot) const { return base + Traits::SLOTS_AT + slot * Traits::SLOT_BYTES; }
    __device__ unsigned full(int slot) const { return base + Traits::SLOT_BARRIERS_AT + slot * BARRIER_BYTES; }
    __device__ unsigned empty(int slot) const { return full(Traits::SLOTS + slot); }
    __device__ void init_barriers() const
    {
        for (int slot = 0; slot < Traits::SLOTS; slot++) {
            barrier_init(full(slot), Traits::DRAWERS);
            barrier_init(empty(slot), 4);
        }
    }
    // The calling thread's word. `turn` counts how often the slot was filled before.
    __device__ unsigned take(int slot, unsigned turn) const
    {
        barrier_wait(full(slot), turn & 1);
        const unsigned word = told(words(slot) + thread_index() % 128 * (unsigned)sizeof(unsigned));
        __syncwarp();
        if (thread_index() % 32 == 0) barrier_arrive(empty(slot));
        return word;
    }
    __device__ void wait_for_room(int slot, unsigned turn) const { barrier_wait(empty(slot), ~turn & 1); }
    __device__ void give(int slot) const
    {
        __syncwarp();
        if (thread_index() % 32 == 0) barrier_arrive(full(slot));
    }
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
    // Of a thread whose first query and key these are.
    __device__ static unsigned draw_word(const DropoutMask& mask, int head, int query, int key)
    {
        unsigned kept = 0;
#pragma unroll
        for (int group = 0; group < 2; group++) {
            const DropoutCell cell = mask.cell(head, query, key + DropoutCell::STRIDE * group);
#pragma unroll
            for (int number = 0; number < 4; number++) add_highest(kept, cell.kept(number));
        }
        return ~kept;
    }
    // Those of one of a warpgroup's warps, by a drawing warp.
    __device__ static void draw_part(const DropoutMask& mask, int head, int first_query, int first_key, unsigned words, int warp)
    {
        const int lane = thread_index() % 32;
        tell(words + (warp * 32 + lane) * (unsigned)sizeof(unsigned),
             draw_word(mask, head, first_query + warp * 16 + lane / 4, first_key + lane % 4 * 2));
    }
    __device__ void draw(const DropoutMask& mask, int head, int first_query, int first_key)
    {
        const int lane = thread_index() % 32;
        dropped = draw_word(mask, head, first_query + thread_index() % 128 / 32 * 16 + lane / 4, first_key + lane % 4 * 2);
    }
    __device__ void take(unsigned word) { dropped = word; }

    // The weight of one of the thread's scores, in the order of accumulators. One that is dropped is marked by a minus.
    __device__ float marked(float weight, int score) const
    {
        return __uint_as_float(__float_as_uint(weight) | (dropped << (31 - 8 * (score % 4) - score / 4) & 0x80000000u));
    }

  private:
    unsigned dropped; // bit i of byte j for score 4 * i + j
};

// Marks on the weights of a thread's block of keys x queries. A half of the word has the bits of one of two neighbouring queries, in the order
// that AT gives: bit AT::bit(i) tells of the queries in word i of the weights.
template <class At> class PairMarks {
  public:
    // Word i of the weights, two in 16 bits each: 0 in place of those that are dropped, and these marked by a minus.
    __device__ unsigned kept_pair(unsigned weights, int i) const { return weights & ~highest_of_halves(at_top(i)); }
    __device__ unsigned marked_pair(unsigned weights, int i) const { return weights | (at_top(i) & 0x80008000u); }
    __device__ void take(unsigned word) { dropped = word; }

  private:
    __device__ unsigned at_top(int i) const { return dropped << (15 - At::bit(i)); }

    unsigned dropped;
};

// 2 * j + k of the key's k for 16 j queries on, and of those 8 further in the upper byte.
struct AtPairOfEight {
    __device__ static constexpr int bit(int i) { return 8 * (i / 2 % 2) + 2 * (i / 4) + i % 2; }
};
// A byte for 32 queries: 4 * half + 2 * j + k of the key's k for 16 j queries on, half being 1 of those 8 further.
struct AtQueries {
    __device__ static constexpr int bit(int i) { return 8 * (i / 8) + 4 * (i / 2 % 2) + 2 * (i / 4 % 2) + i % 2; }
};

// Pairs that other warps draw.
class ToldPairs : public PairMarks<AtQueries> {
  public:
    // A quarter of those of a warpgroup, by a drawing warp: `part` has the odd or the even ones of half of the block's queries. A lane has two
    // cells, a byte each of four threads' words.
    __device__ static void draw_part(const DropoutMask& mask, int head, int first_query, int first_key, unsigned words, int part)
    {
        const int lane = thread_index() % 32;
        const int query = first_query + part % 2 * 32 + part / 2 + lane % 4 * 2, key = first_key + lane / 16 * DropoutCell::STRIDE + lane / 4 % 4 * 2;
        unsigned kept[2] = {}; // of the keys of a warp, and of the next one
#pragma unroll
        for (int of = 0; of < 2; of++) {
            const DropoutCell cell = mask.cell(head, query + 16 * of, key);
#pragma unroll
            for (int number = 0; number < 4; number++) add_highest(kept[number / 2], cell.kept(number));
        }
        const unsigned at = words + (lane / 16 * 64 + lane / 4 % 4 * 8 + lane % 4) * (unsigned)sizeof(unsigned) + part;
#pragma unroll
        for (int warp = 0; warp < 2; warp++) {
            const unsigned dropped = ~((kept[warp] >> 4 & 0x0f0f) | (kept[warp] >> 16 & 0xf0f0)); // of an even key, then of the next
            tell_byte(at + 128 * warp, dropped);
            tell_byte(at + 128 * warp + 16, dropped >> 8);
        }
    }
};

// Pairs that the warps themselves draw.
class DrawnPairs : public PairMarks<AtPairOfEight> {
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
        take(~(warp ? (two & 0xf0f0f0f0) | (by_warp >> 4 & 0x0f0f0f0f) : (two & 0x0f0f0f0f) | (by_warp << 4 & 0xf0f0f0f0)));
    }
};

// Scores and their mask; of a kernel without dropout nothing.
template <class Traits, bool DROPS = drops<Traits>(), bool DRAWERS = has_drawers<Traits>()> struct MaskedScores {
    __device__ explicit MaskedScores(const BackwardTma&) {}
};
template <class Traits> struct MaskedScores<Traits, true, true> : ToldPairs {
    __device__ explicit MaskedScores(const BackwardTma&) {}
};
template <class Traits> struct MaskedScores<Traits, true, false> : DrawnPairs {
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
