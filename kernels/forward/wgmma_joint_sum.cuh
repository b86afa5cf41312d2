// The sum of a tile's parts, by all who have left one: a warpgroup that comes last would take 33 parts of 64 KB one after the other. For
// packed rows.
//
// Whoever has left a part waits for a while until all parts are there, as the word says in which they are counted: it is 0 again then. Each
// then adds up a share: some columns of 16 rows for each warp, in the order of the keys, so that the result does not depend on who adds. Of
// many parts several warps of a share have some each, and the first of them adds up their sums. Who has waited in vain leaves word, and
// whoever comes last adds up that share too. So nobody counts on anybody, and a launch ends even where its CTAs run one after the other.
// Where CTAs may have other tiles to compute nobody waits: where there is a counter (`sums_by_all` in crates/attention/src/gpu/block.rs).
// Whoever comes last then adds up all of it.
//
// Each has a word of its own, at which it and whoever comes last tell each other that they have been there. It is 0 before and after:
// whoever is the second of them makes it so. Nobody waits for the answer before its own share is added up.
#pragma once

#include "forward/wgmma_epilogue.cuh"
#include "forward/wgmma_parts.cuh"
#include "ptx/exchange.cuh"
#include "ptx/lanes.cuh"

namespace warptile {

template <class Traits> class JointSum {
  public:
    // `buffer`: SUM_BYTES of shared memory for the warpgroup.
    __device__ JointSum(const Forward& params, const Parts<Traits>& parts, const Part& part, const Tile& tile, int warpgroup,
                        float4* buffer)
        : params(params), parts(parts), part(part), tile(tile), warpgroup(warpgroup), buffer(buffer)
    {
    }

    static constexpr int SUM_BYTES = 2 * WARPGROUP_THREADS * sizeof(float4);

    // By all warps of a warpgroup that has left its part. `takes` is the warpgroup's, in shared memory; `has_rows`: in this tile.
    __device__ void run(unsigned& takes, bool has_rows) const
    {
        sync(); // all of the part is written
        const bool leads = uniform(thread_index() % WARPGROUP_THREADS / 32) == 0;
        if (leads) {
            const unsigned before = uniform((int)(is_first_lane() ? increment_and_wrap(parts.semaphore_word(), splits() - 1) : 0));
            const Takes found = before == splits() - 1 ? waits() ? OWN_AND_LEFT : ALL : waits() && sees_all() ? OWN : NOTHING;
            if (is_first_lane()) takes = found;
        }
        sync();
        const unsigned role = uniform((int)takes);
        if (role == NOTHING) return;
        // The word's answer comes while the share is added up, if there is a register for it.
        unsigned answer = 0;
        if (!ASKS_LATE && role == OWN && leads && is_first_lane()) answer = exchange(word(part.split), HAS_SUMMED);
        int share = role == ALL ? 0 : part.split, asked = role == OWN_AND_LEFT ? 0 : splits();
        const Deal deal(rows_here(), role == ALL ? 1 : splits(), splits());
        unsigned left = 0; // of the LANES splits before `asked`
#pragma unroll 1
        while (true) {
            if (has_rows) sum(share, deal);
            for (; !left && asked < splits(); asked += LANES) {
                sync(); // `takes` has been read
                if (leads) {
                    const unsigned found = tell(asked);
                    if (is_first_lane()) takes = found;
                }
                sync();
                left = uniform((int)takes);
            }
            if (!left) break;
            share = asked - LANES + __ffs(left) - 1;
            left &= left - 1;
        }
        if (ASKS_LATE && role == OWN && leads && is_first_lane()) answer = exchange(word(part.split), HAS_SUMMED);
        if (answer == TOLD) *word(part.split) = 0;
    }

  private:
    enum Takes : unsigned { NOTHING, OWN, OWN_AND_LEFT, ALL }; // ALL: in one share
    enum : unsigned { TOLD = 1, LEFT = 2, HAS_SUMMED = 3 };
    enum : int { TRIES = 60 }; // a microsecond each
    enum : bool { ASKS_LATE = Traits::CONSUMERS > 2 };

    static constexpr int CHUNKS = Parts<Traits>::CHUNKS;
    static constexpr int CHUNKS_LOG = CHUNKS == 8 ? 3 : CHUNKS == 16 ? 4 : 5;
    static_assert(CHUNKS == 1 << CHUNKS_LOG, "ranges of as many chunks each");

    __device__ static bool is_first_lane() { return thread_index() % 32 == 0; }
    __device__ void sync() const { named_barrier_wait(1 + warpgroup, WARPGROUP_THREADS); }
    __device__ int splits() const { return params.work.splits; }

    // The words come behind the semaphores. The host has made room for as many.
    static constexpr int WORDS_AT = 512;
    __device__ unsigned* word(int split) const
    {
        return params.work.semaphores + WORDS_AT + (part.tile * params.work.splits + split) * Traits::CONSUMERS + warpgroup;
    }
    // The same in all CTAs of a launch.
    __device__ bool waits() const { return !params.work.counter; }

    // By whoever comes last, to those of as many splits as there are lanes: a bit for each who has left without adding up its share.
    __device__ unsigned tell(int first) const
    {
        Lanes left;
        left.fill([&](int lane) {
            const int split = first + lane;
            if (split >= splits() || split == part.split) return 0;
            const unsigned found = exchange(word(split), TOLD);
            if (found == 0) return 0;
            *word(split) = 0;
            return found == LEFT ? 1 : 0;
        });
        return left.not_zero();
    }

    // By one warp: returns true once all parts are there. False if it has left word that it is gone.
    __device__ bool sees_all() const
    {
        bool sees = false;
        if (is_first_lane()) {
#pragma unroll 1
            for (int i = 0; i < TRIES && !sees; i++) {
                sees = load_in_order(parts.semaphore_word()) == 0;
                if (!sees) pause();
            }
            // Whoever comes last may have been here meanwhile, after all others.
            if (!sees && exchange(word(part.split), LEFT) == TOLD) {
                *word(part.split) = TOLD;
                load_in_order(parts.semaphore_word());
                sees = true;
            }
        }
        return uniform(sees);
    }

    // How the work is dealt out to the warps of all shares: the more parts, the more warps. As logarithms: code for divisions is long.
    struct Deal {
        int row_groups; // 16 rows each
        int chunks_log; // of the chunks that a warp adds up
        int ways_log;   // of the warps that have some of the parts each

        __device__ Deal(int rows, int shares, int parts)
            : row_groups(max(min((rows + GROUP_ROWS - 1) / GROUP_ROWS, WARPGROUP_WARPS), 1)), chunks_log(0), ways_log(0)
        {
            const int warps = shares * WARPGROUP_WARPS, needed = row_groups * CHUNKS;
            while (warps << chunks_log < needed) chunks_log++;
            while (ways() < WARPGROUP_WARPS && parts > WORDS_AT_ONCE << ways_log && warps >= needed << (ways_log + 1)) ways_log++;
        }
        __device__ int chunks() const { return 1 << chunks_log; }
        __device__ int ways() const { return 1 << ways_log; }
    };
    // From the warpgroup's first one on.
    __device__ int rows_here() const { return rows_of_queries<Traits>(params, tile.query_len) - tile.first_query - warpgroup * MMA_ROWS; }
    static constexpr int GROUP_ROWS = MMA_ROWS / WARPGROUP_WARPS;
    // Of each thread: parts of a chunk, chunks of a part, or both.
    static constexpr int WORDS_AT_ONCE = 16;

    // A warp's of the share of one who has left a part.
    __device__ void sum(int share, const Deal& deal) const
    {
        const int warp = uniform(thread_index() % WARPGROUP_THREADS / 32);
        const int item = (share * WARPGROUP_WARPS + warp) >> deal.ways_log, way = warp & (deal.ways() - 1);
        const int ranges_log = CHUNKS_LOG - deal.chunks_log, of_rows = item >> ranges_log;
        const int first = (item - (of_rows << ranges_log)) << deal.chunks_log;
        if (of_rows >= deal.row_groups && deal.ways() == 1) return;
        const int tile_row = warpgroup * MMA_ROWS + of_rows * GROUP_ROWS, thread = of_rows * 32 + thread_index() % 32;
        if (deal.chunks() >= 8)
            write_sums<8>(tile_row, thread, first, first + deal.chunks());
        else if (deal.chunks() == 4)
            write_sums<4>(tile_row, thread, first, first + 4);
        else if (deal.chunks() == 2)
            write_sums<2>(tile_row, thread, first, first + 2);
        else {
            Sum<1> sum;
            const bool has_rows = of_rows < deal.row_groups;
            if (has_rows) add_up(sum, thread, first, splits() * way >> deal.ways_log, splits() * (way + 1) >> deal.ways_log);
            if (deal.ways() > 1) {
                float4* const own = buffer + thread_index() % WARPGROUP_THREADS;
                own[0] = {sum.values[0], sum.values[1], sum.values[2], sum.values[3]};
                own[WARPGROUP_THREADS] = {sum.max[0], sum.sum[0], sum.max[1], sum.sum[1]};
                sync();
                if (way == 0)
#pragma unroll 1
                    for (int other = 1; other < deal.ways(); other++) {
                        const float4 words[1][1] = {{own[other * 32]}}, sums[1] = {own[other * 32 + WARPGROUP_THREADS]};
                        sum.add(sums, words, 1);
                    }
            }
            if (has_rows && way == 0) write(sum, tile_row, first);
            if (deal.ways() > 1) sync(); // the buffer has been read
        }
    }

    // The sum over some parts of two rows' COUNT chunks that a thread holds.
    template <int COUNT> struct Sum {
        float values[4 * COUNT] = {};
        float max[ROWS_PER_THREAD] = {negative_infinity(), negative_infinity()}, sum[ROWS_PER_THREAD] = {};

        // The first `count` of these.
        template <int PARTS> __device__ void add(const float4 (&sums)[PARTS], const float4 (&words)[PARTS][COUNT], int count)
        {
            float largest[ROWS_PER_THREAD] = {max[0], max[1]};
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                if (i < count) {
                    largest[0] = fmaxf(largest[0], sums[i].x);
                    largest[1] = fmaxf(largest[1], sums[i].z);
                }
#pragma unroll
            for (int row = 0; row < ROWS_PER_THREAD; row++) {
                const float keep = rescale(max[row], largest[row]);
                max[row] = largest[row];
                sum[row] *= keep;
#pragma unroll
                for (int j = 2 * row; j < 4 * COUNT; j += 4) {
                    values[j] *= keep;
                    values[j + 1] *= keep;
                }
            }
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                if (i >= count) continue;
                const float take[ROWS_PER_THREAD] = {rescale(sums[i].x, max[0]), rescale(sums[i].z, max[1])};
                sum[0] += sums[i].y * take[0];
                sum[1] += sums[i].w * take[1];
#pragma unroll
                for (int chunk = 0; chunk < COUNT; chunk++) {
                    values[4 * chunk] += words[i][chunk].x * take[0];
                    values[4 * chunk + 1] += words[i][chunk].y * take[0];
                    values[4 * chunk + 2] += words[i][chunk].z * take[1];
                    values[4 * chunk + 3] += words[i][chunk].w * take[1];
                }
            }
        }
    };

