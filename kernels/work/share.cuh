// Which keys a CTA reads, for kernels whose CTAs share the keys of all sequences.
//
// Some key/value heads are read side by side, each by CTAs of its own which share it as those of the others do: then the
// same rows of neighbouring heads, which are neighbours in the memory of most caches, are read at the same time. CTAs are numbered among
// those of their head, and so are units.
//
// The keys that a sequence's queries see are cut into units: blocks of BLOCK_N keys, or as many keys as a split has. The units of all
// tiles of all sequences are numbered one after the other, and CTAs take equal ranges of them, or whole tiles where that is almost as
// even. So a tile is computed by CTAs with neighbouring numbers, and a CTA shares at most two tiles with others: its first and its last.
// A tile without keys counts one unit, so that somebody writes its zeros.
//
// A segment is what a CTA computes of a tile at once: all its units, or with splits one, so that a part's bits depend on nothing
// but its keys.
//
// Lengths on the device may change during the launch, and then CTAs disagree: about what they compute, not about what they may
// touch. Every number of a CTA is held below the grid's size, and every number of a part below those there are: what the CTA
// counted at first, which no lengths bring above what the host has made room for.
//
// Reading ahead: lengths on the device, and what depends on them, are five round trips to memory and some thousand instructions before the
// first key is asked for, and the launch before may be what writes them. A CTA reads them all the same while that launch ends, and
// asks for them again when it has ended. If they are the same, as in all layers of a model but perhaps the first, everything that
// follows from them is known by then; otherwise the CTA begins again. The ring does so with numbers of pages.
#pragma once

#include "base/anew.cuh"
#include "base/math.cuh"
#include "memory/copy_number.cuh"
#include "work/quotient.cuh"
#include "work/segment.cuh"

