// From the rows' weighted values to the result: the teams' are added up in their order, and of a tile that several segments cover each
// leaves a part in the workspace, which whichever CTA comes last adds up in their order. Nobody waits, and the result does not depend
// on who was last.
//
// All of this runs once for a segment, so that fetching its instructions is most of its time: less code is faster code.
#pragma once

#include "forward/mma_rows.cuh"
#include "memory/copy.cuh"
#include "ptx/cluster.cuh"
#include "ptx/load.cuh"

namespace warptile {

template <class Traits> class Result {
  public:
    using Element = typename Traits::Element;
    using Schedule = typename Traits::Schedule;
    static constexpr int HEAD_DIM = Traits::HEAD_DIM;

    __device__ Result(const Forward& params, const MmaThread<Traits>& thread, int group)
        : params(params), thread(thread), group(group)
    {
    }

    // Writes a segment's tile, or leaves the segment's part of it; then perhaps writes the tile from all its parts. `free` bytes into
    // shared memory there is room for the team's result. `next`: the CTA's next segment, or the end.
    __device__ void finish(Schedule& schedule, const Segment& of, const Rows16<Traits>& rows, int free, const Segment& next)
    {
        if constexpr (Traits::CLUSTER > 1) {
            leave(of, rows, Traits::RESULT_IN_RING ? thread.stage_at(0) : Traits::RESULTS_AT + thread.team() * Traits::RESULT_BYTES);
            add_up_cluster(schedule, of);
        } else {
            leave(of, rows, Traits::RESULT_IN_RING ? free : Traits::RESULTS_AT + thread.team() * Traits::RESULT_BYTES);
            add_up(schedule, of, next.is_end());
        }
    }

    // Lengths that change during the launch may leave semaphores above 0, so the last CTA to use them clears them. Each CTA counts itself
    // as soon as it needs no semaphore any more, and checks at its end whether it was the last. Its last warp waits for that answer while
    // the others go on.
    __device__ void leave_semaphores(const Schedule& schedule) const
    {
        if (leaves_semaphores() && thread.lane == 0)
            schedule.left_before() = increment_and_wrap_relaxed(params.work.counter, gridDim.x - 1);
    }
    // Calls `leave_semaphores` before the last segment `of`, if that segment needs no semaphore.
    __device__ void leave_semaphores_early(const Schedule& schedule, const Segment& of) const
    {
        if (!asks_for_parts(schedule, of)) leave_semaphores(schedule);
    }
    __device__ void reset_semaphores(const Schedule& schedule) const
    {
        if (!leaves_semaphores()) return;
        __syncwarp();
        if (schedule.left_before() != gridDim.x - 1) return;
#pragma unroll 1
        for (unsigned cta = thread.lane; cta < gridDim.x; cta += 32) params.work.semaphores[cta] = 0;
    }

    // At a CTA's end, so that none ends while others read its shared memory: every thread arrives and waits twice, when its part is there
    // and when it has read the others'. One that had no tile counts as come all the same: whether there is one may change on the device
    // while clusters of the same tile ask.
    __device__ void leave_cluster(const Schedule& schedule) const
    {
        if (!has_read) {
            cluster_arrive();
            cluster_wait();
            cluster_arrive();
            if (threadIdx.x == 0 && schedule.clusters() > 1)
                increment_and_wrap(params.work.semaphores + schedule.semaphore(), schedule.clusters() - 1);
        }
        cluster_wait();
    }

  private:
    __device__ bool leaves_semaphores() const
    {
        return Traits::has_lengths() && thread.warp == Traits::WARPS - 1 && reads_lengths(params.sequences);
    }
    // Returns true if this segment completes the CTA's part of a shared tile, so that the parts of the other CTAs are to be checked for.
    __device__ static bool asks_for_parts(const Schedule& schedule, const Segment& of)
    {
        return !of.is_whole_tile() && schedule.is_last_here(of);
    }
    __device__ int existing_rows(const Segment& of) const
    {
        return min(Traits::BLOCK_M, (of.q.len - of.first_query) * group - of.first_head);
    }

    // --- In shared memory --------------------------------------------------------------------------------------------------

    __device__ RowSum& sum_of(int team, int row) const
    {
        return reinterpret_cast<RowSum*>(thread.shared + Traits::SUMS_AT)[team * Traits::BLOCK_M + row];
    }
    __device__ float& last_term_at(int row) const { return reinterpret_cast<float*>(thread.shared + Traits::SINKS_AT)[row]; }
    __device__ float last_term_of_row(int row) const { return Traits::has(LAST_TERM_FEATURES) ? last_term_at(row) : negative_infinity(); }
    // Bytes into shared memory at which a team leaves its result.
    __device__ int& result_of(int team) const { return reinterpret_cast<int*>(thread.shared + Traits::PLACES_AT)[team]; }
    // Bytes of a result's row that belong to one warp; with two column parts each warp has half of the columns.
    __device__ static constexpr int part_bytes() { return HEAD_DIM / Traits::column_parts() * (int)sizeof(float); }
    // Bytes into a result of four columns of a row, swapped like the chunks of a row of keys.
    __device__ static int result_offset(int row, int column4)
    {
        return row * HEAD_DIM * (int)sizeof(float) + MmaThread<Traits>::swizzled(row, column4);
    }

    // The team's result. Of a row that has seen no key only its sum of 0 is left, which keeps others from reading more.
    __device__ void leave(const Segment& of, const Rows16<Traits>& rows, int result) const
    {
        const int existing = existing_rows(of);
        const int lane = anew(thread.lane);
        if (lane == 0) result_of(thread.team()) = result; // the same of all its warps
        const bool leaves_sums = thread.column_part() == 0;
        if (Traits::has(LAST_TERM_FEATURES) && leaves_sums && thread.team() == 0 && lane < FRAGMENT_ROWS)
            last_term_at(rows.first_row() + lane) = rows.last_term();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const RowSum sum = rows.sum(half);
            const int row = rows.row(half, lane);
            if (row >= existing) continue;
            if (leaves_sums && lane % 4 == 0) sum_of(thread.team(), row) = sum;
            if (sum.saw_no_key()) continue;
#pragma unroll
            for (int i = 0; i < Rows16<Traits>::COLUMN_TILES; i++)
                store_two(thread.address_of(result) + thread.column_part() * part_bytes() + result_offset(row, Traits::Keys::column4(i, lane)) +
                              Traits::Keys::second_two(i, lane) * (int)sizeof(float2),
                          rows.columns(half, i));
        }
    }

