// Loads of the kernels on mma.sync: queries one segment ahead, and keys and values of each team as far ahead as its ring has stages.
#pragma once

#include "forward/mma_layout.cuh"
#include "memory/copy.cuh"
#include "memory/keys.cuh"
#include "ptx/prefetch.cuh"

namespace warptile {

template <class Traits> class Ring {
  public:
    using Element = typename Traits::Element;
    using KeyElement = typename Traits::Keys::Element;

    // The CTA meets before the first group is waited for.
    __device__ Ring(const Forward& params, const MmaThread<Traits>& thread) : params(params), thread(thread)
    {
        if constexpr (Traits::TEAM_BARRIERS)
            if (threadIdx.x % Traits::TEAM_THREADS == 0) barrier_init(team_barrier(), Traits::TEAM_THREADS);
    }

    // Before another ring of the CTA begins. All threads have met since the last group.
    __device__ static void end(const MmaThread<Traits>& thread)
    {
        if constexpr (Traits::TEAM_BARRIERS)
            if (threadIdx.x % Traits::TEAM_THREADS == 0) barrier_invalidate(team_barrier(thread));
    }

    // Fills the ring as far as it is known what comes next; segments before `number` have been computed, and those up to `described` are
    // known. One stage is left free for the result of segment `number` if it needs one.
    __device__ void fill(int number, int described)
    {
#pragma unroll 1
        while (can_load(number, described)) {
            if (load_block < load_end) {
                load_group();
            } else {
                const bool pages_are_there = loading == NOTHING_BUT_PAGES;
                loading = max(pages_are_there ? 0 : loading + 1, number);
                start_loading(loading, pages_are_there);
            }
        }
    }
    __device__ bool can_load(int number, int described) const
    {
        return under_way < Traits::STAGES - (Traits::RESULT_IN_RING && Traits::CLUSTER == 1 && loading > number) &&
               (load_block < load_end || loading < described);
    }

    // Waits for the oldest group, which lies at the stage that this returns. The team's. Where stages are freed late, that of the group
    // before is free then.
    __device__ int wait_for_group()
    {
        if constexpr (Traits::frees_late())
            if (in_hand) {
                under_way--;
                stage = stage + 1 == Traits::STAGES ? 0 : stage + 1;
            }
        wait_for_all_but(under_way - 1 + (since_segment < under_way));
        sync_team();
        if constexpr (Traits::frees_late()) in_hand = true;
        return thread.stage_at(stage);
    }
    __device__ void release_group()
    {
        sync_team(); // all have read it
        under_way--;
        stage = stage + 1 == Traits::STAGES ? 0 : stage + 1;
        if constexpr (Traits::frees_late()) in_hand = false;
    }
    // The stage that would be loaded next, which is free when a segment ends.
    __device__ int free_stage() const { return thread.stage_at(load_stage); }

    // Asks for what a segment needs besides its keys and values, a segment ahead: what is asked for now comes after all keys that are
    // under way. `again`: its pages are known, and these are to compare them with.
    __device__ void load_segment(int number, int group, bool again)
    {
        load_first_pages(number, again);
        load_queries(number, group);
        cp_async_commit();
        since_segment = 0;
        if (again) loading = NOTHING_BUT_PAGES;
    }
    // `load_segment` for segment 0 when it is prepared early and its pages are known. `ask_again` reads again what was read ahead.
    template <class Ask> __device__ void load_segment_early(int number, int group, bool again, Ask ask_again)
    {
        load_queries_by_all(number, group);
        if (again) ask_again();
        if (number > 0 || again) load_first_pages(number, again);
        if (number == 0) start_loading(loading = 0, true);
        cp_async_commit();
        since_segment = 0;
    }
    // Brings what the first groups of segment 0 will be loaded from to L2. The second one keeps the first waiting, so it is asked for
    // where there are many: by measurement it gains 0.2 to 0.5% at 62 groups and loses 0.5% at 16, 3.5% at seven (docs/notebook/decode.md).
    __device__ void prefetch_first_groups() const
    {
        constexpr int LINES = Traits::KEY_ROW_BYTES / PREFETCHED_BYTES; // of a row, if they begin where it does
        static_assert(LINES * PREFETCHED_BYTES == Traits::KEY_ROW_BYTES, "whole lines");
        const Segment& of = thread.segment(0);
        if (of.is_end()) return;
        const PlacedRows rows(params, of.batch, of.kv_head, of.k);
        const KeyElement* const keys = static_cast<const KeyElement*>(params.k.address);
        const KeyElement* const values = static_cast<const KeyElement*>(params.v.address);
        const int* const pages = pages_of(1, 0);
        const int first = first_key(thread.first_block(of));
        constexpr int MANY = 32;
        const int groups = of.end_key - of.first_key > MANY * Traits::BLOCK_N ? Traits::STAGES : 1;
#pragma unroll 1
        for (int i = thread.lane; i < groups * Traits::WARP_KEYS * LINES; i += 32) {
            const int row = i / LINES, column = i % LINES * (PREFETCHED_BYTES / (int)sizeof(KeyElement));
            const int key = first + row / Traits::WARP_KEYS * Traits::BLOCK_N + row % Traits::WARP_KEYS;
            if (key >= of.end_key) continue;
            const int page = rows.is_paged() ? pages[row] : 0;
            if (column < params.head_dim) prefetch_to_l2(keys + rows.offset(params, params.k, key, page) + column);
            if (column < params.value_dim) prefetch_to_l2(values + rows.offset(params, params.v, key, page) + column);
        }
    }
    // Waits for what the last call of it has asked for.
    __device__ void wait_for_segment() const { wait_for_all_but(since_segment); }

    // The first pages of segment 0, past L1; waits for them.
    __device__ void read_first_pages() const
    {
        each_first_page(thread.segment(0), [&](int i, const int* entry, bool exists) { pages_of(1, 0)[i] = exists ? __ldcg(entry) : 0; });
        __syncwarp();
    }
    // Returns true if the page numbers that this lane has read ahead have not changed, once the second read has arrived.
    __device__ bool was_right() const
    {
        bool right = true;
        if (is_paged() && !thread.segment(0).is_end())
#pragma unroll 1
            for (int i = thread.lane; i < FIRST_PAGES; i += 32) right = right && pages_of(1, 0)[i] == pages_of(2, 0)[i];
        return right;
    }

    // Waits for the team, and sees what it has written. Nobody is two phases behind, as each phase has all the team's arrivals. All
    // arrive: where one does for its warp, or at hardware barriers of some warps, compute-sanitizer's racecheck loses track.
    __device__ void sync_team()
    {
        if constexpr (Traits::TEAM_WARPS == 1) {
            __syncwarp();
        } else if constexpr (Traits::TEAMS == 1) {
            __syncthreads();
        } else {
            barrier_arrive(team_barrier());
            barrier_wait(team_barrier(), parity);
            parity ^= 1;
        }
    }

  private:
    using PlacedRows = KeyRows<KeyElement, Traits::has(FEATURE_PAGED), Traits::has(FEATURE_PACKED)>;
    __device__ bool is_paged() const { return Traits::has(FEATURE_PAGED) && params.pages.table; }

    // Waits until at most as many of the last groups of cp.async are under way; for some numbers, until none is.
    __device__ static void wait_for_all_but(int last)
    {
        if (last == Traits::STAGES - 1)
            cp_async_wait<Traits::STAGES - 1>();
        else if (last >= Traits::STAGES)
            cp_async_wait<Traits::STAGES>();
        else
            cp_async_wait<0>();
    }

    // The last team does, so that the others begin with the keys at once. Rows that do not exist become zeros.
    __device__ void load_queries(int number, int group) const
    {
        const Segment& of = thread.segment(number);
        if (thread.team() != Traits::TEAMS - 1 || of.is_end()) return;
        const unsigned to = thread.address_of(thread.queries_at(number));
        constexpr int WARP_ROWS = Traits::BLOCK_M / Traits::TEAM_WARPS;
        const int first_row = thread.team_warp() * WARP_ROWS;
#pragma unroll 1
        for (int i = anew(thread.lane); i < WARP_ROWS * Traits::ROW_CHUNKS; i += 32) {
            const int at = first_row + i / Traits::ROW_CHUNKS, chunk = i % Traits::ROW_CHUNKS;
            const Row row(of, group, at);
            const Element* const from = query_chunk(of, row, chunk);
            copy(to + at * Traits::ROW_BYTES + thread.swizzled(at, chunk), from,
                 row.query < of.q.len && chunk * CHUNK<Element> < params.head_dim);
        }
    }
    // Where all begin at once because the keys are in L2, a team that loads the queries alone keeps the others waiting. Of segment 0 the
    // addresses are known before the launch before has ended.
    __device__ void load_queries_by_all(int number, int group) const
    {
        constexpr int CHUNKS = Traits::BLOCK_M * Traits::ROW_CHUNKS, TURNS = (CHUNKS + Traits::THREADS - 1) / Traits::THREADS;
        const Segment& of = thread.segment(number);
        const unsigned queries = thread.address_of(thread.queries_at(number));
        const Element* from[TURNS];
        unsigned to[TURNS];
        bool valid[TURNS];
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int i = turn * Traits::THREADS + anew(threadIdx.x), at = i / Traits::ROW_CHUNKS, chunk = i % Traits::ROW_CHUNKS;
            const Row row(of, group, at);
            from[turn] = query_chunk(of, row, chunk);
            to[turn] = queries + at * Traits::ROW_BYTES + thread.swizzled(at, chunk);
            valid[turn] = row.query < of.q.len && chunk * CHUNK<Element> < params.head_dim;
            compute_here(from[turn]);
        }
        if (number == 0) grid_dependency_wait();
        if (of.is_end()) return;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
            if (CHUNKS % Traits::THREADS == 0 || turn * Traits::THREADS + (int)threadIdx.x < CHUNKS) copy(to[turn], from[turn], valid[turn]);
    }
    __device__ const Element* query_chunk(const Segment& of, const Row& row, int chunk) const
    {
        return static_cast<const Element*>(params.q.address) + of.batch * params.q.batch + row.head * params.q.head +
               (long long)(of.q.first + row.query) * params.q.row + chunk * CHUNK<Element>;
    }

