// The wmma family: both products on tensor cores through nvcuda::wmma, with Q, K, V and P in shared memory, and fp32 accumulation.
//
// The scores stay in registers although WMMA keeps the placement of their elements to itself:
//   - p = 2^(t - m) needs the reference max of the element's row, not its place: each lane holds m for its elements.
//   - m only has to be close to the row's max. Whether some score exceeds it by more than MAX_SLACK is one vote per tile;
//     in the rare tile where one does, the lanes' partial maxima are reduced through shared memory.
//   - Row sums are kept per lane, and reduced the same way once, at the end.
//   - P is rounded, written to shared memory, and read back as the A operand of P V.
#pragma once

#include "base/record.cuh"
#include "forward/wmma_fragments.cuh"
#include "rule/mask.cuh"
#include "rule/score.cuh"
#include "work/item.cuh"

namespace warptile {

// m may lag behind the row's max by this much, in log2 units: p stays below 2^8, far from f16's limit of 2^16, and 2^30 of
// them far from fp32's. A row rescales its output once or twice instead of at each new maximum.
constexpr float MAX_SLACK = 8.0f;

// Above this m is coarser than the fused t - m, which rounds once: 2^(dot * factor - m) could overflow although no dot
// product exceeds the row's largest. A warp that meets such a row rounds its scores before it subtracts m.
constexpr float COARSE_MAX = 0x1p24f;

__device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
__device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__device__ constexpr int floor_power_of_two(int x) { return x < 2 ? 1 : 2 * floor_power_of_two(x / 2); }

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_> struct WmmaTraits {
    using Element = Element_;
    static constexpr int HEAD_DIM = HEAD_DIM_, BLOCK_M = BLOCK_M_, BLOCK_N = BLOCK_N_, WARPS = WARPS_, STAGES = STAGES_;
    static constexpr int THREADS = WARPS * WARP_SIZE;
    static constexpr unsigned ROLE = ROLE_FORWARD, SCHEDULE = SCHEDULE_ONE_TILE;
    static constexpr unsigned FEATURES = SCORE_OPTIONS | FEATURE_PACKED |
                                         FEATURE_DEVICE_LENGTHS | FEATURE_UNALIGNED | FEATURE_LSE;

    // Tiles of the CTA along queries, keys and the head dimension.
    static constexpr int ROW_TILES = BLOCK_M / TILE, KEY_TILES = BLOCK_N / TILE, DIM_TILES = HEAD_DIM / TILE;
    static_assert(BLOCK_M % TILE == 0 && BLOCK_N % TILE == 0 && HEAD_DIM % TILE == 0 && STAGES >= 1);

    // Warps stand in a grid of WARPS_M groups of WARPS_N. A group owns ROWS row tiles; its warps split the keys of Q K^T
    // and the columns of P V between them. Where that split is uneven, the last warps have less to do.
    static constexpr int WARPS_M = ROW_TILES >= WARPS ? WARPS : floor_power_of_two(ROW_TILES);
    static constexpr int WARPS_N = WARPS / WARPS_M;
    static_assert(WARPS_M * WARPS_N == WARPS);
    static constexpr int ROWS = ceil_div(ROW_TILES, WARPS_M); // row tiles of a group
    static constexpr int KEYS = ceil_div(KEY_TILES, WARPS_N); // key tiles of a warp
    static constexpr int DIMS = ceil_div(DIM_TILES, WARPS_N); // head-dimension tiles of a warp
    // Rows of Q and P in shared memory. The last group may have a tile too many: it computes the next rows of Q, and drops
    // the result.
    static constexpr int SHARED_ROWS = WARPS_M * ROWS * TILE;

    // Rows in shared memory are padded by one 16-byte chunk, to an odd number of chunks: the eight rows that one phase of
    // a fragment load touches lie in different banks.
    static constexpr int PAD = CHUNK<Element>;
    static constexpr int K_STRIDE = HEAD_DIM + PAD, V_STRIDE = HEAD_DIM + PAD;

    // Registers of the fragments that live through the main loop. Q's stay with them where all fit three or four warps per
    // scheduler, and leave Q's rows in shared memory to P; elsewhere Q is read again for each key tile.
    static constexpr int OUT_AND_SCORES = ROWS * (DIMS + KEYS) * LANE_ELEMENTS, Q_FRAGMENTS = ROWS * DIM_TILES * 4;
    static constexpr bool Q_IN_REGISTERS = OUT_AND_SCORES + Q_FRAGMENTS <= 80;
    // A row tile of P is at least as large as the partial results of one warp, which take its place when a group is a
    // single warp.
    static constexpr int P_STRIDE = max_of(Q_IN_REGISTERS ? max_of(HEAD_DIM, BLOCK_N) : BLOCK_N, 48) + PAD;
    static constexpr int Q_STRIDE = Q_IN_REGISTERS ? P_STRIDE : HEAD_DIM + PAD;
    static_assert(TILE * P_STRIDE * (int)sizeof(Element) >= PARTIAL_BYTES);
    static_assert(WARPS_N > 1 || ROWS == 1 || !Q_IN_REGISTERS, "sums of later rows would lie where results of the first ones are");

    // Shared memory, in bytes from its start.
    static constexpr int STAGE_BYTES = BLOCK_N * K_STRIDE * (int)sizeof(Element); // of K, and of V
    static constexpr int K_OFFSET = 0;
    static constexpr int V_OFFSET = K_OFFSET + STAGES * STAGE_BYTES;
    static constexpr int Q_OFFSET = V_OFFSET + STAGES * STAGE_BYTES;
    static constexpr int P_OFFSET = Q_OFFSET + (Q_IN_REGISTERS ? 0 : SHARED_ROWS * Q_STRIDE * (int)sizeof(Element));
    static constexpr int PARTIALS_OFFSET = P_OFFSET + SHARED_ROWS * P_STRIDE * (int)sizeof(Element);
    static constexpr int SHARED_BYTES = PARTIALS_OFFSET + (WARPS_N > 1 ? WARPS * PARTIAL_BYTES : 0);
    static_assert(WARPS * TILE * TILE * (int)sizeof(float) <= Q_OFFSET, "the probes fit where K and V will be");

    // As many warps per SM as the state of the loop, with the m and sum of each element, leaves registers for: 16 warps
    // with 128 each, 12 with 168 or 8 with 255.
    static constexpr int STATE = OUT_AND_SCORES + Q_IN_REGISTERS * Q_FRAGMENTS + ROWS * 2 * LANE_ELEMENTS;
    static constexpr int MIN_CTAS = max_of(1, (STATE <= 64 ? 16 : STATE <= 96 ? 12 : 8) / WARPS);
};

// Brings tiles of K and V through STAGES buffers each. `tile` counts key tiles from the first that is visible.
template <class Traits> struct KeyValuePipeline {
    using Element = typename Traits::Element;
    static constexpr int STAGE_ELEMENTS = Traits::BLOCK_N * Traits::K_STRIDE;
    // The groups of copies that may still be under way when a tile is needed: those of the tiles after it.
    static constexpr int PENDING = max_of(Traits::STAGES - 2, 0);

    Element* k_stages;
    Element* v_stages;
    const Rows<const Element>& k_rows;
    const Rows<const Element>& v_rows;
    int first_key;
    int tiles;
    int key_len;
    int head_dim;
    int value_dim;

    __device__ Element* k(int tile) const { return k_stages + tile % Traits::STAGES * STAGE_ELEMENTS; }
    __device__ Element* v(int tile) const { return v_stages + tile % Traits::STAGES * STAGE_ELEMENTS; }

    // Starts the first copies. The first group also takes in what the caller has copied before.
    __device__ void start() const
    {
        if constexpr (Traits::STAGES == 1) {
            copy(k(0), k_rows, 0, head_dim);
            cp_async_commit();
        }
#pragma unroll
        for (int tile = 0; tile < Traits::STAGES - 1; ++tile) {
            copy(k(tile), k_rows, tile, head_dim);
            copy(v(tile), v_rows, tile, value_dim);
            cp_async_commit();
        }
    }

    // Waits for the copies that are needed next, then for all warps: the barrier makes every thread's copies visible and
    // proves that all have finished the tile before. Only after it is that one's buffer refilled.
    __device__ void wait_for_keys(int tile) const
    {
        cp_async_wait<PENDING>();
        __syncthreads();
        if constexpr (Traits::STAGES == 1) {
            copy(v(tile), v_rows, tile, value_dim); // arrives during Q K^T and the softmax
        } else {
            const int next = tile + Traits::STAGES - 1;
            copy(k(next), k_rows, next, head_dim);
            copy(v(next), v_rows, next, value_dim);
        }
        cp_async_commit();
    }

    // With more than one stage the values have come with the keys. With one, they take turns: the next keys arrive during
    // P V.
    __device__ void wait_for_values(int tile) const
    {
        if constexpr (Traits::STAGES == 1) {
            cp_async_wait<0>();
            __syncthreads();
            copy(k(tile + 1), k_rows, tile + 1, head_dim);
            cp_async_commit();
        }
    }

  private:
    __device__ void copy(Element* stage, const Rows<const Element>& rows, int tile, int columns) const
    {
        if (tile < tiles)
            copy_tile_async<Traits::THREADS, Traits::BLOCK_N, Traits::HEAD_DIM, Traits::K_STRIDE>(
                stage, rows, first_key + tile * Traits::BLOCK_N, key_len, columns);
    }
};

template <int ROWS, int KEYS, class Use>
__device__ inline void each_tile(Accumulator (&s)[ROWS][KEYS], Use&& use)
{
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int n = 0; n < KEYS; ++n) use(r, n, s[r][n]);
}

