// A key mask that is the same for all queries, at a plain image's speed: in plain blocks the tensor cores hide keys (ptx/wgmma_hide.cuh). A
// warp of the loading warpgroup reads the mask and tells which keys of a block are hidden. A block without hidden keys takes no step more.
#pragma once

#include "forward/wgmma_shown.cuh"
#include "ptx/wgmma_hide.cuh"

namespace warptile {

// A number in shared memory that only the first lane reads, and all lanes get. What the lane does next, like releasing the memory, comes
// behind the read for compute-sanitizer, too, which does not follow orders within a warp.
__device__ inline unsigned of_first_lane(const unsigned& number) { return uniform(threadIdx.x % LANES == 0 ? number : 0); }
__device__ inline int of_first_lane(const int& number) { return uniform(threadIdx.x % LANES == 0 ? number : 0); }

// Of a stage: bit i of word g is set if key 32 g + i of its block is hidden.
template <class Traits> struct HiddenKeys {
    unsigned some; // not 0 if any is
    unsigned words[(Traits::BLOCK_N + LANES - 1) / LANES];
};

// Where these lie in shared memory, and the sides of the step that hides.
template <class Traits> struct HiddenLayout {
    __device__ static constexpr int left_at() { return SharedLayout<Traits>::OUTPUT_AT + Traits::OUTPUT_BYTES; }
    __device__ static constexpr int right_at() { return left_at() + Traits::STAGES * HIDING_LEFT_BYTES; }
    __device__ static constexpr int sides_end() { return right_at() + Traits::BLOCK_N * HIDING_ROW_BYTES; }
    __device__ static constexpr int keys_at() { return SharedLayout<Traits>::shown_barriers_at() + 16; }
    __device__ static constexpr int end() { return keys_at() + Traits::STAGES * (int)sizeof(HiddenKeys<Traits>); }
    // As compute-sanitizer counts, which does not know that rows or halves may be the same memory.
    __device__ static constexpr int counted_end()
    {
        const int left = right_at() - HIDING_LEFT_BYTES + MMA_ROWS * 2 * HIDING_ROW_BYTES; // of the last stage
        const int right = right_at() + Traits::BLOCK_N * 2 * HIDING_ROW_BYTES;
        return left > right ? left : right;
    }

    __device__ static HiddenKeys<Traits>& keys(unsigned char* shared, int stage)
    {
        static_assert(sides_end() == SharedLayout<Traits>::BARRIERS_AT && end() <= Traits::SHARED_BYTES, "there is room");
        static_assert(counted_end() <= Traits::SHARED_BYTES && Traits::STAGES <= HIDING_SLOTS, "for each stage");
        return reinterpret_cast<HiddenKeys<Traits>*>(shared + keys_at())[stage];
    }
};

// What the warp that reads the mask does: for each tile it leaves out the blocks in front of the first key that the mask shows,
// and behind the last one, and then goes through the others as the loading thread does.
template <class Traits> class MaskReader {
  public:
    __device__ MaskReader(const Scoring& scoring, unsigned char* shared, SharedLayout<Traits> layout)
        : scoring(scoring), shared(shared), layout(layout)
    {
    }

    __device__ void run()
    {
        begin_hiding(shared + Hidden::left_at(), Traits::STAGES, shared + Hidden::right_at(), Traits::BLOCK_N);
        for (unsigned tiles = 0;; tiles++) {
            barrier_wait(layout.shown_asked(), tiles % 2);
            Tile& tile = layout.tile(shared, tiles);
            const int batch = of_first_lane(tile.batch);
            if (batch == Tile::END) return;
            find(has_mask(scoring) ? mask_row(scoring, batch, of_first_lane(tile.head), 0) : nullptr, of_first_lane(tile.key_len));
            const int first_block = max(of_first_lane(tile.first_block), first_key / Traits::BLOCK_N);
            const int end_block = min(of_first_lane(tile.end_block), (end_key + Traits::BLOCK_N - 1) / Traits::BLOCK_N);
            if (elect_one()) {
                tile.first_block = first_block;
                tile.end_block = end_block;
                barrier_arrive(layout.shown_found());
            }
            __syncwarp();
            for (int block = end_block - 1; block >= first_block; block--) {
                unsigned hidden[GROUPS];
                read(block * Traits::BLOCK_N, hidden);
                tell(hidden);
            }
        }
    }

  private:
    using Hidden = HiddenLayout<Traits>;
    enum : int { GROUPS = Traits::BLOCK_N / LANES, PIECE = 16 };
    static_assert(Traits::BLOCK_N % LANES == 0, "a block is some words");

    // The first key that a row of the mask shows, and the end of the last one, to a few keys; all of no mask. Tiles often have that of the one
    // before.
    __device__ void find(const unsigned char* mask, int key_len)
    {
        if (mask == row && key_len == row_len) return;
        row = mask;
        row_len = key_len;
        first_key = 0;
        end_key = key_len;
        if (!row) return;
        // From both ends at once: what a CTA computes first waits for it.
        const bool in_words = scoring.mask_key == 1 && (unsigned long long)row % PIECE == 0;
        const int log = in_words ? 4 : 2, pieces = (key_len + (1 << log) - 1) >> log; // 16 keys a lane, or 4
        int before = pieces, behind = pieces; // hidden ones
        for (int begin = 0; begin < pieces && (before == pieces || behind == pieces); begin += LANES) {
            Lanes first, last;
            first.fill([&](int lane) { return shows((begin + lane) * (1 << log), in_words); });
            last.fill([&](int lane) { return shows((pieces - 1 - begin - lane) * (1 << log), in_words); });
            const unsigned firsts = first.not_zero(), lasts = last.not_zero();
            if (before == pieces && firsts) before = begin + __ffs(firsts) - 1;
            if (behind == pieces && lasts) behind = begin + __ffs(lasts) - 1;
        }
        first_key = before << log;
        end_key = (pieces - behind) << log;
    }

    // Not 0 if a key of the piece from `first` on exists and is shown.
    __device__ int shows(int first, bool in_words) const
    {
        if (first < 0 || first >= row_len) return 0;
        if (in_words && first + PIECE <= row_len) {
            const uint4 bytes = *reinterpret_cast<const uint4*>(row + first);
            return bytes.x | bytes.y | bytes.z | bytes.w;
        }
        int some = 0;
        const int end = min(first + (in_words ? PIECE : 4), row_len);
#pragma unroll 1 // more of them at once take registers that the loading thread needs
        for (int key = first; key < end; key += 2) some |= row[key * scoring.mask_key] | row[min(key + 1, end - 1) * scoring.mask_key];
        return some;
    }

    // Which keys of the block from `first` on the mask hides.
    __device__ void read(int first, unsigned (&hidden)[GROUPS]) const
    {
        Lanes bytes[GROUPS];
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
            bytes[group].fill([&](int lane) {
                const int key = first + LANES * group + lane;
                return row && key < row_len ? row[key * scoring.mask_key] : 1;
            });
#pragma unroll
        for (int group = 0; group < GROUPS; group++) hidden[group] = ~bytes[group].not_zero();
    }

    // Tells those of the next stage.
    __device__ void tell(const unsigned (&hidden)[GROUPS])
    {
        const unsigned full = layout.keys_full(at.stage);
        barrier_wait(full + 8, at.parity ^ 1); // the stage is empty
#pragma unroll
        for (int group = 0; group < GROUPS; group++) set_hidden(shared + Hidden::right_at(), at.stage, LANES * group, hidden[group]);
        fence_shared_for_async();
        __syncwarp();
        if (elect_one()) {
            HiddenKeys<Traits>& keys = Hidden::keys(shared, at.stage);
            unsigned some = 0;
#pragma unroll
            for (int group = 0; group < GROUPS; group++) some |= keys.words[group] = hidden[group];
            keys.some = some;
            barrier_arrive(full);
        }
        __syncwarp();
        at.advance();
    }

    const Scoring& scoring;
    unsigned char* shared;
    const SharedLayout<Traits> layout;
    RingPosition<Traits::STAGES> at;
    const unsigned char* row = nullptr; // of the mask
    int row_len = 0, first_key = 0, end_key = 0;
};

// Hides keys in scores that were computed without the step that does. `begin`: the first key of those that they are of.
template <class Traits, int COUNT> __device__ inline void hide_in_registers(float (&scores)[COUNT], const HiddenKeys<Traits>& keys, int begin = 0)
{
    constexpr int OF_WORD = LANES / 2; // scores
    if (of_first_lane(keys.some)) {
#pragma unroll
        for (int first = 0; first < COUNT; first += OF_WORD) {
            const int key = begin + 2 * first;
            const unsigned own = of_first_lane(keys.words[key / LANES]) >> (key % LANES + lane_column());
#pragma unroll
            for (int i = first; i < first + OF_WORD && i < COUNT; i++)
                if (own >> ((i - first) / 4 * 8 + i % 2) & 1) scores[i] = negative_infinity();
        }
    }
}

} // namespace warptile
