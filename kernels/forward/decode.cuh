// Attention of few queries against many keys, at the speed of memory: the query heads that share a key/value head are the rows of one
// tile, so keys are read once for all of them, and the CTAs share the keys of all sequences evenly (work/share.cuh).
//
// Warps share nothing while they read: each has a ring of its own and takes every WARPS-th group of KEYS keys of its CTA's
// segment. At a segment's end their results are merged in shared memory, in the warps' order. Of a tile that several CTAs
// share each leaves an unnormalized part in the workspace, and whoever comes last merges all of them in the CTAs' order: nobody waits,
// and the result does not depend on who was last.
#pragma once

#include "base/record.cuh"
#include "memory/copy.cuh"
#include "ptx/mma.cuh"
#include "rule/score.cuh"
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
    static constexpr unsigned FEATURES = FEATURE_SOFTCAP | FEATURE_ALIBI | FEATURE_SINKS | FEATURE_PACKED |
                                         FEATURE_DEVICE_LENGTHS | FEATURE_NEGATIVE_SCALE | FEATURE_LSE;

    static constexpr int THREADS = 32 * WARPS;
    static constexpr int KEYS = BLOCK_N / WARPS; // of a warp's group
    static constexpr int ROW_BYTES = HEAD_DIM * (int)sizeof(Element);
    static constexpr int ROW_CHUNKS = ROW_BYTES / CHUNK_BYTES;
    static constexpr int GROUP_BYTES = KEYS * ROW_BYTES; // of keys, and as many of values
    static constexpr int STAGE_BYTES = 2 * GROUP_BYTES;
    static constexpr int RING_BYTES = STAGES * STAGE_BYTES; // a warp's

    static_assert(sizeof(Element) == 2, "mma.sync takes f16 and bf16");
    static_assert(BLOCK_M == FRAGMENT_ROWS, "a warp computes the 16 rows of one product");
    static_assert(BLOCK_N % (WARPS * FRAGMENT_DEPTH) == 0, "the products with the values take 16 keys at a time");
    static_assert(HEAD_DIM % 32 == 0, "keys are loaded 32 columns at a time");
    static_assert(ROW_CHUNKS % 8 == 0 && (32 % ROW_CHUNKS == 0 || ROW_CHUNKS % 32 == 0), "the swizzle, and whole rows a copy");

    // Shared memory: rings, merged output, the warps' maxima and sums, segments, scratch of the search.
    static constexpr int SEGMENTS = 4; // described and not yet computed: two; the others are still being read
    static constexpr int MERGE_AT = WARPS * RING_BYTES;
    // Registers hold the queries where there are enough.
    static constexpr bool SHARED_QUERIES = HEAD_DIM > 128;
    static constexpr int QUERIES_AT = MERGE_AT + BLOCK_M * HEAD_DIM * (int)sizeof(float);
    static constexpr int STATS_AT = QUERIES_AT + (SHARED_QUERIES ? BLOCK_M * ROW_BYTES : 0);
    static constexpr int SEGMENTS_AT = STATS_AT + WARPS * BLOCK_M * 2 * (int)sizeof(float);
    static constexpr int SCRATCH_AT = SEGMENTS_AT + SEGMENTS * (int)sizeof(Segment);
    static constexpr int SHARED_BYTES = SCRATCH_AT + (WARPS + 4) * (int)sizeof(unsigned);
    static_assert(SEGMENTS_AT % 8 == 0 && SCRATCH_AT % 4 == 0);
};

// The maximum of some scores of a row, in exponents of 2, and the sum of their weights against it.
struct RowSum {
    float max; // -inf: no key was seen
    float sum;
};

// What a row's weights are multiplied by when they count against the larger maximum `to` instead of `from`.
__device__ inline float rescale(float from, float to) { return exp2_approximate(__fadd_rn(from, -finite_max(to))); }

