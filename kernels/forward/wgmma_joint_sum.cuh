// The sum of a tile's parts, by all who have left one: a warpgroup that comes last would take 33 parts of 64 KB one after the other. For
// packed rows.
//
// Whoever has left a part waits for a while to be told that all parts are there, each at a word of its own: who polls the same one keeps
// others from it. Who comes last tells them. Each then adds up a share: some columns of 16 rows for each warp, in the order of the keys, so
// that the result does not depend on who adds. Who has waited in vain leaves word, and whoever comes last adds up that share too. So nobody
// counts on anybody, and a launch ends even where its CTAs run one after the other. Where CTAs may have other tiles to compute nobody
// waits: where there is a counter (`sums_by_all` in crates/attention/src/gpu/block.rs). Whoever comes last then adds up all shares.
//
// A word is 0 before and after. Whoever touches it last makes it so: who was told, or who comes last and finds that one has left.
#pragma once

#include "forward/wgmma_epilogue.cuh"
#include "forward/wgmma_parts.cuh"
#include "ptx/exchange.cuh"
#include "ptx/lanes.cuh"

namespace warptile {

template <class Traits> class JointSum {
  public:
    __device__ JointSum(const Forward& params, const Parts<Traits>& parts, const Part& part, const Tile& tile, int warpgroup)
        : params(params), parts(parts), part(part), tile(tile), warpgroup(warpgroup)
    {
    }

    // By all warps of a warpgroup that has left its part. `takes` is the warpgroup's, in shared memory; `has_rows`: in this tile.
    __device__ void run(unsigned (&takes)[2], bool has_rows) const
    {
        sync(); // all of the part is written
        if (uniform(thread_index() % WARPGROUP_THREADS / 32) == 0) {
            const unsigned before = uniform((int)(is_first_lane() ? increment_and_wrap(parts.semaphore_word(), splits() - 1) : 0));
            const unsigned own = 1u << part.split % LANES;
            uint2 found = {};
            if (before == splits() - 1)
                found = {tell(0), tell(LANES)};
            else if (waits() && was_told())
                found = {part.split < LANES ? own : 0, part.split < LANES ? 0 : own};
            if (is_first_lane()) {
                takes[0] = found.x;
                takes[1] = found.y;
            }
        }
        sync();
        if (!has_rows) return;
#pragma unroll 1
        for (int i = 0; i < 2; i++)
#pragma unroll 1
            for (unsigned left = uniform((int)takes[i]); left; left &= left - 1) sum(i * LANES + __ffs(left) - 1);
    }

  private:
    enum : unsigned { TOLD = 1, LEFT = 2 };
    enum : int { MAX_PARTS = 2 * LANES, TRIES = 60 }; // tries: a microsecond each

    static constexpr int PAIRS = Traits::VALUE_DIM / 16; // of chunks of 8 columns
    static_assert((PAIRS & (PAIRS - 1)) == 0, "ranges of as many pairs each");

    __device__ static bool is_first_lane() { return thread_index() % 32 == 0; }
    __device__ void sync() const { named_barrier_wait(1 + warpgroup, WARPGROUP_THREADS); }
    __device__ unsigned splits() const { return params.work.splits; }

    // The words come behind the semaphores. The host has made room for as many.
    static constexpr int WORDS_AT = 512;
    __device__ unsigned* word(int split) const
    {
        return params.work.semaphores + WORDS_AT + (part.tile * params.work.splits + split) * Traits::CONSUMERS + warpgroup;
    }
    // The same in all CTAs of a launch.
    __device__ bool waits() const { return !params.work.counter; }

    // By whoever comes last, to those of as many splits as there are lanes: a bit for each share that nobody else adds up.
    __device__ unsigned tell(int first) const
    {
        Lanes left;
        left.fill([&](int lane) {
            const int split = first + lane;
            if (split >= params.work.splits) return 0;
            if (split == part.split || !waits()) return 1;
            if (exchange_in_order(word(split), TOLD) != LEFT) return 0;
            *word(split) = 0;
            return 1;
        });
        return left.not_zero();
    }

    // By one warp. Returns false if it has left word that it is gone.
    __device__ bool was_told() const
    {
        bool told = false;
        if (is_first_lane()) {
#pragma unroll 1
            for (int i = 0; i < TRIES && !told; i++) {
                told = load_in_order(word(part.split)) == TOLD;
                if (!told) pause();
            }
            if (!told) told = exchange_in_order(word(part.split), LEFT) == TOLD;
            if (told) *word(part.split) = 0;
        }
        return uniform(told);
    }

    // Ranges of columns that each of four times 16 rows is cut into: no more than there are parts, whose warps have one each.
    __device__ int ranges() const { return min(1 << (31 - __clz(params.work.splits)), PAIRS); }

    // A warp's of the share of one who has left a part.
    __device__ void sum(int share) const
    {
        const int item = share * WARPGROUP_WARPS + uniform(thread_index() % WARPGROUP_THREADS / 32), ranges = this->ranges();
        const int of_rows = item / ranges, pairs = PAIRS / ranges;
        if (of_rows >= WARPGROUP_WARPS) return;
        const int tile_row = warpgroup * MMA_ROWS + of_rows * (MMA_ROWS / WARPGROUP_WARPS), first = (item - of_rows * ranges) * pairs;
        const OutputRows<Traits> rows(tile_row, params, tile);
        if (!rows.has_rows()) return;
        const int thread = of_rows * 32 + thread_index() % 32;
        if (pairs % 4 == 0)
            add_up<4>(rows, tile_row, thread, first, first + pairs);
        else if (pairs % 2 == 0)
            add_up<2>(rows, tile_row, thread, first, first + pairs);
        else
            add_up<1>(rows, tile_row, thread, first, first + pairs);
    }

    // Of the rows that `thread` of a warpgroup holds, AT_ONCE pairs of chunks at a time. As many parts are under way as registers suffice
    // for.
    template <int AT_ONCE> __device__ void add_up(const OutputRows<Traits>& rows, int tile_row, int thread, int first, int end) const
    {
        constexpr int CHUNKS = 2 * AT_ONCE, BATCH = 8 / AT_ONCE;
        const int splits = params.work.splits;
#pragma unroll 1
        for (int pair = first; pair < end; pair += AT_ONCE) {
            float values[4 * CHUNKS] = {}, max[ROWS_PER_THREAD] = {negative_infinity(), negative_infinity()};
            RowState<Traits> state;
            state.sum[0] = state.sum[1] = 0;
#pragma unroll 1
            for (int begin = 0; begin < splits; begin += BATCH) {
                float4 sums[BATCH], words[BATCH][CHUNKS];
#pragma unroll
                for (int i = 0; i < BATCH; i++) {
                    const float4* const from = parts.words_of(min(begin + i, splits - 1), thread);
                    sums[i] = __ldcg(from + Traits::VALUE_DIM / 8 * WARPGROUP_THREADS);
#pragma unroll
                    for (int chunk = 0; chunk < CHUNKS; chunk++) words[i][chunk] = __ldcg(from + (2 * pair + chunk) * WARPGROUP_THREADS);
                }
                float largest[ROWS_PER_THREAD] = {max[0], max[1]};
#pragma unroll
                for (int i = 0; i < BATCH; i++) {
                    largest[0] = fmaxf(largest[0], sums[i].x);
                    largest[1] = fmaxf(largest[1], sums[i].z);
                }
#pragma unroll
                for (int row = 0; row < ROWS_PER_THREAD; row++) {
                    const float keep = rescale(max[row], largest[row]);
                    max[row] = largest[row];
                    state.sum[row] *= keep;
#pragma unroll
                    for (int j = 2 * row; j < 4 * CHUNKS; j += 4) {
                        values[j] *= keep;
                        values[j + 1] *= keep;
                    }
                }
#pragma unroll
                for (int i = 0; i < BATCH; i++) {
                    // Neither row has seen a key. A NaN is one.
                    const bool unseen = fmaxf(sums[i].x, sums[i].z) == negative_infinity() && sums[i].y + sums[i].w == 0;
                    if (unseen || begin + i >= splits) continue;
                    const float take[ROWS_PER_THREAD] = {rescale(sums[i].x, max[0]), rescale(sums[i].z, max[1])};
                    state.sum[0] += sums[i].y * take[0];
                    state.sum[1] += sums[i].w * take[1];
#pragma unroll
                    for (int chunk = 0; chunk < CHUNKS; chunk++) {
                        values[4 * chunk] += words[i][chunk].x * take[0];
                        values[4 * chunk + 1] += words[i][chunk].y * take[0];
                        values[4 * chunk + 2] += words[i][chunk].z * take[1];
                        values[4 * chunk + 3] += words[i][chunk].w * take[1];
                    }
                }
            }
            state.offset[0] = -max[0];
            state.offset[1] = -max[1];
            float inverse[ROWS_PER_THREAD], lse[ROWS_PER_THREAD];
            state.finish(inverse, lse, params, tile, tile_row);
            rows.write_columns(values, inverse, 16 * pair);
            if (pair == 0) rows.write_lse(lse);
        }
    }

    const Forward& params;
    const Parts<Traits>& parts;
    const Part& part;
    const Tile& tile;
    const int warpgroup;
};

} // namespace warptile