// Replaces each score x by change(x, row, key); row and key count from the first of the group's and the warp's.
template <int ROWS, int KEYS, class Change>
__device__ inline void update(Accumulator (&s)[ROWS][KEYS], const AccumulatorMap& map, Change&& change)
{
    each_tile(s, [&](int r, int n, Accumulator& values) {
#pragma unroll
        for (int e = 0; e < LANE_ELEMENTS; ++e)
            values.x[e] = change(values.x[e], r * TILE + map.row(e), n * TILE + map.column(e));
    });
}

// An opaque copy of the rule, so that the compiler does not hoist computations with it out of loops.
__device__ inline ScoreRule on_the_spot(ScoreRule rule)
{
    asm volatile("" : "+f"(rule.scale));
    return rule;
}

__device__ inline Mask on_the_spot(Mask mask)
{
    asm volatile("" : "+r"(mask.shift));
    return mask;
}

// A tree, not a chain: this stands between the products of every tile.
__device__ inline float max_of_all(const float (&x)[LANE_ELEMENTS])
{
    return fmaxf(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), fmaxf(fmaxf(x[4], x[5]), fmaxf(x[6], x[7])));
}

template <class Traits> __device__ inline void wmma_attention(const Forward& params)
{
    using Element = typename Traits::Element;
    constexpr int ROWS = Traits::ROWS, KEYS = Traits::KEYS, DIMS = Traits::DIMS, WARPS_N = Traits::WARPS_N;
    constexpr int K_STRIDE = Traits::K_STRIDE, V_STRIDE = Traits::V_STRIDE;
    constexpr int Q_STRIDE = Traits::Q_STRIDE, P_STRIDE = Traits::P_STRIDE;

    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ TilePlace shared_place;
    const TilePlace place = place_of_cta<Traits::BLOCK_M>(params, shared_place);
    if (!place.template exists<Traits::BLOCK_M>()) return;
    const WorkItem<Element> work = work_item<Traits::BLOCK_M, Element>(params, place);
    const Mask mask(params.scoring, work.query_len, work.key_len);
    const ScoreRule rule(params.scoring, work.terms, work.query_len, work.key_len, LOG2_E);
    // Scores are plain when they are a positive multiple of the dot products, which then stand for them up to the
    // exponential. The bound on the multiple keeps f16's largest dot product (65504^2 * 256 < 2^40) finite.
    // One register says both which multiple, and, being 0, that they are not.
    float multiple = !rule.bends() && !rule.has_alibi() && rule.scale > 0 && rule.scale < 0x1p80f ? rule.scale : 0.0f;

    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const WarpGroup<WARPS_N> group = {warp / WARPS_N, warp % WARPS_N};
    const int group_row = group.index * ROWS * TILE; // first row of the group in the CTA's tile
    const int warp_key = group.rank * KEYS * TILE;   // first key of the warp in a key tile
    const int warp_dim = group.rank * DIMS * TILE;   // first column of the output of the warp
    const auto has_keys = [&](int n) { return Traits::KEY_TILES % WARPS_N == 0 || warp_key + n * TILE < Traits::BLOCK_N; };
    const auto has_dims = [&](int d) { return Traits::DIM_TILES % WARPS_N == 0 || warp_dim + d * TILE < Traits::HEAD_DIM; };

    Element* const q_tile = reinterpret_cast<Element*>(shared + Traits::Q_OFFSET);
    Element* const q = q_tile + group_row * Q_STRIDE;
    Element* const p = reinterpret_cast<Element*>(shared + Traits::P_OFFSET) + group_row * P_STRIDE;
    unsigned char* const partial_bytes = WARPS_N == 1 ? reinterpret_cast<unsigned char*>(p)
                                                      : shared + Traits::PARTIALS_OFFSET + group.index * WARPS_N * PARTIAL_BYTES;
    float* const partials = reinterpret_cast<float*>(partial_bytes);

    const AccumulatorMap map(reinterpret_cast<float*>(shared) + warp * TILE * TILE);
    int p_offsets[LANE_ELEMENTS / 2];
    map.pair_offsets<P_STRIDE>(p_offsets);
    __syncthreads(); // the probes lie where K and V are about to be copied to

    const int first_key = mask.first_key(work.first_query);
    const int end_key = mask.end_key(work.first_query, Traits::BLOCK_M);
    const KeyValuePipeline<Traits> pipeline = {
        reinterpret_cast<Element*>(shared + Traits::K_OFFSET),
        reinterpret_cast<Element*>(shared + Traits::V_OFFSET),
        work.k,
        work.v,
        first_key,
        max(0, ceil_div(end_key - first_key, Traits::BLOCK_N)),
        work.key_len,
        params.head_dim,
        params.value_dim,
    };
    copy_tile_async<Traits::THREADS, Traits::SHARED_ROWS, Traits::HEAD_DIM, Q_STRIDE>(q_tile, work.q, work.first_query,
                                                                                      work.query_len, params.head_dim);
    pipeline.start();

    RowTile<Element> q_tiles[ROWS][Traits::DIM_TILES];
    const auto load_queries = [&](int d) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) wmma::load_matrix_sync(q_tiles[r][d], q + r * TILE * Q_STRIDE + d * TILE, Q_STRIDE);
    };
    if constexpr (Traits::Q_IN_REGISTERS) {
        cp_async_wait<pipeline.PENDING>();
        __syncthreads();
#pragma unroll
        for (int d = 0; d < Traits::DIM_TILES; ++d) load_queries(d);
    }

    Accumulator out[ROWS][DIMS];
    float m[ROWS][LANE_ELEMENTS];   // reference max of the element's row, in log2 units; -MAX_FLOAT before its first key
    float sum[ROWS][LANE_ELEMENTS]; // of the p at this element's place in all key tiles of this warp
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int d = 0; d < DIMS; ++d) wmma::fill_fragment(out[r][d], 0.0f);
#pragma unroll
        for (int e = 0; e < LANE_ELEMENTS; ++e) {
            m[r][e] = -MAX_FLOAT;
            sum[r][e] = 0;
        }
    }