    // Adds up the parts from `begin` to `end`, of the rows that `thread` of a warpgroup holds and the chunks from `chunk` on. As many parts
    // are under way as registers suffice for.
    template <int COUNT> __device__ void add_up(Sum<COUNT>& sum, int thread, int chunk, int begin, int end) const
    {
        constexpr int PARTS = WORDS_AT_ONCE / COUNT;
#pragma unroll 1
        for (; begin < end; begin += PARTS) {
            float4 sums[PARTS], words[PARTS][COUNT];
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                const float4* const from = parts.words_of(min(begin + i, end - 1), thread);
                sums[i] = __ldcg(from + CHUNKS * WARPGROUP_THREADS);
#pragma unroll
                for (int j = 0; j < COUNT; j++) words[i][j] = __ldcg(from + (chunk + j) * WARPGROUP_THREADS);
            }
            sum.add(sums, words, end - begin);
        }
    }

    template <int COUNT> __device__ void write_sums(int tile_row, int thread, int first, int end) const
    {
#pragma unroll 1
        for (; first < end; first += COUNT) {
            Sum<COUNT> sum;
            add_up(sum, thread, first, 0, splits());
            write(sum, tile_row, first);
        }
    }

    template <int COUNT> __device__ void write(const Sum<COUNT>& sum, int tile_row, int chunk) const
    {
        const OutputRows<Traits> rows(tile_row, params, tile);
        if (!rows.has_rows()) return;
        RowState<Traits> state;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            state.offset[row] = -sum.max[row];
            state.sum[row] = sum.sum[row];
        }
        float inverse[ROWS_PER_THREAD], lse[ROWS_PER_THREAD];
        state.finish(inverse, lse, params, [&](int row) { return rows.head(row); });
        rows.write_columns(sum.values, inverse, 8 * chunk);
        if (chunk == 0) rows.write_lse(lse);
    }

    const Forward& params;
    const Parts<Traits>& parts;
    const Part& part;
    const Tile& tile;
    const int warpgroup;
    float4* const buffer;
};

} // namespace warptile