namespace warptile {

__device__ constexpr int log2_of(int power) { return power > 1 ? 1 + log2_of(power / 2) : 0; }

template <class Traits> class Share {
  public:
    static constexpr bool SHARES_KEYS = true;
    static constexpr int CLUSTER = 1;
    static constexpr unsigned SCHEDULE = SCHEDULE_SHARED_KEYS;

    // Returns true if key lengths lie on the device and there is room to keep all of them.
    __device__ static bool can_read_ahead(const Forward& params)
    {
        return !Traits::is_dense() && BEGINS_EARLY && params.sequences.ragged & READ_AHEAD && params.sequences.batch <= LENGTHS;
    }

    // Finds the CTA's first unit. All threads call it; afterwards `next` is the first thread's alone. `shared` holds
    // SHARED_BYTES bytes.
    __device__ Share(const Forward& params, int group, unsigned char* shared, bool reads_ahead)
        : params(params), group(group), unit_log(has_splits() ? 31 - __clz(params.work.keys_per_split) : LOG_BLOCK_N),
          state(*reinterpret_cast<State*>(shared))
    {
        if (threadIdx.x == 0) {
            state.reads_ahead = reads_ahead;
            state.was_wrong = false;
        }
        if (has_lengths()) {
            if (!reads_ahead) grid_dependency_wait();
            find_among_lengths();
        } else {
            const Sequence one(*this, queries(params.sequences, 0), keys(params.sequences, 0));
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

    // Behind a barrier.
    __device__ bool reads_ahead() const { return !Traits::is_dense() && BEGINS_EARLY && state.reads_ahead; }
    // Asks again for what has been read ahead; with the next group of cp.async.
    __device__ void ask_again() const
    {
        each_length([&](unsigned i) { cp_async_4(&state.lengths_again[i], params.sequences.key_lengths + i, true); });
    }
    // Returns true if this thread's lengths have not changed, once the second read has arrived.
    __device__ bool was_right() const
    {
        // Equivalent to the loop below. It keeps the code of images of other targets, which were not run again since.
        if constexpr (LENGTHS <= Traits::THREADS) return !has_length(threadIdx.x) || is_the_same(threadIdx.x);
        bool right = true;
        each_length([&](unsigned i) { right = right && is_the_same(i); });
        return right;
    }
    // Some thread has found something that is not what it was. A barrier lies between the two.
    __device__ void note_wrong() const { state.was_wrong = true; }
    __device__ bool was_wrong() const { return state.was_wrong; }

    // A word that the CTA may use between two barriers, and one of the last warp: how many CTAs had no more use for semaphores before
    // this one.
    __device__ unsigned& scratch() const { return state.scratch[0]; }
    __device__ unsigned& left_before() const { return state.left_before; }

    // The next segment.
    __device__ Segment next()
    {
        Segment segment;
        segment.batch = Segment::END;
        Sequence& sequence = state.sequence;
        // Ends for good if lengths have shrunk meanwhile.
        while (true) {
            if (state.at >= state.end) return segment;
            if (!state.sequence_is_known) sequence = sequence_of(state.batch);
            state.sequence_is_known = true;
            if (state.at - state.base < sequence.units()) break;
            state.base += sequence.units();
            state.sequence_is_known = !has_lengths();
            if (++state.batch >= params.sequences.batch) state.end = state.at;
        }
        const unsigned at = state.at, base = state.base;
        const unsigned tile = sequence.tiles > 1 ? (at - base) / sequence.tile_units : 0, unit = at - base - tile * sequence.tile_units;
        segment.batch = state.batch;
        unsigned head = tile; // among those of this lane
        segment.first_query = segment.first_head = 0;
        if (sequence.row_tiles > 1) {
            head = tile / sequence.row_tiles;
            const int first_row = (tile - head * sequence.row_tiles) * Traits::BLOCK_M;
            segment.first_query = first_row / group;
            segment.first_head = first_row - segment.first_query * group;
        }
        segment.kv_head = head * lanes() + lane();
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

    // Keys are cut at multiples of a length, so that no part depends on who computes it. Then the planner asks for an image of any batch.
    __device__ bool has_splits() const { return Traits::has(FEATURE_PACKED) && params.work.keys_per_split != 0; }
    // The CTAs that have a part of the tile.
    struct Owners {
        unsigned first, last;
    };
    __device__ Owners owners(const Segment& of) const
    {
        return {of.tile_unit / each, min((of.tile_unit + of.tile_units - 1) / each, ctas() - 1)};
    }
    // Parts that one CTA adds up, the last to come of those that leave them: all of a tile. Where these are many, one after the other would
    // take longer than reading the keys, so each group of neighbouring CTAs has a sum first, and the last of all groups adds up these.
    struct Turn {
        unsigned first, others; // CTAs that have a part, or a sum: so many after the first
        unsigned semaphore;     // of this CTA: they count here who has come
        bool adds_sums;         // of groups
        bool leaves_sum;        // with the CTA `semaphore`; otherwise the sum is the tile's
    };
    __device__ Turn first_turn(Owners by) const
    {
        const unsigned others = by.last - by.first;
        if (!adds_groups() || has_splits() || others < 2 * group_ctas()) return {by.first, others, by.first, false, false};
        // CTAs other than a tile's first and last have parts of no other tile, so that a semaphore and a place of theirs are free.
        const unsigned group = (cta() - by.first) / group_ctas(), first = by.first + group * group_ctas();
        return {first, min(group_ctas() - 1, by.last - first), by.first + 1 + group, false, true};
    }
    __device__ Turn turn_of_sums(Owners by) const { return {by.first + 1, (by.last - by.first) / group_ctas(), by.first, true, false}; }
    __device__ unsigned semaphore(const Turn& turn) const { return turn.semaphore * lanes() + lane(); }
    __device__ int parts(const Segment& of, const Turn& turn) const { return has_splits() ? of.tile_units : turn.others + 1; }
    // Where part `index` of a turn lies. Without splits a CTA has two places: for its last tile and for its first, or for a group's sum.
    __device__ unsigned place(const Segment& of, const Turn& turn, int index) const
    {
        if (has_splits()) return place_of_unit(min(of.tile_unit + index, state.units - 1));
        return turn.adds_sums ? place_of_sum(turn.first + index) : place_of_cta(of, turn.first + index);
    }
    __device__ unsigned place_of_sum(unsigned cta) const { return abi::CTA_PARTS * (cta * lanes() + lane()) + 1; }
    __device__ unsigned own_place(const Segment& of) const { return has_splits() ? place_of_unit(of.unit) : place_of_cta(of, cta()); }
    // Returns true if `of` is this CTA's last segment of its tile.
    __device__ bool is_last_here(const Segment& of) const
    {
        return of.unit + of.units == min(of.tile_unit + of.tile_units, (cta() + 1) * each);
    }

  private:
    static constexpr int LOG_BLOCK_N = log2_of(Traits::BLOCK_N);
    static_assert(1 << LOG_BLOCK_N == Traits::BLOCK_N, "units are powers of two");
    // Parts are added up in groups only where they are largest; the code of other kernels stays the same.
    __device__ static constexpr bool adds_groups() { return Traits::HEAD_DIM > 256; }
    __device__ static constexpr unsigned group_ctas() { return 16; }

    // The units of work of one sequence.
    struct Sequence {
        Extent q, k;
        int first_key, end_key; // that any of its queries sees
        int first_unit;
        unsigned tile_units;
        unsigned row_tiles;
        unsigned tiles;

        __device__ Sequence() : q{}, k{}, first_key(0), end_key(0), first_unit(0), tile_units(0), row_tiles(0), tiles(0) {}
        __device__ Sequence(const Share& share, Extent q, Extent k) : q(q), k(k)
        {
            const Mask mask(share.params.scoring, q.len, k.len);
            first_key = mask.first_key(0);
            end_key = max(mask.end_key(0, q.len), first_key);
            first_unit = first_key >> share.unit_log;
            const int end_unit = (end_key + (1 << share.unit_log) - 1) >> share.unit_log;
            tile_units = max(end_unit - first_unit, 1);
            row_tiles = ((unsigned)q.len * share.group + Traits::BLOCK_M - 1) / Traits::BLOCK_M;
            tiles = row_tiles * quotient(share.params.kv_heads, share.lanes());
        }
        __device__ unsigned units() const { return tiles * tile_units; }
    };
    // Number of sequences whose lengths are kept: one for each thread, or 32 where the rows of a tile are those of all warps and take most
    // of the 99 KB that a small GPU has. Steps of decoding have more: 256 sequences on four warps took 1.4% longer where they were not
    // read ahead (docs/notebook/decode.md, "Lengths of many sequences").
    static constexpr int LENGTHS = Traits::KEEPS_MANY_LENGTHS ? 512 : Traits::BLOCK_M < 16 * Traits::WARPS ? 32 * Traits::WARPS : 32;
    // In shared memory: registers are for what all threads need.
    struct State {
        unsigned at, end;       // the CTA's next unit, and the one after its last
        unsigned units;         // of all CTAs of this head
        int batch;              // the sequence in hand, ...
        unsigned base;          // ... its first unit ...
        Sequence sequence;      // ... and what it asks for, if that has been read
        bool sequence_is_known;
        unsigned scratch[Traits::WARPS];
        unsigned left_before;
        bool reads_ahead, was_wrong;
        // Key lengths of the first sequences as read ahead, and as read again when the previous launch had ended.
        int lengths[LENGTHS], lengths_again[LENGTHS];
    };

    // Heads that are read at the same time, CTAs per head, this CTA's head, and its index among that head's CTAs. They are computed where
    // they are used, which leaves registers to the loop over the keys.
    __device__ unsigned lanes() const { return params.work.side_by_side; }
    __device__ unsigned ctas() const { return quotient(anew(gridDim.x), lanes()); }
    __device__ unsigned cta() const { return quotient(anew(blockIdx.x), lanes()); }
    __device__ unsigned lane() const { return blockIdx.x - cta() * lanes(); }

    // The CTA's units. The last CTAs may have fewer than the others, or none.
    struct Range {
        unsigned begin, end;
    };
    __device__ Range shared_evenly(unsigned total, unsigned tile_units = 1)
    {
        const unsigned ctas = this->ctas();
        each = max((total + ctas - 1) / ctas, 1u);
        // Rather whole tiles of `tile_units`, which need no adding up, if a few CTAs without work are all it costs.
        const unsigned whole = (each + tile_units - 1) / tile_units * tile_units;
        if (whole - each <= each / 24) each = whole;
        const unsigned begin = min(cta() * each, total);
        return {begin, min(begin + each, total)};
    }
    __device__ unsigned place_of_cta(const Segment& of, unsigned cta) const
    {
        return abi::CTA_PARTS * (cta * lanes() + lane()) + (cta * each < of.tile_unit);
    }
    __device__ unsigned place_of_unit(unsigned unit) const { return unit * lanes() + lane(); }

    // Lengths and offsets of a sequence, from the host or the device.
    __device__ bool has_lengths() const { return Traits::has_lengths() && reads_lengths(params.sequences); }
    __device__ static const int* offsets(const int* offsets) { return Traits::has(FEATURE_PACKED) ? offsets : nullptr; }
    __device__ static const int* lengths(const int* lengths) { return Traits::has(FEATURE_DEVICE_LENGTHS) ? lengths : nullptr; }
    __device__ static Extent queries(const Sequences& all, int batch)
    {
        return extent_of(offsets(all.query_offsets), lengths(all.query_lengths), all.query_len, all.query_rows, batch);
    }
    __device__ static Extent keys(const Sequences& all, int batch)
    {
        return extent_of(offsets(all.key_offsets), lengths(all.key_lengths), all.key_len, all.key_rows, batch);
    }
    __device__ bool has_length(int batch) const
    {
        return Traits::has_lengths() && params.sequences.key_lengths && batch < params.sequences.batch;
    }
    __device__ bool is_the_same(unsigned batch) const
    {
        return clamped_length(state.lengths_again[batch], params.sequences.key_len) == state.lengths[batch];
    }
    // Calls `work` with the number of each of this thread's sequences that has a length.
    template <class Work> __device__ void each_length(Work work) const
    {
        if constexpr (LENGTHS <= Traits::THREADS) {
            if (has_length(threadIdx.x)) work(threadIdx.x);
        } else {
#pragma unroll 1
            for (unsigned i = threadIdx.x; has_length(i); i += Traits::THREADS) work(i);
        }
    }

    struct RunningSum {
        unsigned to_here; // this thread's value and those of all threads before it
        unsigned all;
    };
    // THREADS sequences at a time, twice: to add up their units, and to find the one that has this CTA's first. The first THREADS are
    // read once, and so are those whose lengths are kept.
    __device__ void find_among_lengths()
    {
        const int sequences = params.sequences.batch;
        Sequence own;
        const RunningSum own_sum = read_lengths(0, own);
        if (threadIdx.x == 0) {
            state.sequence = own;
            state.base = own.units();
        }
        unsigned total = own_sum.all;
#pragma unroll 1
        for (int first = Traits::THREADS; first < sequences; first += Traits::THREADS) {
            Sequence other;
            total += read_lengths(first, other).all;
        }
        __syncthreads(); // for the first sequence
        const bool alike = total != 0 && total == sequences * state.base; // or they add up to as much
        const Range range = shared_evenly(total, alike ? state.sequence.tile_units : 1);
        __syncthreads(); // it has been read
        if (threadIdx.x == 0) {
            state.at = range.begin;
            state.end = range.end;
            state.units = total;
            state.sequence_is_known = false;
            // These stay if lengths have shrunk since.
            state.batch = sequences - 1;
            state.base = range.begin;
        }
        __syncthreads();
        find(range.begin, 0, own, own_sum, 0);
        unsigned before = own_sum.all;
#pragma unroll 1
        for (int first = Traits::THREADS; first < sequences; first += Traits::THREADS) {
            Sequence other;
            const RunningSum sum = read_lengths(first, other, true);
            find(range.begin, first, other, sum, before);
            before += sum.all;
        }
        __syncthreads();
    }
    // Computes the work of a sequence from its lengths: those kept in shared memory, or else those in device memory.
    __device__ Sequence sequence_of(int batch) const
    {
        const Sequences& all = params.sequences;
        const bool has_length = has_lengths() && !offsets(all.key_offsets) && batch < LENGTHS;
        return Sequence(*this, queries(all, batch), has_length ? Extent{0, state.lengths[batch]} : keys(all, batch));
    }
    // Reads the work of this thread's sequence, one of THREADS from `first` on, and returns the running sum of their units. `again`: they
    // have been read before.
    __device__ RunningSum read_lengths(int first, Sequence& sequence, bool again = false) const
    {
        const int mine = first + threadIdx.x;
        sequence = {};
        const bool is_kept = LENGTHS > Traits::THREADS && again && mine < LENGTHS;
        if (mine < params.sequences.batch) {
            const Sequences& all = params.sequences;
            const Extent keys = is_kept ? Extent{0, state.lengths[mine]}
                                : all.key_lengths && !offsets(all.key_offsets) ? Extent{0, key_length_ahead(all, mine)}
                                                                                : this->keys(all, mine);
            sequence = Sequence(*this, queries(all, mine), keys);
        }
        if (mine < LENGTHS && !is_kept) state.lengths[mine] = sequence.k.len;
        return running_sum(sequence.units());
    }
    // Finds the sequence that holds `unit`, if it is this thread's. The units of these sequences follow `before` others. At most one thread
    // finds it.
    __device__ void find(unsigned unit, int first, const Sequence& sequence, RunningSum sum, unsigned before)
    {
        const unsigned end = before + sum.to_here, begin = end - sequence.units();
        if (begin > unit || unit >= end) return;
        state.batch = first + threadIdx.x;
        state.base = begin;
        state.sequence = sequence;
        state.sequence_is_known = true;
    }

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