#pragma unroll 1
    for (int tile = 0; tile < pipeline.tiles; ++tile) {
        const int tile_key = first_key + tile * Traits::BLOCK_N;
        pipeline.wait_for_keys(tile);

        // S = Q K^T
        Accumulator s[ROWS][KEYS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int n = 0; n < KEYS; ++n) wmma::fill_fragment(s[r][n], 0.0f);
        const Element* const k = pipeline.k(tile) + warp_key * K_STRIDE;
#pragma unroll
        for (int d = 0; d < Traits::DIM_TILES; ++d) {
            if constexpr (!Traits::Q_IN_REGISTERS) load_queries(d);
#pragma unroll
            for (int n = 0; n < KEYS; ++n) {
                if (!has_keys(n)) continue;
                KeyTile<Element> keys;
                wmma::load_matrix_sync(keys, k + n * TILE * K_STRIDE + d * TILE, K_STRIDE);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) wmma::mma_sync(s[r][n], q_tiles[r][d], keys, s[r][n]);
            }
        }

        // Scores from the dot products where they are more than a multiple; the mask where it hides something.
        const bool masked = mask.hides_part_of(work.first_query, Traits::BLOCK_M, tile_key, Traits::BLOCK_N);
        const bool plain = multiple > 0;
        float factor = plain ? multiple : 1.0f; // of s, in log2 units
        if (!plain || masked) {
            const AccumulatorMap here = map.on_the_spot();
            const int first_query = work.first_query + group_row, first_column = tile_key + warp_key;
            const float limit = on_the_spot(rule).dot_limit();
            update(s, here, [&](float x, int, int) { return clamp_keeping_nan(x, limit); });
            if (!plain) update(s, here, [&](float x, int, int) { return x * rule.scale; });
            if (rule.bends())
                update(s, here, [&](float x, int, int) { return rule.bent(x); });
            if (rule.has_alibi())
                update(s, here, [&](float x, int row, int key) {
                    return rule.with_alibi(x, first_query + row, first_column + key);
                });
            if (masked) {
                const Mask hiding = on_the_spot(mask);
                update(s, here, [&](float x, int row, int key) {
                    return hiding.sees(first_query + row, first_column + key) ? x : negative_infinity();
                });
            }
        }

        // Where nothing is hidden, dot products so small that their scores overflow count as the smallest that don't: else
        // their row would seem to have seen no key.
        const float least = plain && !masked ? -__fdividef(MAX_FLOAT / 4, fmaxf(1.0f, factor)) : negative_infinity();
        // Does any score exceed its row's reference by more than the slack?
        float tile_max[ROWS][LANE_ELEMENTS], excess[LANE_ELEMENTS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int e = 0; e < LANE_ELEMENTS; ++e) {
                tile_max[r][e] = least;
#pragma unroll
                for (int n = 0; n < KEYS; ++n)
                    if (has_keys(n)) tile_max[r][e] = fmaxf(tile_max[r][e], s[r][n].x[e]);
                const float above = fmaf(tile_max[r][e], factor, -m[r][e]);
                excess[e] = r == 0 ? above : fmaxf(excess[e], above);
            }
        if (group.any(max_of_all(excess) > MAX_SLACK)) {
            // Then every row's reference rises to its max. A plain score that overflowed counts as the largest finite one.
            const AccumulatorMap here = map.on_the_spot();
            const float limit = plain ? on_the_spot(rule).dot_limit() : MAX_FLOAT;
            update(s, here, [&](float x, int, int) { return x > limit ? limit : x; });
            if (least > negative_infinity()) update(s, here, [&](float x, int, int) { return x < least ? least : x; });
            bool coarse = false;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float row_max = fminf(reduce_rows<Max>(tile_max[r], partials, group), limit);
                float risen[LANE_ELEMENTS];
                here.spread(row_max * factor, risen);
#pragma unroll
                for (int e = 0; e < LANE_ELEMENTS; ++e) {
                    risen[e] = fmaxf(m[r][e], risen[e]);
                    coarse = coarse || (fabsf(risen[e]) > COARSE_MAX && risen[e] != -MAX_FLOAT);
                    const float rescale = exp2_approximate(m[r][e] - risen[e]);
                    m[r][e] = risen[e];
                    sum[r][e] *= rescale;
#pragma unroll
                    for (int d = 0; d < DIMS; ++d) out[r][d].x[e] *= rescale;
                }
            }
            if (plain && __any_sync(~0u, coarse)) {
                update(s, here, [&](float x, int, int) { return x * factor; });
                factor = 1;
                multiple = 0;
            }
        }

        // P = 2^(S - m)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int n = 0; n < KEYS; ++n)