    // --- Pages: what a table says of a key has to be known when the key is asked for, so it is asked for as many groups ahead as there
    // are stages, together with the group whose stage that one will take. The first ones of a segment are asked for when it is known.

    // `again`: where segment 1's will come.
    __device__ void load_first_pages(int number, bool again) const
    {
        const Segment& of = thread.segment(number);
        each_first_page(of, [&](int i, const int* entry, bool exists) {
            cp_async_4(pages_of(1 + ((number + again) & 1), 0) + i, entry, exists);
        });
    }

    __device__ unsigned team_barrier() const { return team_barrier(thread); }
    __device__ static unsigned team_barrier(const MmaThread<Traits>& thread)
    {
        return thread.address_of(Traits::BARRIERS_AT + thread.team() * BARRIER_BYTES);
    }

    // The first key of a block that this warp loads.
    __device__ int first_key(int block) const
    {
        return block * Traits::BLOCK_N + thread.first_key() + thread.team_warp() * Traits::WARP_KEYS;
    }

    static constexpr int FIRST_PAGES = Traits::STAGES * Traits::WARP_KEYS;
    template <class Visit> __device__ void each_first_page(const Segment& of, Visit visit) const
    {
        if (!is_paged() || of.is_end()) return;
        const PlacedRows rows(params, of.batch, of.kv_head, of.k);
#pragma unroll 1
        for (int i = thread.lane; i < FIRST_PAGES; i += 32) {
            const int key = first_key(thread.first_block(of) + i / Traits::WARP_KEYS) + i % Traits::WARP_KEYS;
            visit(i, rows.page_of(params, key), key < of.end_key);
        }
    }
    __device__ int* pages_of(int slot, int group) const
    {
        return reinterpret_cast<int*>(thread.shared + Traits::PAGES_AT + (slot * Traits::WARPS + thread.warp) * Traits::PAGES_BYTES) +
               group * Traits::WARP_KEYS;
    }