    // --- Adding up ---------------------------------------------------------------------------------------------------------

    __device__ void add_up(Schedule& schedule, const Segment& of, bool is_last)
    {
        if constexpr (copies_parts()) return add_up_copies(schedule, of, is_last);
        const bool asks = asks_for_parts(schedule, of);
        __syncthreads(); // the teams' results
        add_up_teams(schedule, of, of.is_whole_tile());
        // They have been read, before keys come to where they lie; or the part is written. The next segment's are left behind a barrier.
        if (Traits::RESULT_IN_RING || asks) __syncthreads();
        if (!asks) return;
        const auto owners = schedule.owners(of);
        auto turn = schedule.first_turn(owners);
#pragma unroll 1
        while (true) {
            const bool comes_last = this->comes_last(schedule, schedule.semaphore(turn), turn.others);
            const bool continues = comes_last && turn.leaves_sum;
            if (is_last && !continues) leave_semaphores(schedule);
            if (comes_last) add_up_parts(schedule, of, turn);
            if (!continues) return;
            __syncthreads(); // the sum
            turn = schedule.turn_of_sums(owners);
        }
    }

    // Returns true if parts are copied to the place of the teams' results, those of a few rows below each other. This takes one round trip
    // to L2 for all of them, and the same instructions add them up (docs/notebook/decode.md, "Parts as if they were teams'"). As many are
    // added at once as elsewhere, so that the bits are the same.
    __device__ static constexpr bool copies_parts()
    {
        return Schedule::SHARES_KEYS && Traits::TEAM_WARPS == 1 && Traits::TEAMS == together() && !Traits::RESULT_IN_RING && !Traits::has(FEATURE_PACKED);
    }
    __device__ void add_up_copies(Schedule& schedule, const Segment& of, bool is_last)
    {
        const bool asks = asks_for_parts(schedule, of);
        const int rows = existing_rows(of), count = rows * ACROSS;
        float* const part = part_at(schedule.own_place(of));
        bool leaves_part = !of.is_whole_tile(), are_parts = false;
        int end_row = 0; // of the parts' rows, if these are added up
        __syncthreads(); // the teams' results
#pragma unroll 1
        while (true) {
#pragma unroll 1
            for (int i = anew(threadIdx.x); i < count; i += Traits::THREADS) {
                const int row = i / ACROSS, column4 = i % ACROSS;
                Partial all;
                int at = row;
#pragma unroll 1
                do {
                    add_teams(all, at, column4);
                    at += rows;
                } while (at < end_row);
                if (leaves_part)
                    leave_part(part, row, column4, all, column4 == 0);
                else
                    write(of, row, column4, all.values, end_of(all.row, last_term_of_row(row)));
            }
            if (!asks) return;
            __syncthreads(); // the part is written, or the parts have been read: the next segment's results may come
            if (are_parts) return;
            const auto turn = schedule.first_turn(schedule.owners(of));
            const bool comes_last = this->comes_last(schedule, schedule.semaphore(turn), turn.others);
            if (is_last) leave_semaphores(schedule);
            if (!comes_last) return;
            const int parts = schedule.parts(of, turn);
            end_row = (parts + Traits::TEAMS - 1) / Traits::TEAMS * rows;
            if (end_row > Traits::BLOCK_M) return add_up_parts(schedule, of, turn);
            copy_parts(schedule, of, turn, parts, rows);
            leaves_part = false;
            are_parts = true;
        }
    }
    // Each warp those that its team's place is for: parts `warp`, `warp` + TEAMS, ... Behind a barrier they are there.
    template <class Turn> __device__ void copy_parts(const Schedule& schedule, const Segment& of, const Turn& turn, int parts, int rows) const
    {
        static_assert(2 * Traits::BLOCK_M <= 32, "a lane for each word of the rows' maxima and sums");
        const int lane = anew(thread.lane), team = thread.warp;
        const unsigned result = thread.address_of(Traits::RESULTS_AT + team * Traits::RESULT_BYTES);
        int first_row = 0;
#pragma unroll 1
        for (int first = 0; first < parts; first += Traits::TEAMS) {
            const int index = first + team;
            if (index < parts) {
                const float* const part = part_at(schedule.place(of, turn, index));
#pragma unroll 1
                for (int i = lane; i < rows * ACROSS; i += 32)
                    cp_async_16(result + result_offset(first_row + i / ACROSS, i % ACROSS), part + 4 * i, true);
                if (lane < 2 * rows)
                    cp_async_4(reinterpret_cast<float*>(&sum_of(team, first_row)) + lane, part + Traits::BLOCK_M * HEAD_DIM + lane, true);
            } else if (lane < rows) {
                sum_of(team, first_row + lane) = {negative_infinity(), 0};
            }
            first_row += rows;
        }
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
    }