#pragma unroll
                for (int e = 0; e < LANE_ELEMENTS; ++e) {
                    s[r][n].x[e] = exp2_approximate(fmaf(s[r][n].x[e], factor, -m[r][e]));
                    if (has_keys(n)) sum[r][e] += s[r][n].x[e];
                }
        Element* const p_warp = p + warp_key;
        if (map.pairs_adjacent) {
            each_tile(s, [&](int r, int n, const Accumulator& values) {
                if (has_keys(n)) store_pairs(p_warp + r * TILE * P_STRIDE + n * TILE, values, p_offsets);
            });
        } else {
            const AccumulatorMap here = map.on_the_spot();
            each_tile(s, [&](int r, int n, const Accumulator& values) {
                if (has_keys(n)) here.store<P_STRIDE>(p_warp + r * TILE * P_STRIDE + n * TILE, values);
            });
        }
        group.sync();
        pipeline.wait_for_values(tile);

        // O += P V
        const Element* const v = pipeline.v(tile) + warp_dim;
#pragma unroll
        for (int n = 0; n < Traits::KEY_TILES; ++n) {
            RowTile<Element> p_tiles[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) wmma::load_matrix_sync(p_tiles[r], p + r * TILE * P_STRIDE + n * TILE, P_STRIDE);
#pragma unroll
            for (int d = 0; d < DIMS; ++d) {
                if (!has_dims(d)) continue;
                ValueTile<Element> values;
                wmma::load_matrix_sync(values, v + n * TILE * V_STRIDE + d * TILE, V_STRIDE);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) wmma::mma_sync(out[r][d], p_tiles[r], values, out[r][d]);
            }
        }
    }
    // Queries that see no key come straight here, with Q still on its way to where their output is about to be written.
    cp_async_wait<0>();
    __syncthreads();

    // out = O / sum, lse = m + ln(sum)
    // Where they go is worked out again, from a place the compiler does not know to be the same: kept through the loop it
    // would cost the registers that some tilings lack.
    const TilePlace again = place_again<Traits::BLOCK_M>(params, shared_place);
    const AccumulatorMap here = map.on_the_spot();
    const WorkItem<Element> result = work_item<Traits::BLOCK_M, Element>(params, again);
    const float term = last_term_of(params.scoring, result.head);
    const int first_query = result.first_query + group_row;
    const int end_query = min(result.query_len, result.first_query + Traits::BLOCK_M);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float row_sum = reduce_rows<Sum>(sum[r], partials, group);
        float row_max = reduce_rows<Max>(m[r], partials, group);
        float keep = 1;
        if (term != negative_infinity()) keep = join_last_term(row_max, row_sum, term);
        const int query = first_query + r * TILE + lane / 2;
        if (result.lse && group.rank == 0 && lane % 2 == 0 && query < end_query)
            result.lse[query] = log_sum_exp(row_max * LN_2, row_sum);
        float inverse[LANE_ELEMENTS];
        here.spread(row_sum == 0 ? 0.0f : keep / row_sum, inverse);
#pragma unroll
        for (int d = 0; d < DIMS; ++d) {
            if (!has_dims(d)) continue;
#pragma unroll
            for (int e = 0; e < LANE_ELEMENTS; ++e) out[r][d].x[e] *= inverse[e];
            here.store<Q_STRIDE>(q + r * TILE * Q_STRIDE + warp_dim + d * TILE, out[r][d]);
        }
    }
    group.sync();
    store_rows<WARPS_N * WARP_SIZE, ROWS * TILE, Traits::HEAD_DIM, Q_STRIDE>(
        q, result.out, first_query, end_query, params.value_dim, group.rank * WARP_SIZE + lane);
}

} // namespace warptile
