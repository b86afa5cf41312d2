// Attention of few queries against many keys, at the speed of memory: the query heads that share a key/value head are the rows of one
// tile, so keys are read once for all of them, and the CTAs share the keys of all sequences evenly (work/share.cuh).
//
// Warps share nothing while they read: each has a ring of its own and takes every WARPS-th group of KEYS keys of its CTA's
// segment. At a segment's end their results are added up in the warps' order. Of a tile that several segments cover each leaves a part in
// the workspace, and whichever CTA comes last adds all of them up in their order: nobody waits, and the result does not depend on
// who was last.
#pragma once

#include "base/record.cuh"
#include "memory/copy.cuh"
#include "memory/copy_number.cuh"
#include "memory/keys.cuh"
#include "ptx/mma.cuh"
#include "rule/partial.cuh"
#include "work/share.cuh"

namespace warptile {

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_> struct DecodeTraits {
    using Element = Element_;
    static constexpr int HEAD_DIM = HEAD_DIM_;
    static constexpr int BLOCK_M = BLOCK_M_; // rows: queries and heads that share a key/value head
    static constexpr int BLOCK_N = BLOCK_N_; // keys that the warps take together
    static constexpr int WARPS = WARPS_;
    static constexpr int STAGES = STAGES_; // groups of keys, and of values, that a warp has under way
    static constexpr int MIN_CTAS = 1;
    static constexpr int K_STRIDE = 0, V_STRIDE = 0; // rows are swizzled, not padded
    static constexpr unsigned ROLE = ROLE_FORWARD, SCHEDULE = SCHEDULE_SHARED_KEYS;
    static constexpr unsigned FEATURES = FEATURE_SOFTCAP | FEATURE_ALIBI | FEATURE_SINKS | FEATURE_PACKED | FEATURE_PAGED |
                                         FEATURE_DEVICE_LENGTHS | FEATURE_NEGATIVE_SCALE | FEATURE_LSE;

    static constexpr int THREADS = 32 * WARPS;
    static constexpr int ROW_TILES = BLOCK_M / FRAGMENT_ROWS;
    static constexpr int KEYS = BLOCK_N / WARPS; // of a warp's group
    static constexpr int ROW_BYTES = HEAD_DIM * (int)sizeof(Element);
    static constexpr int ROW_CHUNKS = ROW_BYTES / CHUNK_BYTES;
    static constexpr int GROUP_BYTES = KEYS * ROW_BYTES; // of keys, and as many of values
    static constexpr int STAGE_BYTES = 2 * GROUP_BYTES;
    static constexpr int RING_BYTES = STAGES * STAGE_BYTES; // a warp's

    static_assert(sizeof(Element) == 2, "mma.sync takes f16 and bf16");
    static_assert(BLOCK_M % FRAGMENT_ROWS == 0, "a product has 16 rows");
    static_assert(BLOCK_N % (WARPS * FRAGMENT_DEPTH) == 0, "the products with the values take 16 keys at a time");
    static_assert(KEYS <= 32, "a lane finds the place of one key");
    static_assert(HEAD_DIM % 32 == 0, "keys are loaded 32 columns at a time");
    static_assert(ROW_CHUNKS % 8 == 0 && (32 % ROW_CHUNKS == 0 || ROW_CHUNKS % 32 == 0), "the swizzle, and whole rows a copy");
    // Registers hold the queries where there are enough.
    static constexpr bool HOLDS_QUERIES = ROW_TILES * HEAD_DIM <= 128;
    // A warp leaves its result in a stage of its ring if that is large enough.
    static constexpr int RESULT_BYTES = BLOCK_M * HEAD_DIM * (int)sizeof(float);
    static constexpr bool RESULT_IN_RING = RESULT_BYTES <= STAGE_BYTES;
    static constexpr int SEGMENTS = 4; // described and not yet computed: two; the others are still being read

    // Shared memory.
    static constexpr int QUERIES_AT = WARPS * RING_BYTES;
    static constexpr int QUERY_BYTES = BLOCK_M * ROW_BYTES; // twice: the next segment's are on their way
    static constexpr int RESULTS_AT = QUERIES_AT + 2 * QUERY_BYTES;
    static constexpr int SUMS_AT = RESULTS_AT + (RESULT_IN_RING ? 0 : WARPS * RESULT_BYTES);
    static constexpr int SINKS_AT = SUMS_AT + WARPS * BLOCK_M * 2 * (int)sizeof(float);
    static constexpr int SEGMENTS_AT = SINKS_AT + BLOCK_M * (int)sizeof(float);
    static constexpr int PLACES_AT = SEGMENTS_AT + SEGMENTS * (int)sizeof(Segment);
    // Numbers of pages: a warp's for as many groups as it has stages, and for the first ones of two segments.
    static constexpr int PAGES_AT = PLACES_AT + WARPS * (int)sizeof(int);
    static constexpr int PAGES_BYTES = STAGES * KEYS * (int)sizeof(int);
    static constexpr int SCRATCH_AT = PAGES_AT + 3 * WARPS * PAGES_BYTES;
    static constexpr int SHARED_BYTES = SCRATCH_AT + (int)Share<DecodeTraits>::SHARED_BYTES;
    static_assert(SEGMENTS_AT % 8 == 0 && PLACES_AT % 4 == 0);
};

template <class Traits> class Decode {
  public:
    using Element = typename Traits::Element;
    static constexpr int HEAD_DIM = Traits::HEAD_DIM, KEYS = Traits::KEYS, ROW_TILES = Traits::ROW_TILES;
    static constexpr int COLUMN_TILES = HEAD_DIM / FRAGMENT_COLUMNS, KEY_TILES = KEYS / FRAGMENT_COLUMNS;

    __device__ Decode(const Forward& params, unsigned char* shared)
        : params(params), shared(shared), group(params.heads / params.kv_heads), warp(threadIdx.x / 32),
          lane(threadIdx.x % 32), share(params, group, shared + Traits::SCRATCH_AT)
    {
        const ScoreRule rule(params.scoring, 0, 0, 0, LOG2_E);
        scale = rule.scale;
        dot_limit = rule.dot_limit();
    }

    __device__ void run()
    {
        if (!reads_lengths(params.sequences)) wait_for_predecessor(); // otherwise `share` has waited
        // Each turn describes a segment and computes the one that the turn before has described.
#pragma unroll 1
        for (int number = -1;; number++) {
            compute(number);
            if (number >= 0) finish(segment(number));
            if (segment(number + 1).is_end()) break;
        }
        if (reads_lengths(params.sequences)) reset_semaphores();
    }

  private:
    // The same number, which the compiler does not know to be: what follows from it is computed here, and not kept in registers that the
    // loop over the keys needs.
    __device__ static int anew(int x)
    {
        asm volatile("" : "+r"(x));
        return x;
    }

    // The segment whose scores are computed: the one before the last that is known.
    __device__ int computed() const { return described - 1; }
    __device__ Segment& segment(int number) const
    {
        return reinterpret_cast<Segment*>(shared + Traits::SEGMENTS_AT)[(unsigned)number % Traits::SEGMENTS];
    }
    __device__ RowSum& sum_of(int warp, int row) const
    {
        return reinterpret_cast<RowSum*>(shared + Traits::SUMS_AT)[warp * Traits::BLOCK_M + row];
    }
    __device__ float& sink_at(int row) const { return reinterpret_cast<float*>(shared + Traits::SINKS_AT)[row]; }
    // Bytes into shared memory at which a warp leaves its result.
    __device__ int& result_of(int warp) const { return reinterpret_cast<int*>(shared + Traits::PLACES_AT)[warp]; }
    __device__ int stage_at(int stage) const { return warp * Traits::RING_BYTES + stage * Traits::STAGE_BYTES; }
    __device__ unsigned address_of(int at) const { return (unsigned)__cvta_generic_to_shared(shared) + at; }

    // Blocks in which this warp's group has keys of the segment.
    __device__ int first_block(const Segment& of) const
    {
        return (of.first_key + Traits::BLOCK_N - (warp + 1) * KEYS) / Traits::BLOCK_N;
    }
    __device__ int end_block(const Segment& of) const
    {
        return of.first_key < of.end_key ? (of.end_key - warp * KEYS + Traits::BLOCK_N - 1) / Traits::BLOCK_N : 0;
    }

    // --- Loading -----------------------------------------------------------------------------------------------------------

    // Fills the ring as far as it is known what comes next; segments before `number` have been computed. One stage is left free for
    // the result of that segment.
    __device__ void fill(int number)
    {
#pragma unroll 1
        while (under_way < Traits::STAGES - (loading > number)) {
            if (load_block < load_end) {
                load_group();
            } else if (loading < described) {
                loading = max(loading + 1, number);
                start_loading(loading);
            } else {
                return;
            }
        }
    }

    __device__ void start_loading(int number)
    {
        const Segment& of = segment(number);
        load_block = load_end = 0;
        if (of.is_end()) return;
        load_block = first_block(of);
        load_end = end_block(of);
        if (!params.pages.table) return;
        // The segment's first pages: older than all groups under way, unless few were asked for since.
        if (since_pages >= under_way)
            wait_for_older();
        else
            cp_async_wait<0>();
        __syncwarp();
    }

    // --- Pages: what a table says of a key has to be known when the key is asked for, so it is asked for as many groups ahead as there
    // are stages, together with the group whose stage that one will take. The first ones of a segment are asked for when it is known.

    __device__ int* pages_of(int slot, int group) const
    {
        return reinterpret_cast<int*>(shared + Traits::PAGES_AT + (slot * Traits::WARPS + warp) * Traits::PAGES_BYTES) + group * KEYS;
    }

    __device__ void load_first_pages(int number)
    {
        const Segment& of = segment(number);
        if (!params.pages.table || of.is_end()) return;
        const KeyRows<Element> of_next(params, of.batch, of.kv_head, of.k);
#pragma unroll 1
        for (int i = lane; i < Traits::STAGES * KEYS; i += 32) {
            const int key = (first_block(of) + i / KEYS) * Traits::BLOCK_N + warp * KEYS + i % KEYS;
            cp_async_4(pages_of(1 + (number & 1), 0) + i, of_next.page_of(params, key), key < of.end_key);
        }
        cp_async_commit();
        since_pages = 0;
    }

    // Rows that the segment does not have become zeros, and are not read.
    __device__ void load_group()
    {
        constexpr int LANES = Traits::ROW_CHUNKS < 32 ? Traits::ROW_CHUNKS : 32; // that copy a row
        constexpr int AT_ONCE = 32 / LANES;                                     // rows
        const int chunk = lane % LANES, first_row = lane / LANES, column = chunk * CHUNK<Element>;
        const int first_key = load_block * Traits::BLOCK_N + warp * KEYS;
        const Segment& of = segment(loading); // read anew: there are few registers
        const KeyRows<Element> rows(params, of.batch, of.kv_head, of.k);
        const int low = of.first_key - first_key, high = column < params.head_dim ? of.end_key - first_key : 0;
        // A lane finds one key.
        const int my_key = first_key + lane % KEYS;
        int page = 0, loaded = 0;
        if (rows.is_paged()) {
            loaded = load_block - first_block(of);
            page = pages_of(loaded < Traits::STAGES ? 1 + (loading & 1) : 0, loaded % Traits::STAGES)[lane % KEYS];
        }
        const Element* const my_keys = static_cast<const Element*>(params.k.address) + rows.offset(params, params.k, my_key, page);
        const Element* const my_values = static_cast<const Element*>(params.v.address) + rows.offset(params, params.v, my_key, page);
        const unsigned to = address_of(stage_at(load_stage));
#pragma unroll 4
        for (int i = 0; i < KEYS; i += AT_ONCE) {
            const int row = i + first_row;
            const bool valid = row >= low && row < high;
            const unsigned at = to + row * Traits::ROW_BYTES + swizzled(row, chunk);
            cp_async_16(at, shuffled(my_keys, row) + column, valid);
            cp_async_16(at + Traits::GROUP_BYTES, shuffled(my_values, row) + column, valid);
        }
        if (rows.is_paged()) {
            const int later = my_key + Traits::STAGES * Traits::BLOCK_N;
            if (lane < KEYS)
                cp_async_4(pages_of(0, loaded % Traits::STAGES) + lane, rows.page_of(params, later), later < of.end_key);
            since_pages++;
        }
        cp_async_commit();
        load_block++;
        under_way++;
        load_stage = load_stage + 1 == Traits::STAGES ? 0 : load_stage + 1;
    }

    // Bytes into a row: its 16-byte chunks are swapped so that 8 rows' same chunk lies in different banks.
    __device__ static int swizzled(int row, int chunk) { return (chunk ^ row % 8) * CHUNK_BYTES; }

    __device__ static const Element* shuffled(const Element* pointer, int lane)
    {
        return reinterpret_cast<const Element*>(__shfl_sync(0xffffffff, reinterpret_cast<unsigned long long>(pointer), lane));
    }

    // --- Computing ---------------------------------------------------------------------------------------------------------

    __device__ void compute(int number)
    {
        const Segment& of = segment(number);
        int block = number < 0 ? 0 : first_block(of);
        const int end = number < 0 ? 0 : end_block(of);
#pragma unroll 1
        while (described == number || block < end) {
            fill(number);
            if (described == number) {
                // All that is not needed for the first loads comes after them.
                if (threadIdx.x == 0) segment(number + 1) = share.next();
                wait_for_older();
                __syncthreads();
                described = number + 1;
                if (number >= 0) {
                    take_queries();
                    start_rows(of);
                }
                load_first_pages(number + 1);
                load_queries(number + 1);
                continue;
            }
            if (under_way == Traits::STAGES)
                cp_async_wait<Traits::STAGES - 1>();
            else
                cp_async_wait<0>();
            __syncwarp();
            take_group(block * Traits::BLOCK_N + warp * KEYS, stage_at(stage));
            __syncwarp(); // all lanes have read it
            block++;
            under_way--;
            stage = stage + 1 == Traits::STAGES ? 0 : stage + 1;
        }
    }

    // Which row of the tile is a lane's `half` of row tile `tile`.
    __device__ static int row_of(int lane, int tile, int half) { return tile * FRAGMENT_ROWS + half * 8 + lane / 4; }

    __device__ void start_rows(const Segment& of)
    {
        const int lane = anew(this->lane);
        const Mask mask(params.scoring, of.q.len, of.k.len);
        const int last_query = min(row_at(of, Traits::BLOCK_M - 1).query, of.q.len - 1);
        all_see_from = last_query + mask.shift - mask.left;
        all_see_to = min(of.first_query + mask.shift + mask.right, of.k.len - 1);
        if (threadIdx.x < Traits::BLOCK_M) sink = sink_of(params.scoring, min(row_at(of, threadIdx.x).head, params.heads - 1));
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const Row row = row_at(of, row_of(lane, tile, half));
                diagonal[tile][half] = row.query + mask.shift;
                slopes[tile][half] =
                    params.scoring.slopes && row.query < of.q.len ? params.scoring.slopes[of.batch * params.scoring.slopes_batch + row.head] * LOG2_E : 0;
                sums[tile][half] = {negative_infinity(), 0};
            }
#pragma unroll
            for (int i = 0; i < COLUMN_TILES; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) output[tile][i][j] = 0;
        }
    }

    // A row of the tile: a query and one of all query heads.
    struct Row {
        int query, head;
    };
    __device__ Row row_at(const Segment& of, int row) const
    {
        // Both are far below 2^20: the half keeps rounding from crossing an integer.
        const int at = of.first_head + row, query = (int)((at + 0.5f) * reciprocal_approximate(anew(group)));
        return {of.first_query + query, of.kv_head * group + at - query * group};
    }

    // Asks for the queries of a segment, a segment ahead: a load that is asked for now comes after all keys that are under way. The last
    // warp does, so that the others begin with the keys at once. Rows that do not exist become zeros.
    __device__ void load_queries(int number) const
    {
        const Segment& of = segment(number);
        if (warp != Traits::WARPS - 1 || of.is_end()) return;
        const unsigned to = address_of(queries_at(number));
#pragma unroll 1
        for (int i = anew(lane); i < Traits::BLOCK_M * Traits::ROW_CHUNKS; i += 32) {
            const int at = i / Traits::ROW_CHUNKS, chunk = i % Traits::ROW_CHUNKS;
            const Row row = row_at(of, at);
            const Element* const from = static_cast<const Element*>(params.q.address) + of.batch * params.q.batch +
                                        row.head * params.q.head + (long long)(of.q.first + row.query) * params.q.row +
                                        chunk * CHUNK<Element>;
            cp_async_16(to + at * Traits::ROW_BYTES + swizzled(at, chunk), from,
                        row.query < of.q.len && chunk * CHUNK<Element> < params.head_dim);
        }
        cp_async_commit();
    }
    // Waits for what is older than the groups that are under way, such as the queries of the segment that is about to be computed.
    __device__ void wait_for_older() const
    {
        if (under_way >= 2)
            cp_async_wait<2>();
        else if (under_way == 1)
            cp_async_wait<1>();
        else
            cp_async_wait<0>();
    }
    __device__ void take_queries()
    {
        if constexpr (Traits::HOLDS_QUERIES)
#pragma unroll
            for (int step = 0; step < HEAD_DIM / FRAGMENT_DEPTH; step++) load_query(0, step, left[0][step]);
    }
    __device__ static int queries_at(int number) { return Traits::QUERIES_AT + (number & 1) * Traits::QUERY_BYTES; }

    __device__ void load_query(int tile, int step, unsigned (&words)[4]) const
    {
        const int row = tile * FRAGMENT_ROWS + lane % 16;
        load_matrices(words, address_of(queries_at(computed()) + row * Traits::ROW_BYTES + swizzled(row, 2 * step + lane / 16)));
    }

    __device__ void query_words(int tile, int step, unsigned (&words)[4]) const
    {
        if constexpr (Traits::HOLDS_QUERIES) {
#pragma unroll
            for (int i = 0; i < 4; i++) words[i] = left[tile][step][i];
        } else {
            load_query(tile, step, words);
        }
    }

    using Scores = float[ROW_TILES][KEY_TILES][4];

    __device__ void take_group(int first_key, int keys_at)
    {
        Scores scores;
        const unsigned keys = address_of(keys_at);
#pragma unroll
        for (int i = 0; i < KEY_TILES; i++) {
            const int row = i * FRAGMENT_COLUMNS + lane % 8;
            // Two sums a product, each half as long a chain, where registers allow.
            float odd[ROW_TILES][4];
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
                for (int j = 0; j < 4; j++) scores[tile][i][j] = odd[tile][j] = 0;
#pragma unroll
            for (int step = 0; step < HEAD_DIM / FRAGMENT_DEPTH; step += 2) {
                unsigned words[4], query[4];
                load_matrices(words, keys + row * Traits::ROW_BYTES + swizzled(row, 2 * step + lane / 8));
#pragma unroll
                for (int tile = 0; tile < ROW_TILES; tile++) {
                    query_words(tile, step, query);
                    mma<Element>(scores[tile][i], query, words[0], words[1]);
                    query_words(tile, step + 1, query);
                    mma<Element>(Traits::HOLDS_QUERIES ? odd[tile] : scores[tile][i], query, words[2], words[3]);
                }
            }
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
                for (int j = 0; j < 4; j++) scores[tile][i][j] += odd[tile][j];
        }
        soften(first_key, scores);

        const unsigned values = keys + Traits::GROUP_BYTES;
#pragma unroll
        for (int step = 0; step < KEYS / FRAGMENT_DEPTH; step++) {
            unsigned weights[ROW_TILES][4];
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float(&two)[4] = scores[tile][2 * step + j / 2];
                    weights[tile][j] = narrow2<Element>(two[j % 2 * 2], two[j % 2 * 2 + 1]);
                }
            const int row = step * FRAGMENT_DEPTH + lane % 16;
#pragma unroll
            for (int i = 0; i < COLUMN_TILES; i += 2) {
                unsigned words[4];
                load_matrices_transposed(words, values + row * Traits::ROW_BYTES + swizzled(row, i + lane / 16));
#pragma unroll
                for (int tile = 0; tile < ROW_TILES; tile++) {
                    mma<Element>(output[tile][i], weights[tile], words[0], words[1]);
                    mma<Element>(output[tile][i + 1], weights[tile], words[2], words[3]);
                }
            }
        }
    }

    // Calls `change` with every score, its row tile and half, and the key.
    template <class Change> __device__ void each(Scores& scores, int first_key, Change change) const
    {
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
            for (int i = 0; i < KEY_TILES; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    change(scores[tile][i][j], tile, j / 2, first_key + i * FRAGMENT_COLUMNS + lane % 4 * 2 + j % 2);
    }

    // Dot products -> weights.
    __device__ void soften(int first_key, Scores& scores)
    {
        // One pass for each option, so that none is compiled into the others.
        each(scores, first_key, [&](float& score, int, int, int) { score = clamp_keeping_nan(score, dot_limit) * scale; });
        if (params.scoring.softcap > 0) {
            const ScoreRule rule(params.scoring, 0, 0, 0, LOG2_E);
            each(scores, first_key, [&](float& score, int, int, int) { score = rule.with_softcap(score); });
        }
        if (params.scoring.slopes) {
            // ALiBi counts distances bottom-right, wherever the mask's diagonal is.
            const int shift = params.scoring.align_top_left ? segment(computed()).k.len - segment(computed()).q.len : 0;
            each(scores, first_key, [&](float& score, int tile, int half, int key) {
                score -= slopes[tile][half] * fabsf((float)(diagonal[tile][half] + shift - key));
            });
        }
        if (first_key < all_see_from || first_key + KEYS - 1 > all_see_to) {
            const int last_key = segment(computed()).k.len - 1;
            each(scores, first_key, [&](float& score, int tile, int half, int key) {
                const int middle = diagonal[tile][half];
                if (key < middle - params.scoring.window_left || key > min(middle + params.scoring.window_right, last_key))
                    score = negative_infinity();
            });
        }
        float largest[ROW_TILES][2];
        bool same = true;
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
            for (int half = 0; half < 2; half++) largest[tile][half] = sums[tile][half].max;
        each(scores, first_key,
             [&](float& score, int tile, int half, int) { largest[tile][half] = fmaxf(largest[tile][half], score); });
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float& row = largest[tile][half];
                row = fmaxf(row, __shfl_xor_sync(0xffffffff, row, 1));
                row = fmaxf(row, __shfl_xor_sync(0xffffffff, row, 2));
                same = same && row == sums[tile][half].max;
            }
        if (__any_sync(0xffffffff, !same))
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; tile++) {
                float factor[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    RowSum& row = sums[tile][half];
                    factor[half] = rescale(row.max, largest[tile][half]);
                    row = {largest[tile][half], row.sum * factor[half]};
                }
#pragma unroll
                for (int i = 0; i < COLUMN_TILES; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) output[tile][i][j] *= factor[j / 2];
            }
        each(scores, first_key, [&](float& score, int tile, int half, int) {
            score = rescale(score, sums[tile][half].max);
            sums[tile][half].sum += score;
        });
    }

    // --- Adding up ---------------------------------------------------------------------------------------------------------

    __device__ int existing_rows(const Segment& of) const
    {
        return min(Traits::BLOCK_M, (of.q.len - of.first_query) * group - of.first_head);
    }

    // The warp's result, in the stage that would be loaded next. Of a row that has seen no key only the maximum of -inf is left, which
    // keeps others from reading more.
    __device__ void leave_result(const Segment& of)
    {
        const int existing = existing_rows(of);
        const int lane = anew(this->lane);
        const int result = Traits::RESULT_IN_RING ? stage_at(load_stage) : Traits::RESULTS_AT + warp * Traits::RESULT_BYTES;
        if (lane == 0) result_of(warp) = result;
        if (threadIdx.x < Traits::BLOCK_M) sink_at(threadIdx.x) = sink;
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                RowSum sum = sums[tile][half];
                sum.sum += __shfl_xor_sync(0xffffffff, sum.sum, 1);
                sum.sum += __shfl_xor_sync(0xffffffff, sum.sum, 2);
                const int row = row_of(lane, tile, half);
                if (row >= existing) continue;
                if (lane % 4 == 0) sum_of(warp, row) = sum;
                if (sum.max == negative_infinity()) continue;
#pragma unroll
                for (int i = 0; i < COLUMN_TILES; i++)
                    *reinterpret_cast<float2*>(shared + result + result_offset(row, 2 * i + lane % 4 / 2) +
                                               lane % 2 * (int)sizeof(float2)) =
                        float2{output[tile][i][2 * half], output[tile][i][2 * half + 1]};
            }
    }

    // Bytes into a warp's result of four columns of a row, swapped like the chunks of a row of keys.
    __device__ static int result_offset(int row, int column4)
    {
        return row * HEAD_DIM * (int)sizeof(float) + swizzled(row, column4);
    }

    // Writes the tile, or this segment's part of it; then perhaps the tile from all its parts, which the warps add up as they
    // did their groups of keys.
    __device__ void finish(const Segment& of)
    {
        leave_result(of);
        bool whole = of.is_whole_tile();
#pragma unroll 1
        while (true) {
            __syncthreads(); // the warps' results
            add_up_warps(of, whole);
            __syncthreads(); // they have been read, and the part is written
            if (whole || !share.is_last_here(of)) return;
            const auto owners = share.owners(of);
            if (!comes_last(owners.first, owners.last - owners.first)) return;
            add_up_parts(of, owners);
            whole = true;
        }
    }

    // A row and four of its columns for each thread: the sum of the warps' results.
    __device__ void add_up_warps(const Segment& of, bool whole) const
    {
        float* const part = part_at(share.own_place(of));
        const int count = existing_rows(of) * ACROSS;
#pragma unroll 1
        for (int i = anew(threadIdx.x); i < count; i += Traits::THREADS) {
            const int row = i / ACROSS, column4 = i % ACROSS;
            RowSum sums[Traits::WARPS];
            float4 columns[Traits::WARPS];
#pragma unroll
            for (int other = 0; other < Traits::WARPS; other++) {
                sums[other] = sum_of(other, row);
                columns[other] = *reinterpret_cast<const float4*>(shared + result_of(other) + result_offset(row, column4));
            }
            Partial all;
            all.add(sums, columns);
            if (whole) {
                write(of, row, column4, all);
            } else {
                __stcg(reinterpret_cast<float4*>(part + row * HEAD_DIM) + column4,
                       {all.values[0], all.values[1], all.values[2], all.values[3]});
                if (column4 == 0) __stcg(reinterpret_cast<float2*>(part + Traits::BLOCK_M * HEAD_DIM) + row, {all.row.max, all.row.sum});
            }
        }
    }
    static constexpr int ACROSS = HEAD_DIM / 4; // threads

    // Every WARPS-th part, to where the warp has left its result. With splits they are counted from key 0, so that it does not matter at
    // which of them a tile begins.
    __device__ void add_up_parts(const Segment& of, typename Share<Traits>::Owners owners) const
    {
        constexpr int MINE = 4, TOGETHER = 2; // what a lane asks for at once: columns, and parts
        const int parts = share.parts(of, owners), before = share.has_splits() ? of.first_split % (TOGETHER * Traits::WARPS) : 0;
        const int count = existing_rows(of) * ACROSS;
#pragma unroll 1
        for (int first = anew(lane); first < count; first += MINE * 32) {
            Partial all[MINE];
#pragma unroll 1
            for (int index = warp - before; index < parts; index += TOGETHER * Traits::WARPS) {
                RowSum sums[MINE][TOGETHER];
                float4 columns[MINE][TOGETHER];
#pragma unroll
                for (int j = 0; j < TOGETHER; j++) {
                    const int one = index + j * Traits::WARPS;
                    const bool exists = one >= 0 && one < parts;
                    const float* const part = part_at(share.place(of, owners, exists ? one : 0));
#pragma unroll
                    for (int i = 0; i < MINE; i++) {
                        const int at = min(first + i * 32, count - 1);
                        const float2 sum = __ldcg(reinterpret_cast<const float2*>(part + Traits::BLOCK_M * HEAD_DIM) + at / ACROSS);
                        sums[i][j] = {exists ? sum.x : negative_infinity(), sum.y};
                        columns[i][j] = __ldcg(reinterpret_cast<const float4*>(part) + at);
                    }
                }
#pragma unroll
                for (int i = 0; i < MINE; i++) all[i].add(sums[i], columns[i]);
            }
#pragma unroll
            for (int i = 0; i < MINE; i++) {
                const int row = (first + i * 32) / ACROSS, column4 = (first + i * 32) % ACROSS;
                if (first + i * 32 >= count) break;
                if (column4 == 0) sum_of(warp, row) = all[i].row;
                *reinterpret_cast<float4*>(shared + result_of(warp) + result_offset(row, column4)) = {
                    all[i].values[0], all[i].values[1], all[i].values[2], all[i].values[3]};
            }
        }
    }

    // Whether the parts of all `others` are there. The semaphore is 0 again when the last one has come.
    __device__ bool comes_last(unsigned semaphore, unsigned others)
    {
        if (others == 0) return true;
        unsigned& arrived = share.scratch();
        if (threadIdx.x == 0) {
            // Releases what the other threads wrote too: they have passed a barrier since.
            arrived = increment_and_wrap(params.work.semaphores + semaphore, others);
        }
        __syncthreads();
        const bool last = arrived == others;
        __syncthreads(); // it has been read
        return last;
    }

    // Four columns of a row of the result, and with the first its lse.
    __device__ void write(const Segment& of, int row_of_tile, int column4, Partial& all) const
    {
        const Row row = row_at(of, row_of_tile);
        const float sink = sink_at(row_of_tile);
        const float keep = sink == negative_infinity() ? 1.0f : join_sink(all.row.max, all.row.sum, sink);
        const float inverse = all.row.sum == 0 ? 0.0f : keep * reciprocal_approximate(all.row.sum);
        const long long to_row = of.q.first + row.query;
        if (4 * column4 < params.head_dim) {
            Element* const to = static_cast<Element*>(params.out.address) + of.batch * params.out.batch +
                                row.head * params.out.head + to_row * params.out.row;
            reinterpret_cast<uint2*>(to)[column4] = {narrow2<Element>(all.values[0] * inverse, all.values[1] * inverse),
                                                     narrow2<Element>(all.values[2] * inverse, all.values[3] * inverse)};
        }
        if (column4 == 0 && params.lse)
            params.lse[of.batch * params.lse_batch + row.head * params.lse_head + to_row] =
                all.row.sum == 0 ? negative_infinity() : (all.row.max + __log2f(all.row.sum)) * LN_2;
    }

    // A part in the workspace: the rows' outputs, then their maxima and sums.
    __device__ float* part_at(unsigned place) const
    {
        return params.work.partials + (unsigned long long)place * (Traits::BLOCK_M * (HEAD_DIM + 2));
    }

    // Lengths that changed during the launch may have left semaphores that nobody brought back to 0. The last CTA to end does.
    __device__ void reset_semaphores()
    {
        if (threadIdx.x != 0) return;
        if (increment_and_wrap(params.work.counter, gridDim.x - 1) != gridDim.x - 1) return;
#pragma unroll 1
        for (unsigned cta = 0; cta < gridDim.x; cta++) params.work.semaphores[cta] = 0;
    }

    __device__ static void cp_async_16(unsigned shared, const void* source, bool valid)
    {
        warptile::cp_async_16(__cvta_shared_to_generic(shared), source, valid);
    }

    const Forward& params;
    unsigned char* const shared;
    const int group; // query heads a key/value head
    const int warp, lane;
    Share<Traits> share;

    int described = -1; // the last segment that is known
    int loading = -1;   // segment
    int load_block = 0, load_end = 0;
    int since_pages = 0; // groups asked for since the first pages of a segment
    int load_stage = 0;
    int under_way = 0; // groups
    int stage = 0;     // that is computed next

    float sink = 0;   // of a row for each of the first threads
    unsigned left[1][Traits::HOLDS_QUERIES ? HEAD_DIM / FRAGMENT_DEPTH : 1][4];
    float output[ROW_TILES][COLUMN_TILES][4];
    float scale, dot_limit; // of rule/score.cuh
    // Of this lane's rows.
    RowSum sums[ROW_TILES][2];
    int diagonal[ROW_TILES][2]; // rule/mask.cuh
    float slopes[ROW_TILES][2]; // in exponents of 2
    int all_see_from, all_see_to; // keys that all rows of the tile see
};

template <class Traits> __device__ void decode_attention(const Forward& params)
{
    extern __shared__ __align__(128) unsigned char shared[];
    Decode<Traits>(params, shared).run();
}

} // namespace warptile