    static constexpr int ACROSS = HEAD_DIM / 4; // threads

    // Four columns of a row: the sum of the teams' results.
    __device__ Partial of_teams(int row, int column4) const
    {
        Partial all;
        add_teams(all, row, column4);
        return all;
    }
    __device__ void add_teams(Partial& all, int row, int column4) const
    {
        RowSum sums[Traits::TEAMS];
        float4 columns[Traits::TEAMS];
#pragma unroll
        for (int team = 0; team < Traits::TEAMS; team++) {
            sums[team] = sum_of(team, row);
            columns[team] = *reinterpret_cast<const float4*>(thread.shared + result_of(team) + result_offset(row, column4));
        }
        all.add(sums, columns);
    }

    // Adds up the parts of the cluster's CTAs. Each CTA writes some of the rows, or leaves their sums to the last of the tile's clusters.
    __device__ void add_up_cluster(const Schedule& schedule, const Segment& of)
    {
        __syncthreads(); // the teams' results
        const int count = existing_rows(of) * ACROSS, to_sums = Traits::BLOCK_M * HEAD_DIM * (int)sizeof(float);
        unsigned char* const own_part = thread.shared + Traits::part_in_cluster_at();
        const int clusters = schedule.clusters();
        const int first = (thread.warp * Traits::CLUSTER + blockIdx.x % Traits::CLUSTER) * 32 + anew(thread.lane);
        constexpr int STEP = Traits::THREADS * Traits::CLUSTER;
#pragma unroll 1
        for (int i = anew(threadIdx.x); i < count; i += Traits::THREADS) {
            const int row = i / ACROSS, column4 = i % ACROSS;
            const Partial all = of_teams(row, column4);
            reinterpret_cast<float4*>(own_part)[i] = {all.values[0], all.values[1], all.values[2], all.values[3]};
            if (column4 == 0) reinterpret_cast<RowSum*>(own_part + to_sums)[row] = all.row;
        }
        cluster_arrive();
        cluster_wait();
        const unsigned parts = thread.address_of(Traits::part_in_cluster_at());
#pragma unroll 1
        for (int i = first; i < count; i += STEP) {
            const int row = i / ACROSS, column4 = i % ACROSS;
            RowSum sums[Traits::CLUSTER];
            float4 columns[Traits::CLUSTER];
#pragma unroll
            for (int cta = 0; cta < Traits::CLUSTER; cta++) {
                const unsigned part = address_in_cta(parts, cta);
                columns[cta] = load_four_of_cluster(part + i * (int)sizeof(float4));
                const float2 sum = load_two_of_cluster(part + to_sums + row * (int)sizeof(RowSum));
                sums[cta] = {sum.x, sum.y};
            }
            Partial all;
            all.add(sums, columns);
            if (clusters == 1)
                write(of, row, column4, all.values, end_of(all.row, last_term_of_row(row)));
            else
                leave_part(part_at(schedule.own_place()), row, column4, all, column4 % 32 == 0);
        }
        cluster_arrive();
        has_read = true;
        if (clusters == 1) return;
        __syncthreads(); // all of this CTA's share is in the workspace
        if (!comes_last(schedule, schedule.semaphore(), clusters - 1)) return;
#pragma unroll 1
        for (int i = first; i < count; i += STEP) {
            const int row = i / ACROSS, column4 = i % ACROSS;
            Partial all[1];
            add_parts<1, together()>(all, i, count, 0, clusters, [&](int index) { return schedule.place(index); });
            write(of, row, column4, all[0].values, end_of(all[0].row, last_term_of_row(row)));
        }
    }

