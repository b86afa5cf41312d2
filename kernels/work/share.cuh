// Which keys a CTA reads, for kernels whose CTAs share the keys of all sequences.
//
// The keys that a sequence's queries see are cut into units: blocks of BLOCK_N keys, or as many keys as a split has. The
// units of all tiles of all sequences are numbered one after the other, and CTAs take equal ranges of them, or whole tiles where that is
// almost as even. So a tile is computed by
// neighbouring CTAs, and a CTA shares at most two tiles with others: its first and its last. A tile without keys counts one
// unit, so that somebody writes its zeros.
//
// A segment is what a CTA computes of a tile at once: all its units, or with splits one, so that a part's bits depend on nothing
// but its keys.
//
// Lengths on the device may change during the launch, and then CTAs disagree: about what they compute, not about what they may
// touch. Every number of a CTA is held below the grid's size, and every number of a part below those there are: what the CTA
// counted at first, which no lengths bring above what the host has made room for.
#pragma once

#include "work/segment.cuh"

namespace warptile {

__device__ constexpr int log2_of(int power) { return power > 1 ? 1 + log2_of(power / 2) : 0; }

template <class Traits> class Share {
  public:
    static constexpr bool SHARES_KEYS = true;
    static constexpr unsigned SCHEDULE = SCHEDULE_SHARED_KEYS;

    // Finds the CTA's first unit. All threads call it; afterwards `next` is the first thread's alone. `shared` holds
    // SHARED_BYTES bytes.
    __device__ Share(const Forward& params, int group, unsigned char* shared)
        : params(params), group(group), unit_log(has_splits() ? 31 - __clz(params.work.keys_per_split) : LOG_BLOCK_N),
          state(*reinterpret_cast<State*>(shared))
    {
        if (reads_lengths(params.sequences)) {
            wait_for_predecessor();
            find_among_lengths();
        } else {
            const Sequence one(*this, 0);
            const Range range = shared_evenly(params.sequences.batch * one.units(), one.tile_units);
            if (threadIdx.x == 0) {
                state.at = range.begin;
                state.end = range.end;
                state.units = params.sequences.batch * one.units();
                state.sequence = one;
                state.sequence_is_known = true;
                state.batch = range.begin < range.end ? range.begin / one.units() : 0;
                state.base = state.batch * one.units();
            }
        }
    }

    // A word that the CTA may use between two barriers.
    __device__ unsigned& scratch() const { return state.scratch[0]; }

    // The next segment.
    __device__ Segment next()
    {
        Segment segment;
        segment.batch = Segment::END;
        Sequence& sequence = state.sequence;
        // Ends for good if lengths have shrunk meanwhile.
        while (true) {
            if (state.at >= state.end) return segment;
            if (!state.sequence_is_known) sequence = Sequence(*this, state.batch);
            state.sequence_is_known = true;
            if (state.at - state.base < sequence.units()) break;
            state.base += sequence.units();
            state.sequence_is_known = !reads_lengths(params.sequences);
            if (++state.batch >= params.sequences.batch) state.end = state.at;
        }
        const unsigned at = state.at, base = state.base;
        const unsigned tile = (at - base) / sequence.tile_units, unit = at - base - tile * sequence.tile_units;
        segment.batch = state.batch;
        segment.kv_head = tile;
        segment.first_query = segment.first_head = 0;
        if (sequence.row_tiles > 1) {
            segment.kv_head = tile / sequence.row_tiles;
            const int first_row = (tile - segment.kv_head * sequence.row_tiles) * Traits::BLOCK_M;
            segment.first_query = first_row / group;
            segment.first_head = first_row - segment.first_query * group;
        }
        segment.q = sequence.q;
        segment.k = sequence.k;
        segment.unit = at;
        segment.units = has_splits() ? 1 : min(sequence.tile_units - unit, state.end - at);
        segment.tile_unit = at - unit;
        segment.tile_units = sequence.tile_units;
        segment.first_split = sequence.first_unit;
        const int first_unit = sequence.first_unit + unit;
        segment.first_key = max(first_unit << unit_log, sequence.first_key);
        segment.end_key = min((first_unit + (int)segment.units) << unit_log, sequence.end_key);
        if (sequence.row_tiles > 1) {
            // Not every query of the sequence is in the tile.
            const Mask mask(params.scoring, sequence.q.len, sequence.k.len);
            const int queries = (segment.first_head + Traits::BLOCK_M - 1) / group + 1;
            segment.first_key = max(segment.first_key, mask.first_key(segment.first_query));
            segment.end_key = min(segment.end_key, mask.end_key(segment.first_query, queries));
        }
        state.at = at + segment.units;
        return segment;
    }

    // --- Parts: what CTAs leave of a tile that one segment does not cover ---

    // Keys are cut at multiples of a length, so that no part depends on who computes it.
    __device__ bool has_splits() const { return params.work.keys_per_split != 0; }
    // The CTAs that have a part of the tile.
    struct Owners {
        unsigned first, last;
    };
    __device__ Owners owners(const Segment& of) const
    {
        return {of.tile_unit / each, min((of.tile_unit + of.tile_units - 1) / each, gridDim.x - 1)};
    }
    __device__ int parts(const Segment& of, Owners by) const { return has_splits() ? of.tile_units : by.last - by.first + 1; }
    // Where part `index` of the tile lies. Without splits a CTA has two places: for its last tile and for its first.
    __device__ unsigned place(const Segment& of, Owners by, int index) const
    {
        return has_splits() ? min(of.tile_unit + index, state.units - 1) : place_of(of, by.first + index);
    }
    __device__ unsigned own_place(const Segment& of) const { return has_splits() ? of.unit : place_of(of, blockIdx.x); }
    // Whether this CTA has no more segments of the tile.
    __device__ bool is_last_here(const Segment& of) const
    {
        return of.unit + of.units == min(of.tile_unit + of.tile_units, (blockIdx.x + 1) * each);
    }

  private:
    static constexpr int LOG_BLOCK_N = log2_of(Traits::BLOCK_N);
    static_assert(1 << LOG_BLOCK_N == Traits::BLOCK_N, "units are powers of two");

    // What one sequence asks for.
    struct Sequence {
        Extent q, k;
        int first_key, end_key; // that any of its queries sees
        int first_unit;
        unsigned tile_units;
        unsigned row_tiles;
        unsigned tiles;

        Sequence() = default;
        __device__ Sequence(const Share& share, int batch)
            : q(queries_of(share.params.sequences, batch)), k(keys_of(share.params.sequences, batch))
        {
            const Mask mask(share.params.scoring, q.len, k.len);
            first_key = mask.first_key(0);
            end_key = max(mask.end_key(0, q.len), first_key);
            first_unit = first_key >> share.unit_log;
            const int end_unit = (end_key + (1 << share.unit_log) - 1) >> share.unit_log;
            tile_units = max(end_unit - first_unit, 1);
            row_tiles = ((unsigned)q.len * share.group + Traits::BLOCK_M - 1) / Traits::BLOCK_M;
            tiles = row_tiles * share.params.kv_heads;
        }
        __device__ unsigned units() const { return tiles * tile_units; }
    };
    // In shared memory: registers are for what all threads need.
    struct State {
        unsigned at, end;       // the CTA's next unit, and the one after its last
        unsigned units;         // of all CTAs
        int batch;              // the sequence in hand, ...
        unsigned base;          // ... its first unit ...
        Sequence sequence;      // ... and what it asks for, if that has been read
        bool sequence_is_known;
        unsigned scratch[Traits::WARPS];
    };

    // The CTA's units. The last CTAs may have fewer than the others, or none.
    struct Range {
        unsigned begin, end;
    };
    __device__ Range shared_evenly(unsigned total, unsigned tile_units = 1)
    {
        each = max((total + gridDim.x - 1) / gridDim.x, 1u);
        // Rather whole tiles of `tile_units`, which need no adding up, if a few CTAs without work are all it costs.
        const unsigned whole = (each + tile_units - 1) / tile_units * tile_units;
        if (whole - each <= each / 24) each = whole;
        const unsigned begin = min(blockIdx.x * each, total);
        return {begin, min(begin + each, total)};
    }
    __device__ unsigned place_of(const Segment& of, unsigned cta) const { return 2 * cta + (cta * each < of.tile_unit); }

    // THREADS sequences at a time, twice: to add up their units, and to find the one that has this CTA's first.
    __device__ void find_among_lengths()
    {
        const int sequences = params.sequences.batch;
        unsigned before = 0;
        Range range = {0, 0};
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
            before = 0;
#pragma unroll 1
            for (int first = 0; first < sequences; first += Traits::THREADS) {
                const int mine = first + threadIdx.x;
                Sequence sequence;
                if (mine < sequences) sequence = Sequence(*this, mine);
                const unsigned units = mine < sequences ? sequence.units() : 0;
                if (pass == 0 && mine == 0) {
                    state.sequence = sequence;
                    state.base = units;
                }
                const RunningSum sum = running_sum(units);
                // One thread at most has it.
                const unsigned mine_end = before + sum.to_here;
                if (pass == 1 && mine_end - units <= range.begin && range.begin < mine_end) {
                    state.batch = mine;
                    state.base = mine_end - units;
                }
                before += sum.all;
            }
            if (pass == 0) {
                const bool alike = before != 0 && before == sequences * state.base; // or they add up to as much
                range = shared_evenly(before, alike ? state.sequence.tile_units : 1);
                __syncthreads(); // the first sequence's have been read
                if (threadIdx.x == 0) {
                    state.at = range.begin;
                    state.end = range.end;
                    state.units = before;
                    state.sequence_is_known = false;
                    // These stay if lengths have shrunk since.
                    state.batch = sequences - 1;
                    state.base = range.begin;
                }
            }
            __syncthreads();
        }
    }

    struct RunningSum {
        unsigned to_here; // this thread's value and those of all threads before it
        unsigned all;
    };
    __device__ RunningSum running_sum(unsigned x) const
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const unsigned other = __shfl_up_sync(0xffffffff, x, step);
            if (lane >= step) x += other;
        }
        if (lane == 31) state.scratch[warp] = x;
        __syncthreads();
        RunningSum sum = {x, 0};
#pragma unroll
        for (int other = 0; other < Traits::WARPS; other++) {
            if (other < warp) sum.to_here += state.scratch[other];
            sum.all += state.scratch[other];
        }
        __syncthreads(); // it has been read
        return sum;
    }

    const Forward& params;
    const int group;    // query heads a key/value head
    const int unit_log; // of the keys of a unit
    unsigned each;      // units of a CTA
    State& state;

  public:
    static constexpr int SHARED_BYTES = sizeof(State);
};

} // namespace warptile