    __device__ void start_loading(int number, bool pages_are_there)
    {
        const Segment& of = thread.segment(number);
        load_block = load_end = 0;
        if (of.is_end()) return;
        load_block = thread.first_block(of);
        load_end = thread.end_block(of);
        if (!is_paged() || pages_are_there) return;
        wait_for_segment();
        __syncwarp();
    }

    // Rows that the segment does not have become zeros, and are not read.
    __device__ void load_group()
    {
        constexpr int LANES = Traits::KEY_ROW_CHUNKS < 32 ? Traits::KEY_ROW_CHUNKS : 32; // that copy a row
        constexpr int AT_ONCE = 32 / LANES;                                             // rows
        static_assert(Traits::WARP_KEYS % AT_ONCE == 0, "a warp loads no row of another");
        const int lane = thread.lane, chunk = lane % LANES, first_row = lane / LANES, column = chunk * CHUNK<KeyElement>;
        const int first_key = this->first_key(load_block);
        const Segment& of = thread.segment(loading); // read anew: there are few registers
        const PlacedRows rows(params, of.batch, of.kv_head, of.k);
        const int low = of.first_key - first_key, high = of.end_key - first_key;
        const int high_of_keys = column < params.head_dim ? high : 0, high_of_values = column < params.value_dim ? high : 0;
        // A lane finds one key.
        const int my_key = first_key + lane % Traits::WARP_KEYS;
        int page = 0, loaded = 0;
        if (PlacedRows::is_branchless() || rows.is_paged()) {
            loaded = load_block - thread.first_block(of);
            page = pages_of(loaded < Traits::STAGES ? 1 + (loading & 1) : 0, (unsigned)loaded % Traits::STAGES)[lane % Traits::WARP_KEYS];
        }
        const KeyElement* const my_keys = static_cast<const KeyElement*>(params.k.address) + rows.offset(params, params.k, my_key, page);
        const KeyElement* const my_values = static_cast<const KeyElement*>(params.v.address) + rows.offset(params, params.v, my_key, page);
        const int first_of_group = thread.team_warp() * Traits::WARP_KEYS;
        const unsigned to = thread.address_of(thread.stage_at(load_stage)) + first_of_group * Traits::KEY_ROW_BYTES;
        const auto place_of = [&](int row) { return to + row * Traits::KEY_ROW_BYTES + thread.swizzled_key(first_of_group + row, chunk); };
        if constexpr (Traits::loads_keys_first()) {
            const auto copy_rows = [&](const KeyElement* mine, unsigned bytes, int end) {
#pragma unroll
                for (int row = first_row; row < Traits::WARP_KEYS + first_row; row += AT_ONCE)
                    copy(place_of(row) + bytes, shuffled(mine, row) + column, row >= low && row < end);
            };
            static_assert(Traits::KEY_ROW_CHUNKS == LANES, "a chunk of a row for each lane");
            copy_rows(my_keys, 0, high_of_keys);
            copy_rows(my_values, Traits::GROUP_BYTES, high_of_values);
        } else {
#pragma unroll 4
            for (int i = 0; i < Traits::WARP_KEYS; i += AT_ONCE) {
                const int row = i + first_row;
                const unsigned at = place_of(row);
                copy(at, shuffled(my_keys, row) + column, row >= low && row < high_of_keys);
                copy(at + Traits::GROUP_BYTES, shuffled(my_values, row) + column, row >= low && row < high_of_values);
                if constexpr (Traits::KEY_ROW_CHUNKS > LANES) {
                    static_assert(Traits::KEY_ROW_CHUNKS == 2 * LANES, "two chunks of a row for each lane");
                    constexpr int BYTES = LANES * CHUNK_BYTES, COLUMNS = LANES * CHUNK<KeyElement>;
                    const bool exists = row >= low && row < high;
                    copy(at + BYTES, shuffled(my_keys, row) + column + COLUMNS, exists && column + COLUMNS < params.head_dim);
                    copy(at + Traits::GROUP_BYTES + BYTES, shuffled(my_values, row) + column + COLUMNS, exists && column + COLUMNS < params.value_dim);
                }
            }
        }
        if (PlacedRows::is_branchless() || rows.is_paged()) {
            const int later = my_key + Traits::STAGES * Traits::BLOCK_N;
            // The page number of a key that is not loaded must not be copied: its zero might overwrite the next segment's number.
            if (rows.is_paged() && lane < Traits::WARP_KEYS && later < of.end_key)
                cp_async_4(pages_of(0, (unsigned)loaded % Traits::STAGES) + lane, rows.page_of(params, later), true);
        }
        cp_async_commit();
        since_segment++;
        load_block++;
        under_way++;
        load_stage = load_stage + 1 == Traits::STAGES ? 0 : load_stage + 1;
    }

    __device__ static const KeyElement* shuffled(const KeyElement* pointer, int lane)
    {
        return reinterpret_cast<const KeyElement*>(__shfl_sync(0xffffffff, reinterpret_cast<unsigned long long>(pointer), lane));
    }

    __device__ static void copy(unsigned shared, const void* source, bool valid)
    {
        cp_async_16_once(shared, source, valid);
    }

    const Forward& params;
    const MmaThread<Traits> thread;
    static constexpr int NOTHING = -1, NOTHING_BUT_PAGES = -2; // of segment 0, read ahead
    int loading = NOTHING; // segment
    int load_block = 0, load_end = 0;
    int since_segment = 0; // groups asked for since `load_segment`
    int load_stage = 0;
    unsigned parity = 0; // of the team's barrier
    int under_way = 0; // groups
    int stage = 0;     // that is computed next, or that of the group in hand
    bool in_hand = false; // where stages are freed late: the group that was waited for last still counts as under way
};

} // namespace warptile