    // A row and four of its columns for each thread.
    __device__ void add_up_teams(const Schedule& schedule, const Segment& of, bool whole) const
    {
        float* const part = part_at(schedule.own_place(of));
        const int count = existing_rows(of) * ACROSS;
#pragma unroll 1
        for (int i = anew(threadIdx.x); i < count; i += Traits::THREADS) {
            const int row = i / ACROSS, column4 = i % ACROSS;
            const Partial all = of_teams(row, column4);
            if (whole) {
                write(of, row, column4, all.values, end_of(all.row, last_term_of_row(row)));
            } else {
                leave_part(part, row, column4, all, column4 == 0);
            }
        }
    }

    __device__ static void leave_part(float* part, int row, int column4, const Partial& all, bool leaves_sum)
    {
        __stcg(reinterpret_cast<float4*>(part + row * HEAD_DIM) + column4, {all.values[0], all.values[1], all.values[2], all.values[3]});
        if (leaves_sum) __stcg(reinterpret_cast<float2*>(part + Traits::BLOCK_M * HEAD_DIM) + row, {all.row.max, all.row.sum});
    }

    // Loads that a thread has in flight. More loads mean more registers, and more code to fetch that runs only once.
    __device__ static constexpr int together() { return Traits::HOLDS_QUERIES ? 8 : 4; }
    // Sums parts [0, parts), PARTS at a time, for up to ITEMS groups of four columns: group `i` of `count`, i + THREADS, and so on.
    // `place(index)` is the place of a part. The order of additions is that of a sum with `before` more (empty) parts in front.
    template <int ITEMS, int PARTS, class Place>
    __device__ void add_parts(Partial (&all)[ITEMS], int i, int count, int before, int parts, Place place) const
    {
#pragma unroll 1
        for (int index = -before; index < parts; index += PARTS) {
            RowSum sums[ITEMS][PARTS];
            float4 columns[ITEMS][PARTS];
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
                const int one = index + j;
                const bool exists = one >= 0 && one < parts;
                const float* const part = part_at(place(exists ? one : 0));
#pragma unroll
                for (int item = 0; item < ITEMS; item++) {
                    const int next = i + item * Traits::THREADS, at = item == 0 || next < count ? next : i;
                    columns[item][j] = load_l2(reinterpret_cast<const float4*>(part) + at);
                    const float2 sum = load_l2(reinterpret_cast<const float2*>(part + Traits::BLOCK_M * HEAD_DIM) + at / ACROSS);
                    sums[item][j] = {exists ? sum.x : negative_infinity(), exists ? sum.y : 0};
                }
            }
#pragma unroll
            for (int item = 0; item < ITEMS; item++) all[item].add(sums[item], columns[item]);
        }
    }

    // The parts of a turn are added up, and the tile is written or the sum is left. With splits parts are counted from key 0, so that it
    // does not matter at which of them a tile begins.
    template <class Turn> __device__ void add_up_parts(const Schedule& schedule, const Segment& of, const Turn& turn) const
    {
        const int parts = schedule.parts(of, turn), before = schedule.has_splits() ? of.first_split % together() : 0;
        if constexpr (has_many_rows()) {
            // In the same order: few parts are one turn either way.
            constexpr int FEW = 2;
            if (parts <= FEW && !schedule.has_splits()) return add_up_items<together() / FEW, FEW>(schedule, of, turn, 0, parts);
        }
        add_up_items<1, together()>(schedule, of, turn, before, parts);
    }
    // Returns true for tiles of many rows, which take the threads several passes with a wait for L2 in each; with few parts they load
    // several rows at once instead. Not where two CTAs share a multiprocessor: there one reads while the other adds up.
    __device__ static constexpr bool has_many_rows()
    {
        return Traits::SHARED_BYTES > Traits::LARGE_GPU_BYTES / 2 && Traits::HOLDS_QUERIES && Traits::BLOCK_M > FRAGMENT_ROWS;
    }

    template <int ITEMS, int PARTS, class Turn>
    __device__ void add_up_items(const Schedule& schedule, const Segment& of, const Turn& turn, int before, int parts) const
    {
        const int count = existing_rows(of) * ACROSS;
#pragma unroll 1
        for (int first = anew(threadIdx.x); first < count; first += ITEMS * Traits::THREADS) {
            Partial all[ITEMS];
            add_parts<ITEMS, PARTS>(all, first, count, before, parts, [&](int index) { return schedule.place(of, turn, index); });
#pragma unroll
            for (int item = 0; item < ITEMS; item++) {
                const int i = first + item * Traits::THREADS, row = i / ACROSS, column4 = i % ACROSS;
                if (ITEMS > 1 && i >= count) continue;
                if (turn.leaves_sum)
                    leave_part(part_at(schedule.place_of_sum(turn.semaphore)), row, column4, all[item], column4 == 0);
                else
                    write(of, row, column4, all[item].values, end_of(all[item].row, last_term_of_row(row)));
            }
        }
    }

    // Returns true if the parts of all `others` have arrived. The last arrival resets the semaphore to 0.
    __device__ bool comes_last(const Schedule& schedule, unsigned semaphore, unsigned others) const
    {
        if (others == 0) return true;
        unsigned& arrived = schedule.scratch();
        if (threadIdx.x == 0) {
            // Releases what the other threads wrote too: they have passed a barrier since.
            arrived = increment_and_wrap(params.work.semaphores + semaphore, others);
        }
        __syncthreads();
        const bool last = arrived == others;
        __syncthreads(); // it has been read
        return last;
    }

    // A part in the workspace: the rows' outputs, then their maxima and sums.
    static_assert(sizeof(RowSum) == abi::PART_SUMS * sizeof(float), "as the host makes room for it");
    __device__ float* part_at(unsigned place) const
    {
        return params.work.partials + (unsigned long long)place * (Traits::BLOCK_M * (HEAD_DIM + abi::PART_SUMS));
    }

    // --- Writing -----------------------------------------------------------------------------------------------------------

    // A row's lse, and the inverse of its sum, by which its columns are multiplied.
    struct End {
        float inverse, lse;
    };
    __device__ static End end_of(RowSum sum, float last_term)
    {
        const float keep = last_term == negative_infinity() ? 1.0f : join_last_term(sum.max, sum.sum, last_term);
        if (sum.sum == 0) return {0, negative_infinity()};
        return {keep * reciprocal_approximate(sum.sum), (sum.max + __log2f(sum.sum)) * LN_2};
    }

    // Four columns of a row, and with the first its lse.
    __device__ void write(const Segment& of, int row_of_tile, int column4, const float (&values)[4], End end) const
    {
        const Row row(of, group, row_of_tile);
        const long long to_row = of.q.first + row.query;
        if (4 * column4 < params.value_dim) {
            Element* const to = static_cast<Element*>(params.out.address) + of.batch * params.out.batch +
                                row.head * params.out.head + to_row * params.out.row;
            reinterpret_cast<uint2*>(to)[column4] = {narrow2<Element>(values[0] * end.inverse, values[1] * end.inverse),
                                                     narrow2<Element>(values[2] * end.inverse, values[3] * end.inverse)};
        }
        if (column4 == 0 && params.lse)
            params.lse[of.batch * params.lse_batch + row.head * params.lse_head + to_row] = end.lse;
    }

    const Forward& params;
    const MmaThread<Traits> thread;
    const int group; // query heads a key/value head
    bool has_read = false; // the parts of its cluster
};

} // namespace warptile