template <class Traits> class Decode {
  public:
    using Element = typename Traits::Element;
    static constexpr int HEAD_DIM = Traits::HEAD_DIM, KEYS = Traits::KEYS;

    __device__ Decode(const Forward& params, unsigned char* shared)
        : params(params), shared(shared), group(params.heads / params.kv_heads), warp(threadIdx.x / 32), lane(threadIdx.x % 32),
          ring(shared_address(shared) + warp * Traits::RING_BYTES)
    {
    }

    __device__ void run()
    {
        Share<Traits> share(params);
        share.find(reinterpret_cast<unsigned*>(shared + Traits::SCRATCH_AT));
        if (threadIdx.x == 0) {
            segment(0) = share.next();
            segment(1) = share.next();
        }
        __syncthreads();
        start_loading(0);
        for (int number = 0; !segment(number).is_end(); number++) {
            described = number + 1;
            compute(number);
            leave_results();
            // Two segments ahead: the loads are at most one ahead.
            if (threadIdx.x == 0) segment(number + 2) = share.next();
            finish(segment(number));
        }
        if (reads_lengths(params.sequences)) reset_semaphores();
    }

  private:
    __device__ Segment& segment(int number) const
    {
        return reinterpret_cast<Segment*>(shared + Traits::SEGMENTS_AT)[number % Traits::SEGMENTS];
    }
    __device__ float* merged() const { return reinterpret_cast<float*>(shared + Traits::MERGE_AT); }
    __device__ RowSum& stats(int warp, int row) const
    {
        return reinterpret_cast<RowSum*>(shared + Traits::STATS_AT)[warp * Traits::BLOCK_M + row];
    }

    // --- Loading -----------------------------------------------------------------------------------------------------------

    __device__ void start_loading(int number)
    {
        loading = number;
        const Segment& from = segment(number);
        load_block = from.is_end() ? 0 : from.first_block;
        load_end = from.is_end() ? 0 : blocks_end(from);
        if (load_block >= load_end) return;
        const auto rows = [&](const Tensor& tensor) {
            return static_cast<const Element*>(tensor.address) + from.batch * tensor.batch + from.kv_head * tensor.head +
                   from.k.first * tensor.row;
        };
        load_keys = rows(params.k);
        load_values = rows(params.v);
        load_len = from.k.len;
    }

    // Blocks from here on hold no key of this warp.
    __device__ int blocks_end(const Segment& of) const
    {
        const int blocks = (of.k.len - warp * KEYS + Traits::BLOCK_N - 1) / Traits::BLOCK_N;
        return min(of.end_block, max(blocks, of.first_block));
    }

    // Fills the ring as far as it is known what comes next.
    __device__ void fill()
    {
        while (under_way < Traits::STAGES) {
            while (load_block >= load_end) {
                if (loading >= described || segment(loading).is_end()) return;
                start_loading(loading + 1);
            }
            load_group();
        }
    }

    // Rows past the sequence's end become zeros, and are not read.
    __device__ void load_group()
    {
        constexpr int LANES = Traits::ROW_CHUNKS < 32 ? Traits::ROW_CHUNKS : 32; // that copy a row
        constexpr int ROWS = 32 / LANES;                                        // at a time
        const int first_key = load_block * Traits::BLOCK_N + warp * KEYS;
        const unsigned to = ring + load_stage * Traits::STAGE_BYTES;
        const int chunk = lane % LANES, first_row = lane / LANES;
        const int rows = chunk * CHUNK<Element> < params.head_dim ? load_len - first_key : 0;
        const long long first = first_key + first_row;
        const Element* keys = load_keys + first * params.k.row + chunk * CHUNK<Element>;
        const Element* values = load_values + first * params.v.row + chunk * CHUNK<Element>;
#pragma unroll
        for (int i = 0; i < KEYS; i += ROWS) {
            const int row = i + first_row;
            const unsigned at = to + row * Traits::ROW_BYTES + swizzled(row, chunk);
            cp_async_16(at, keys, row < rows);
            cp_async_16(at + Traits::GROUP_BYTES, values, row < rows);
            keys += ROWS * params.k.row;
            values += ROWS * params.v.row;
        }
        cp_async_commit();
        load_block++;
        under_way++;
        load_stage = load_stage + 1 == Traits::STAGES ? 0 : load_stage + 1;
    }

    // Bytes into a row: its 16-byte chunks are swapped so that 8 rows' same chunk lies in different banks.
    __device__ static int swizzled(int row, int chunk) { return (chunk ^ row % 8) * CHUNK_BYTES; }

    // --- Computing ---------------------------------------------------------------------------------------------------------

    __device__ void compute(int number)
    {
        const Segment& of = segment(number);
        // Segments without a key of this warp are passed over: by now their places may hold others.
        if (loading < number) start_loading(number);
        load_queries(of);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / FRAGMENT_COLUMNS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) output[i][j] = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) rows[i] = {negative_infinity(), 0};
        const int end = blocks_end(of);
        for (int block = of.first_block; block < end; block++) {
            fill();
            if (under_way == Traits::STAGES)
                cp_async_wait<Traits::STAGES - 1>();
            else
                cp_async_wait<0>();
            __syncwarp();
            take_group(of, block * Traits::BLOCK_N + warp * KEYS, ring + stage * Traits::STAGE_BYTES);
            __syncwarp(); // all lanes have read it
            under_way--;
            stage = stage + 1 == Traits::STAGES ? 0 : stage + 1;
        }
    }

    // The left operand of all products with keys, straight from memory.
    __device__ void load_queries(const Segment& of)
    {
        const Element* from[2];
        bool valid[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = of.first_row + lane / 4 + 8 * i;
            const int query = row / group, head = of.kv_head * group + row % group;
            valid[i] = query < of.q.len;
            from[i] = query_row(of, row) + lane % 4 * 2;
            slope[i] = valid[i] && params.scoring.slopes
                           ? params.scoring.slopes[of.batch * params.scoring.slopes_batch + head]
                           : 0.0f;
        }
        if constexpr (Traits::SHARED_QUERIES) {
            copy_queries(of);
        } else {
#pragma unroll
            for (int step = 0; step < HEAD_DIM / FRAGMENT_DEPTH; step++)
#pragma unroll
                for (int word = 0; word < 4; word++) {
                    const int row = word % 2, column = step * FRAGMENT_DEPTH + word / 2 * 8;
                    queries[step][word] = valid[row] && column < params.head_dim
                                              ? __ldg(reinterpret_cast<const unsigned*>(from[row] + column))
                                              : 0;
                }
        }
    }

    __device__ const Element* query_row(const Segment& of, int row) const
    {
        const int query = row / group, head = of.kv_head * group + row % group;
        return static_cast<const Element*>(params.q.address) + of.batch * params.q.batch + head * params.q.head +
               (long long)(of.q.first + query) * params.q.row;
    }

    // To shared memory, by all threads; those of the segment before have been read.
    __device__ void copy_queries(const Segment& of)
    {
        for (int i = threadIdx.x; i < Traits::BLOCK_M * Traits::ROW_CHUNKS; i += Traits::THREADS) {
            const int row = i / Traits::ROW_CHUNKS, chunk = i % Traits::ROW_CHUNKS;
            const bool valid = (of.first_row + row) / group < of.q.len && chunk * CHUNK<Element> < params.head_dim;
            uint4 words = {0, 0, 0, 0};
            if (valid)
                words = __ldg(reinterpret_cast<const uint4*>(query_row(of, of.first_row + row) + chunk * CHUNK<Element>));
            *reinterpret_cast<uint4*>(shared + Traits::QUERIES_AT + row * Traits::ROW_BYTES + swizzled(row, chunk)) = words;
        }
        __syncthreads();
    }

    __device__ void query_words(int step, unsigned (&words)[4]) const
    {
        if constexpr (Traits::SHARED_QUERIES) {
            const int row = lane % 16;
            load_matrices(words, shared_address(shared) + Traits::QUERIES_AT + row * Traits::ROW_BYTES +
                                     swizzled(row, 2 * step + lane / 16));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) words[i] = queries[step][i];
        }
    }

    __device__ void take_group(const Segment& of, int first_key, unsigned keys)
    {
        float scores[KEYS / FRAGMENT_COLUMNS][4];
#pragma unroll
        for (int i = 0; i < KEYS / FRAGMENT_COLUMNS; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) scores[i][j] = 0;
            const int row = i * FRAGMENT_COLUMNS + lane % 8;
#pragma unroll
            for (int step = 0; step < HEAD_DIM / FRAGMENT_DEPTH; step += 2) {
                unsigned words[4], left[4];
                load_matrices(words, keys + row * Traits::ROW_BYTES + swizzled(row, 2 * step + lane / 8));
                query_words(step, left);
                mma<Element>(scores[i], left, words[0], words[1]);
                query_words(step + 1, left);
                mma<Element>(scores[i], left, words[2], words[3]);
            }
        }
        soften(of, first_key, scores);

        const unsigned values = keys + Traits::GROUP_BYTES;
