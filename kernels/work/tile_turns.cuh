// Which tiles a CTA computes that stays and takes one after the other, for kernels that ask for the next tile's rows before they have
// written those of the present one. CTA c begins with tile c. Then it draws numbers from the counter, if there is one, else it takes c + grid,
// c + 2 * grid, ...
//
// A number is drawn while the tile before the last is written, so that nobody waits for it. One thread does all of this; the others read the
// tiles after the next barrier.
#pragma once

#include "memory/keys.cuh"
#include "work/one_tile.cuh"

namespace warptile {

template <class Traits> struct TileTurns {
    using Element = typename Traits::Element;
    static constexpr bool SHARES_KEYS = false;
    static constexpr unsigned SCHEDULE = SCHEDULE_GROUP_TILES;

    struct Tile : Segment {
        const Element *keys, *values; // its first ones, unless they are in pages
    };
    Tile tile, next, after; // no more follow the first end
    int group;              // query heads a key/value head
    unsigned number;        // that was drawn last

    __device__ void begin(const Forward& params)
    {
        group = params.heads / params.kv_heads;
        number = blockIdx.x;
        describe(params, tile);
    }
    // To be called, with the launch before at its end, once for each number below that of tiles: then the counter is 0 again at the end. Its
    // memory access overlaps with what follows until `number` is set to it.
    __device__ unsigned draw(const Forward& params) const
    {
        const Work& work = params.work;
        if (number >= (unsigned)work.tiles) return number;
        return gridDim.x + (work.counter ? atomicInc(work.counter, work.tiles - 1) : number);
    }
    // The tile of `number`, or if that sequence has no such tile the next one that exists. Numbers that stand for no tile are found where
    // lengths are read from memory, which waits for the launch before.
    __device__ void describe(const Forward& params, Tile& tile)
    {
        for (;; number = draw(params)) {
            tile.batch = Segment::END;
            if (number >= (unsigned)params.work.tiles) return;
            OneTile<Traits>(params, group, number, false).write(tile);
            if (!tile.is_end()) break;
        }
        if (params.pages.table) return;
        const KeyRows<Element> rows(params, tile.batch, tile.kv_head, tile.k);
        tile.keys = static_cast<const Element*>(params.k.address) + rows.offset(params, params.k, tile.first_key, 0);
        tile.values = static_cast<const Element*>(params.v.address) + rows.offset(params, params.v, tile.first_key, 0);
    }
    // The next tile becomes the present one. One warp calls it, between two barriers.
    __device__ void advance()
    {
        constexpr int WORDS = sizeof(Tile) / sizeof(unsigned), COUNT = (2 * WORDS + 31) / 32;
        unsigned* const words = reinterpret_cast<unsigned*>(this);
        const int lane = threadIdx.x % 32;
        unsigned moved[COUNT];
        for (int i = 0; i < COUNT; i++) moved[i] = words[WORDS + min(i * 32 + lane, 2 * WORDS - 1)];
        __syncwarp();
        for (int i = 0; i < COUNT; i++)
            if (i * 32 + lane < 2 * WORDS) words[i * 32 + lane] = moved[i];
    }
};

} // namespace warptile
