// Which keys of a sequence a key mask shows that is the same for all heads and queries, as of padding. A warp of the loading warpgroup
// looks for the first and the last one; the loading thread asks for one sequence after the other, and leaves out the blocks that are
// hidden before and behind.
#pragma once

#include "forward/wgmma_layout.cuh"
#include "ptx/lanes.cuh"
#include "rule/tensors.cuh"

namespace warptile {

// The first piece of KEYS keys in which a key is shown, counted from the first (STEP 1) or the last (STEP -1) of `pieces`; `pieces` if
// there is none. Each lane looks at one piece at a time.
template <int KEYS, int STEP>
__device__ inline int first_shown_piece(const unsigned char* row, long long step, int key_len, int pieces)
{
    for (int begin = 0; begin < pieces; begin += LANES) {
        Lanes shown;
        shown.fill([&](int lane) {
            const int piece = STEP > 0 ? begin + lane : pieces - 1 - begin - lane;
            const unsigned char* at = row + piece * KEYS * step;
            const int keys = piece < 0 ? 0 : key_len - piece * KEYS;
            int some = 0;
#pragma unroll
            for (int i = 0; i < KEYS; i++) {
                if (i < keys) some |= *at;
                at += step;
            }
            return some;
        });
        const unsigned lanes = shown.not_zero();
        if (lanes) return begin + __ffs(lanes) - 1;
    }
    return pieces;
}

template <class Traits> __device__ void find_shown_keys(const Scoring& scoring, unsigned char* shared, SharedLayout<Traits> layout)
{
    constexpr int KEYS = 16;
    static_assert(Traits::BLOCK_N % KEYS == 0, "a block is some of them");
    for (unsigned parity = 0;; parity ^= 1) {
        barrier_wait(layout.shown_asked(), parity);
        ShownKeys& shown = SharedLayout<Traits>::shown(shared);
        const int batch = uniform(shown.batch), key_len = uniform(shown.key_len);
        if (batch == Tile::END) return;
        const unsigned char* const row = mask_row(scoring, batch, 0, 0);
        const int pieces = (key_len + KEYS - 1) / KEYS;
        const int first = first_shown_piece<KEYS, 1>(row, scoring.mask_key, key_len, pieces);
        const int last = first_shown_piece<KEYS, -1>(row, scoring.mask_key, key_len, pieces);
        if (elect_one()) {
            shown.first = first * KEYS;
            shown.end = (pieces - last) * KEYS;
            barrier_arrive(layout.shown_found());
        }
        __syncwarp();
    }
}

} // namespace warptile