#pragma unroll
        for (int step = 0; step < KEYS / FRAGMENT_DEPTH; step++) {
            const unsigned weights[4] = {narrow2<Element>(scores[2 * step][0], scores[2 * step][1]),
                                         narrow2<Element>(scores[2 * step][2], scores[2 * step][3]),
                                         narrow2<Element>(scores[2 * step + 1][0], scores[2 * step + 1][1]),
                                         narrow2<Element>(scores[2 * step + 1][2], scores[2 * step + 1][3])};
            const int row = step * FRAGMENT_DEPTH + lane % 16;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / FRAGMENT_COLUMNS; i += 2) {
                unsigned words[4];
                load_matrices_transposed(words, values + row * Traits::ROW_BYTES + swizzled(row, i + lane / 16));
                mma<Element>(output[i], weights, words[0], words[1]);
                mma<Element>(output[i + 1], weights, words[2], words[3]);
            }
        }
    }

    // Calls `change` with every score, the row of the two that this lane has part of, and the key.
    template <class Change>
    __device__ void each(float (&scores)[KEYS / FRAGMENT_COLUMNS][4], int first_key, Change change) const
    {
#pragma unroll
        for (int i = 0; i < KEYS / FRAGMENT_COLUMNS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                change(scores[i][j], j / 2, first_key + i * FRAGMENT_COLUMNS + lane % 4 * 2 + j % 2);
    }

    // Dot products -> weights.
    __device__ void soften(const Segment& of, int first_key, float (&scores)[KEYS / FRAGMENT_COLUMNS][4])
    {
        const Mask mask(params.scoring, of.q.len, of.k.len);
        const int first_query = of.first_row / group;
        const int queries = (of.first_row + Traits::BLOCK_M - 1) / group - first_query + 1;
        const bool masked = mask.hides_part_of(first_query, queries, first_key, KEYS);
        // One pass for each option, so that none is compiled into the others.
        const ScoreRule rule(params.scoring, 0, of.q.len, of.k.len, LOG2_E);
        each(scores, first_key, [&](float& score, int, int) { score = rule.score(score); });
        if (rule.has_softcap()) each(scores, first_key, [&](float& score, int, int) { score = rule.with_softcap(score); });
        const int query[2] = {(of.first_row + lane / 4) / group, (of.first_row + lane / 4 + 8) / group};
        if (params.scoring.slopes)
            each(scores, first_key, [&](float& score, int row, int key) {
                score -= slope[row] * LOG2_E * fabsf((float)(query[row] + rule.shift - key));
            });
        if (masked)
            each(scores, first_key, [&](float& score, int row, int key) {
                if (!mask.sees(query[row], key)) score = negative_infinity();
            });
        float largest[2] = {rows[0].max, rows[1].max};
        each(scores, first_key, [&](float& score, int row, int) { largest[row] = fmaxf(largest[row], score); });
#pragma unroll
        for (int row = 0; row < 2; row++) {
            largest[row] = fmaxf(largest[row], __shfl_xor_sync(0xffffffff, largest[row], 1));
            largest[row] = fmaxf(largest[row], __shfl_xor_sync(0xffffffff, largest[row], 2));
        }
        if (__any_sync(0xffffffff, largest[0] != rows[0].max || largest[1] != rows[1].max)) {
            const float factor[2] = {rescale(rows[0].max, largest[0]), rescale(rows[1].max, largest[1])};
#pragma unroll
            for (int i = 0; i < HEAD_DIM / FRAGMENT_COLUMNS; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) output[i][j] *= factor[j / 2];
#pragma unroll
            for (int row = 0; row < 2; row++) rows[row] = {largest[row], rows[row].sum * factor[row]};
        }
#pragma unroll
        for (int i = 0; i < KEYS / FRAGMENT_COLUMNS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                scores[i][j] = rescale(scores[i][j], rows[j / 2].max);
                rows[j / 2].sum += scores[i][j];
            }
    }

    // --- Merging -----------------------------------------------------------------------------------------------------------

    // The warps' results, added up in `merged` and in `stats(0, ..)`.
    __device__ void leave_results()
    {
        const int quad = lane / 4;
#pragma unroll
        for (int row = 0; row < 2; row++) {
            rows[row].sum += __shfl_xor_sync(0xffffffff, rows[row].sum, 1);
            rows[row].sum += __shfl_xor_sync(0xffffffff, rows[row].sum, 2);
            if (lane % 4 == 0) stats(warp, quad + 8 * row) = rows[row];
        }
        __syncthreads();
        float factor[2];
        RowSum all[2];
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float largest = negative_infinity(), sum = 0;
#pragma unroll
            for (int other = 0; other < Traits::WARPS; other++) largest = fmaxf(largest, stats(other, quad + 8 * row).max);
#pragma unroll
            for (int other = 0; other < Traits::WARPS; other++) {
                const RowSum part = stats(other, quad + 8 * row);
                sum += part.sum * rescale(part.max, largest);
            }
            factor[row] = rescale(rows[row].max, largest);
            all[row] = {largest, sum};
        }
#pragma unroll 1
        for (int turn = 0; turn < Traits::WARPS; turn++) {
            if (turn == warp)
#pragma unroll
                for (int i = 0; i < HEAD_DIM / FRAGMENT_COLUMNS; i++)
#pragma unroll
                    for (int row = 0; row < 2; row++) {
                        float2& to = *reinterpret_cast<float2*>(merged() + (quad + 8 * row) * HEAD_DIM + i * FRAGMENT_COLUMNS +
                                                                lane % 4 * 2);
                        const float2 before = turn == 0 ? float2{0, 0} : to;
                        to = {before.x + output[i][2 * row] * factor[row], before.y + output[i][2 * row + 1] * factor[row]};
                    }
            __syncthreads();
        }
        if (warp == 0 && lane % 4 == 0)
#pragma unroll
            for (int row = 0; row < 2; row++) stats(0, quad + 8 * row) = all[row];
    }

    // Writes the tile, or this CTA's part of it.
    __device__ void finish(const Segment& of)
    {
        __syncthreads(); // stats, and the segment after the next
        const int valid_rows = min(Traits::BLOCK_M, of.q.len * group - of.first_row);
        if (of.owners <= 1) {
            for (int chunk = threadIdx.x; chunk < valid_rows * Traits::ROW_CHUNKS; chunk += Traits::THREADS) {
                const int row = chunk / Traits::ROW_CHUNKS, column = chunk % Traits::ROW_CHUNKS * CHUNK<Element>;
                write(of, row, column, stats(0, row), merged() + row * HEAD_DIM + column);
            }
        } else {
            for (int chunk = threadIdx.x; chunk < valid_rows * Traits::ROW_CHUNKS; chunk += Traits::THREADS) {
                const int row = chunk / Traits::ROW_CHUNKS, column = chunk % Traits::ROW_CHUNKS * CHUNK<Element>;
                const float4* const from = reinterpret_cast<const float4*>(merged() + row * HEAD_DIM + column);
                float4* const to = reinterpret_cast<float4*>(part(of.slot, row) + column);
                __stcg(to, from[0]);
                __stcg(to + 1, from[1]);
                if (column == 0) __stcg(reinterpret_cast<float2*>(part_sum(of.slot, row)), {stats(0, row).max, stats(0, row).sum});
            }
            if (comes_last(of)) merge_parts(of, valid_rows);
        }
        __syncthreads(); // `merged` and `stats` are free
    }

    // Whether the parts of all other CTAs are there. The semaphore is 0 again when the last one has come.
    __device__ bool comes_last(const Segment& of)
    {
        __threadfence();
        __syncthreads();
        unsigned* const arrived = reinterpret_cast<unsigned*>(shared + Traits::SCRATCH_AT);
        if (threadIdx.x == 0) {
            *arrived = atomicInc(params.work.semaphores + of.owner, of.owners - 1);
            __threadfence();
        }
        __syncthreads();
        return *arrived == of.owners - 1;
    }

    // In the CTAs' order.
    __device__ void merge_parts(const Segment& of, int valid_rows)
    {
        const auto slot = [&](int i) { return Share<Traits>::slot_of(of.owner + i, i == 0 && of.owner_has_more); };
        for (int chunk = threadIdx.x; chunk < valid_rows * Traits::ROW_CHUNKS; chunk += Traits::THREADS) {
            const int row = chunk / Traits::ROW_CHUNKS, column = chunk % Traits::ROW_CHUNKS * CHUNK<Element>;
            const auto sum_of = [&](int i) {
                const float2 pair = __ldcg(reinterpret_cast<const float2*>(part_sum(slot(i), row)));
                return RowSum{pair.x, pair.y};
            };
            RowSum all = {negative_infinity(), 0};
            for (int i = 0; i < of.owners; i++) all.max = fmaxf(all.max, sum_of(i).max);
            float values[CHUNK<Element>] = {};
            for (int i = 0; i < of.owners; i++) {
                const RowSum one = sum_of(i);
                const float factor = rescale(one.max, all.max);
                const float4* const from = reinterpret_cast<const float4*>(part(slot(i), row) + column);
                const float4 low = __ldcg(from), high = __ldcg(from + 1);
                const float parts[CHUNK<Element>] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
                all.sum += one.sum * factor;
#pragma unroll
                for (int j = 0; j < CHUNK<Element>; j++) values[j] += parts[j] * factor;
            }
            write(of, row, column, all, values);
        }
    }

    // One chunk of a row of the result, and with the first its lse.
    __device__ void write(const Segment& of, int row, int column, RowSum all, const float* values) const
    {
        const int query = (of.first_row + row) / group, head = of.kv_head * group + (of.first_row + row) % group;
        const float sink = sink_of(params.scoring, head);
        const float keep = sink == negative_infinity() ? 1.0f : join_sink(all.max, all.sum, sink);
        const float inverse = all.sum == 0 ? 0.0f : keep * reciprocal_approximate(all.sum);
        if (column < params.head_dim) {
            uint4 words;
            words.x = narrow2<Element>(values[0] * inverse, values[1] * inverse);
            words.y = narrow2<Element>(values[2] * inverse, values[3] * inverse);
            words.z = narrow2<Element>(values[4] * inverse, values[5] * inverse);
            words.w = narrow2<Element>(values[6] * inverse, values[7] * inverse);
            Element* const to = static_cast<Element*>(params.out.address) + of.batch * params.out.batch + head * params.out.head +
                                (long long)(of.q.first + query) * params.out.row + column;
            *reinterpret_cast<uint4*>(to) = words;
        }
        if (column == 0 && params.lse)
            params.lse[of.batch * params.lse_batch + head * params.lse_head + of.q.first + query] =
                all.sum == 0 ? negative_infinity() : (all.max + __log2f(all.sum)) * LN_2;
    }

    // A row of a part in the workspace: the parts' outputs, two a CTA, then their maxima and sums.
    __device__ float* part(int slot, int row) const
    {
        return params.work.partials + (slot * Traits::BLOCK_M + row) * HEAD_DIM;
    }
    __device__ float* part_sum(int slot, int row) const
    {
        return params.work.partials + 2 * gridDim.x * Traits::BLOCK_M * HEAD_DIM + 2 * (slot * Traits::BLOCK_M + row);
    }

    // Lengths that changed during the launch may have left semaphores that nobody brought back to 0. The last CTA to end does.
    __device__ void reset_semaphores()
    {
        if (threadIdx.x != 0) return;
        __threadfence();
        if (atomicInc(params.work.counter, gridDim.x - 1) != gridDim.x - 1) return;
        for (unsigned cta = 0; cta < gridDim.x; cta++) params.work.semaphores[cta] = 0;
    }

    __device__ static unsigned shared_address(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }
    __device__ static void cp_async_16(unsigned shared, const void* source, bool valid)
    {
        warptile::cp_async_16(__cvta_shared_to_generic(shared), source, valid);
    }

    const Forward& params;
    unsigned char* const shared;
    const int group;
    const int warp, lane;
    const unsigned ring;

    int described; // the last segment that is known
    int loading;   // segment
    int load_block, load_end, load_len;
    const Element* load_keys;
    const Element* load_values;
    int load_stage = 0;
    int under_way = 0; // groups
    int stage = 0;     // that is computed next

    unsigned queries[Traits::SHARED_QUERIES ? 1 : HEAD_DIM / FRAGMENT_DEPTH][4];
    float output[HEAD_DIM / FRAGMENT_COLUMNS][4];
    RowSum rows[2];
    float slope[2];
};

template <class Traits> __device__ void decode_attention(const Forward& params)
{
    extern __shared__ __align__(128) unsigned char shared[];
    Decode<Traits>(params, shared).run();
}

} // namespace warptile
