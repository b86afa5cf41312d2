// The `scalar` family: attention on CUDA cores. Every feature of the API but pages, e4m3 and lists of blocks, every element type, fp32 arithmetic; the
// reference that the tensor-core families are held against on a GPU.
//
// A CTA computes BLOCK_M query rows. Its warps form a grid of WARPS_M x WARPS_N over each BLOCK_M x BLOCK_N tile of
// scores, and every warp keeps the running max, running sum and output of its own rows over its own keys: warps meet only
// to stage K and V, and once at the end to merge. Within a warp a thread owns ROWS x KEYS scores and ROWS x COLUMNS of
// output in registers.
#pragma once

#include "base/record.cuh"
#include "memory/copy.cuh"
#include "rule/dropout.cuh"
#include "rule/mask.cuh"
#include "rule/score.cuh"
#include "rule/tensors.cuh"
#include "work/item.cuh"

namespace warptile {

__device__ constexpr int min(int a, int b) { return a < b ? a : b; }
__device__ constexpr int max(int a, int b) { return a > b ? a : b; }

// A warp's lanes form a grid of 4 rows x 8 columns. The bits of the two coordinates alternate, so that of two neighbours
// in the lane number one shares the row and the other the column: vector loads of either operand then broadcast.
constexpr int LANES_M = 4;
constexpr int LANES_N = 8;
__device__ inline int lane_row(int lane) { return (lane >> 1 & 1) | (lane >> 2 & 2); }
__device__ inline int lane_column(int lane) { return (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4); }

__device__ inline float component(const float4& vector, int index)
{
    return index == 0 ? vector.x : index == 1 ? vector.y : index == 2 ? vector.z : vector.w;
}

// factor * vector + addend
__device__ inline float4 multiply_add(float factor, const float4& vector, const float4& addend)
{
    return {fmaf(factor, vector.x, addend.x), fmaf(factor, vector.y, addend.y), fmaf(factor, vector.z, addend.z),
            fmaf(factor, vector.w, addend.w)};
}

__device__ inline float4 scaled(float factor, const float4& vector)
{
    return {factor * vector.x, factor * vector.y, factor * vector.z, factor * vector.w};
}

__device__ inline float4 add(const float4& a, const float4& b)
{
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

template <class Combine> __device__ float reduce_over_columns(float value, Combine combine)
{
#pragma unroll
    for (int bit : {1, 4, 16}) value = combine(value, __shfl_xor_sync(0xffffffffu, value, bit));
    return value;
}

// Score rows per thread: the tallest that leaves the output 128 registers and every warp whole groups of 16 keys. A tall
// thread tile is the cheap one, because only K and V, not Q and P, are widened to fp32 in the inner loops.
template <int HEAD_DIM, int BLOCK_M, int BLOCK_N, int WARPS> __device__ constexpr int rows_per_thread()
{
    for (int rows = 8; rows > 1; --rows) {
        const int warps_m = BLOCK_M / (LANES_M * rows);
        if (BLOCK_M % (LANES_M * rows) != 0 || WARPS % warps_m != 0 || rows * HEAD_DIM / LANES_N > 128) continue;
        if (BLOCK_N % (WARPS / warps_m * 16) == 0) return rows;
    }
    return 1;
}

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_> struct ScalarTraits {
    using Element = Element_;
    static constexpr int HEAD_DIM = HEAD_DIM_;
    static constexpr int BLOCK_M = BLOCK_M_;
    static constexpr int BLOCK_N = BLOCK_N_;
    static constexpr int WARPS = WARPS_;
    static constexpr int STAGES = STAGES_;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr unsigned ROLE = ROLE_FORWARD, SCHEDULE = SCHEDULE_ONE_TILE;
    static constexpr unsigned FEATURES = SCORE_OPTIONS | SCORE_TENSORS |
                                         FEATURE_PACKED | FEATURE_DEVICE_LENGTHS | FEATURE_UNALIGNED |
                                         FEATURE_NEGATIVE_SCALE | FEATURE_LSE;

    // Per thread. Rows, keys and vectors of four columns are interleaved over the lanes: lane l owns l, l + LANES, ...
    static constexpr int ROWS = rows_per_thread<HEAD_DIM, BLOCK_M, BLOCK_N, WARPS>();
    static constexpr int WARPS_M = BLOCK_M / (LANES_M * ROWS);
    static constexpr int WARPS_N = WARPS / WARPS_M;
    static constexpr int KEYS = BLOCK_N / (LANES_N * WARPS_N);
    static constexpr int VECTORS = HEAD_DIM / (LANES_N * 4);
    // Dimensions summed at a time in a dot product. In f32 the rounding of the sum is what limits the result, and a sum of
    // short sums rounds less than one long sum; 16-bit inputs are far coarser than either.
    static constexpr int DOT_SPAN = sizeof(Element) == 4 ? 32 : HEAD_DIM;
    // Steps of four unrolled in the two products. Where the output takes 128 registers, more would spill.
    static constexpr int QK_UNROLL = sizeof(Element) == 4 && ROWS * VECTORS >= 32 ? 1 : 2;
    static constexpr int PV_UNROLL = ROWS * VECTORS >= 32 ? 1 : 2;
    static constexpr int WARP_M = LANES_M * ROWS;
    static constexpr int WARP_N = LANES_N * KEYS;

    // Distance between rows in shared memory, padded against bank conflicts: 8 elements for K and V; one vector of four
    // for Q and P, which are read as vectors from four neighbouring rows.
    static constexpr int K_STRIDE = HEAD_DIM + 8;
    static constexpr int V_STRIDE = HEAD_DIM + 8;
    static constexpr int Q_STRIDE = HEAD_DIM + 4; // floats; Q is widened once. The merged output takes its place.
    static constexpr int P_STRIDE = WARP_N + 4;   // floats

    static constexpr int K_BYTES = BLOCK_N * K_STRIDE * (int)sizeof(Element);
    static constexpr int V_BYTES = BLOCK_N * V_STRIDE * (int)sizeof(Element);
    static constexpr int Q_BYTES = BLOCK_M * Q_STRIDE * (int)sizeof(float);
    static constexpr int P_BYTES = WARPS * WARP_M * P_STRIDE * (int)sizeof(float);
    static constexpr int SHARED_BYTES = STAGES * (K_BYTES + V_BYTES) + Q_BYTES + P_BYTES;

    // Registers a thread needs: output, scores, one vector of Q or P per row, and addresses and operands (a row of fp32 takes
    // twice the copies). Both limits on the CTAs that share an SM are of 64 K registers and 228 KB.
    static constexpr int REGISTERS = 4 * ROWS * VECTORS + ROWS * KEYS + 4 * ROWS + (sizeof(Element) == 4 ? 80 : 60);
    static constexpr int CTAS_BY_REGISTERS = 65536 / (THREADS * REGISTERS);
    static constexpr int CTAS_BY_SHARED = 228 * 1024 / (SHARED_BYTES + 1024);
    static constexpr int MIN_CTAS = max(1, min(CTAS_BY_REGISTERS, CTAS_BY_SHARED));

    static_assert(STAGES >= 1 && STAGES <= 3, "one to three stages of K and V");
    static_assert(HEAD_DIM % (LANES_N * 4) == 0, "a warp covers a row of the output in whole vectors");
    static_assert(BLOCK_M == WARPS_M * LANES_M * ROWS, "the warps cover the rows");
    static_assert(WARPS == WARPS_M * WARPS_N, "the warps form a grid");
    static_assert(BLOCK_N == WARPS_N * LANES_N * KEYS && KEYS >= 1, "the warps cover the keys");
    static_assert(2 * WARPS_N * BLOCK_M * (int)sizeof(float) <= P_BYTES, "row statistics take the place of P");
    static_assert(THREADS <= 1024 && SHARED_BYTES <= 227 * 1024, "within the limits of the hardware");
};

// Where this thread stands in the tile.
template <class Traits> struct Place {
    int warp_key = threadIdx.x / 32 / Traits::WARPS_M;         // which share of the keys
    int row = threadIdx.x / 32 % Traits::WARPS_M * Traits::WARP_M // first of its rows
              + lane_row(threadIdx.x % 32);
    int column = lane_column(threadIdx.x % 32);                // among the lanes of a row
    int key = warp_key * Traits::WARP_N + column;              // first of its keys
};

// Dynamic shared memory of the CTA.
template <class Traits> struct SharedTiles {
    using Element = typename Traits::Element;
    Element* k_stages; // [STAGES][BLOCK_N][K_STRIDE]
    Element* v_stages; // [STAGES][BLOCK_N][V_STRIDE]
    float* q;          // [BLOCK_M][Q_STRIDE]; after the last tile: the merged output
    float* p;          // [WARPS][WARP_M][P_STRIDE]; after the last tile: max and sum, [2][WARPS_N][BLOCK_M]

    __device__ SharedTiles(unsigned char* base)
        : k_stages(reinterpret_cast<Element*>(base)),
          v_stages(reinterpret_cast<Element*>(base + Traits::STAGES * Traits::K_BYTES)),
          q(reinterpret_cast<float*>(base + Traits::STAGES * (Traits::K_BYTES + Traits::V_BYTES))),
          p(q + Traits::Q_BYTES / sizeof(float))
    {
    }
    __device__ Element* k(int tile) const { return k_stages + tile % Traits::STAGES * (Traits::BLOCK_N * Traits::K_STRIDE); }
    __device__ Element* v(int tile) const { return v_stages + tile % Traits::STAGES * (Traits::BLOCK_N * Traits::V_STRIDE); }
    __device__ float* warp_p() const { return p + threadIdx.x / 32 * (Traits::WARP_M * Traits::P_STRIDE); }
};

// Q in fp32; zero where the tile reaches past the sequence or the head size.
template <class Traits>
__device__ void load_query(float* shared, const WorkItem<typename Traits::Element>& work, int head_dim)
{
    using Element = typename Traits::Element;
    constexpr int CHUNKS_PER_ROW = Traits::HEAD_DIM / CHUNK<Element>;
    union Chunk {
        uint4 bits;
        Element elements[CHUNK<Element>];
        __device__ Chunk() : bits() {}
    };
    const auto load = [&](int chunk, bool in_chunks) {
        const int row = work.first_query + chunk / CHUNKS_PER_ROW;
        const int column = chunk % CHUNKS_PER_ROW * CHUNK<Element>;
        const Element* source = work.q.base + row * work.q.stride + column;
        Chunk narrow;
        if (row < work.query_len && column < head_dim)
            narrow.bits = in_chunks ? __ldg(reinterpret_cast<const uint4*>(source)) : load_chunk_by_element(source);
        return narrow;
    };
    const auto store = [&](int chunk, const Chunk& narrow) {
        float* const destination =
            shared + chunk / CHUNKS_PER_ROW * Traits::Q_STRIDE + chunk % CHUNKS_PER_ROW * CHUNK<Element>;
#pragma unroll
        for (int i = 0; i < CHUNK<Element>; i += 4)
            *reinterpret_cast<float4*>(destination + i) = widen4(narrow.elements + i);
    };
    constexpr int CHUNKS = Traits::BLOCK_M * CHUNKS_PER_ROW;
    if (work.q.in_chunks) {
#pragma unroll 4 // several loads in flight
        for (int pass = 0; pass < CHUNKS; pass += Traits::THREADS) {
            const int chunk = pass + threadIdx.x;
            if (CHUNKS % Traits::THREADS == 0 || chunk < CHUNKS) store(chunk, load(chunk, true));
        }
    } else {
#pragma unroll 1
        for (int chunk = threadIdx.x; chunk < CHUNKS; chunk += Traits::THREADS) store(chunk, load(chunk, false));
    }
}

// The ring of K and V stages. Tiles are fetched in order, STAGES - 1 ahead of the one in use.
template <class Traits> struct KeyPipeline {
    const WorkItem<typename Traits::Element>& work;
    const SharedTiles<Traits>& shared;
    int head_dim;
    int value_dim;
    int end_tile;

    // Always closes a group, so that the number of groups in flight is known whether or not there is a tile.
    __device__ void fetch(int tile) const
    {
        if (tile < end_tile) {
            const int first_key = tile * Traits::BLOCK_N;
            copy_tile_async<Traits::THREADS, Traits::BLOCK_N, Traits::HEAD_DIM, Traits::K_STRIDE>(
                shared.k(tile), work.k, first_key, work.key_len, head_dim);
            copy_tile_async<Traits::THREADS, Traits::BLOCK_N, Traits::HEAD_DIM, Traits::V_STRIDE>(
                shared.v(tile), work.v, first_key, work.key_len, value_dim);
        }
        cp_async_commit();
    }

    __device__ void start(int first_tile) const
    {
        for (int ahead = 0; ahead < Traits::STAGES - 1; ++ahead) fetch(first_tile + ahead);
    }

    // On return `tile` is in shared memory and every warp has left tile - 1, whose stage is being refilled.
    __device__ void advance_to(int tile) const
    {
        if constexpr (Traits::STAGES == 1) {
            __syncthreads(); // the only stage is free once every warp has left tile - 1
            fetch(tile);
            cp_async_wait<0>();
            __syncthreads();
        } else {
            cp_async_wait<Traits::STAGES - 2>(); // this thread's copies of `tile`; younger groups stay in flight
            __syncthreads();                     // everyone's copies, and everyone has left tile - 1
            fetch(tile + Traits::STAGES - 1);
        }
    }
};

// scores[i][j] = dot product of query row place.row + i * LANES_M and key place.key + j * LANES_N.
template <class Traits>
__device__ void multiply_qk(float (&scores)[Traits::ROWS][Traits::KEYS], const float* q, const typename Traits::Element* k)
{
#pragma unroll 1
    for (int first = 0; first < Traits::HEAD_DIM; first += Traits::DOT_SPAN) {
        float sums[Traits::ROWS][Traits::KEYS] = {};
#pragma unroll(Traits::QK_UNROLL)
        for (int d = first; d < first + Traits::DOT_SPAN; d += 4) {
            float4 rows[Traits::ROWS];
#pragma unroll
            for (int i = 0; i < Traits::ROWS; ++i) rows[i] = widen4(q + i * (LANES_M * Traits::Q_STRIDE) + d);
#pragma unroll
            for (int j = 0; j < Traits::KEYS; ++j) {
                const float4 key = widen4(k + j * (LANES_N * Traits::K_STRIDE) + d);
#pragma unroll
                for (int i = 0; i < Traits::ROWS; ++i) {
                    sums[i][j] = fmaf(rows[i].x, key.x, sums[i][j]);
                    sums[i][j] = fmaf(rows[i].y, key.y, sums[i][j]);
                    sums[i][j] = fmaf(rows[i].z, key.z, sums[i][j]);
                    sums[i][j] = fmaf(rows[i].w, key.w, sums[i][j]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < Traits::ROWS; ++i)
#pragma unroll
            for (int j = 0; j < Traits::KEYS; ++j) scores[i][j] = first == 0 ? sums[i][j] : scores[i][j] + sums[i][j];
    }
}

// e^(score - max). The difference comes first: a product of the max alone would be rounded, and for scores beyond 2^24 by
// more than all differences that count.
__device__ inline float weight_of(float score, float max) { return exp2_approximate((score - max) * LOG2_E); }

// Running softmax and output of this thread's rows over the keys of its warp. `sum` covers this thread's own keys until
// the end; `max` is that of the whole row of the warp.
template <class Traits> struct RowState {
    float max[Traits::ROWS];
    float sum[Traits::ROWS];
    float4 out[Traits::ROWS][Traits::VECTORS];

    __device__ RowState()
    {
#pragma unroll
        for (int i = 0; i < Traits::ROWS; ++i) {
            max[i] = negative_infinity();
            sum[i] = 0;
#pragma unroll
            for (int c = 0; c < Traits::VECTORS; ++c) out[i][c] = make_float4(0, 0, 0, 0);
        }
    }

    // Replaces scores by probabilities relative to the new running max, and rescales what was accumulated.
    __device__ void update(float (&scores)[Traits::ROWS][Traits::KEYS])
    {
#pragma unroll
        for (int i = 0; i < Traits::ROWS; ++i) {
            float tile_max = scores[i][0];
#pragma unroll
            for (int j = 1; j < Traits::KEYS; ++j) tile_max = fmaxf(tile_max, scores[i][j]);
            tile_max = reduce_over_columns(tile_max, [](float a, float b) { return fmaxf(a, b); });
            const float new_max = fmaxf(max[i], tile_max);
            const float base = finite_max(new_max);
            const float rescale = weight_of(max[i], base);
            max[i] = new_max;
            sum[i] *= rescale;
#pragma unroll
            for (int j = 0; j < Traits::KEYS; ++j) {
                scores[i][j] = weight_of(scores[i][j], base);
                sum[i] += scores[i][j];
            }
#pragma unroll
            for (int c = 0; c < Traits::VECTORS; ++c) out[i][c] = scaled(rescale, out[i][c]);
        }
    }
};

// out += P V over the keys of this warp. `p` is this thread's first row, `v` its first column.
template <class Traits>
__device__ void multiply_pv(float4 (&out)[Traits::ROWS][Traits::VECTORS], const float* p, const typename Traits::Element* v)
{
#pragma unroll(Traits::PV_UNROLL)
    for (int key = 0; key < Traits::WARP_N; key += 4) {
        float4 rows[Traits::ROWS];
#pragma unroll
        for (int i = 0; i < Traits::ROWS; ++i) rows[i] = widen4(p + i * (LANES_M * Traits::P_STRIDE) + key);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
            for (int c = 0; c < Traits::VECTORS; ++c) {
                const float4 value = widen4(v + (key + k) * Traits::V_STRIDE + c * (LANES_N * 4));
#pragma unroll
                for (int i = 0; i < Traits::ROWS; ++i)
                    out[i][c] = multiply_add(component(rows[i], k), value, out[i][c]);
            }
        }
    }
}

// change(score, query, key) for each score of this thread; `query` and `key` are the positions of scores[0][0].
template <class Traits, class Change>
__device__ void for_each_score(float (&scores)[Traits::ROWS][Traits::KEYS], int query, int key, Change change)
{
#pragma unroll
    for (int i = 0; i < Traits::ROWS; ++i)
#pragma unroll
        for (int j = 0; j < Traits::KEYS; ++j) change(scores[i][j], query + i * LANES_M, key + j * LANES_N);
}

// Adds the bias tensor, and hides what the mask tensor hides; neither is read outside of the sequence. Through `p`, where the
// thread's scores go anyway: a loop over registers would have to be unrolled, and takes more of them than some tilings have.
template <class Traits>
__device__ void apply_tensors(float (&scores)[Traits::ROWS][Traits::KEYS], float* p, const Scoring& scoring,
                              const WorkItem<typename Traits::Element>& work, int query, int key)
{
    using Element = typename Traits::Element;
    const auto place = [&](int i, int j) -> float& { return p[i * LANES_M * Traits::P_STRIDE + j * LANES_N]; };
#pragma unroll
    for (int i = 0; i < Traits::ROWS; ++i)
#pragma unroll
        for (int j = 0; j < Traits::KEYS; ++j) place(i, j) = scores[i][j];

    const Element* const bias = bias_row<Element>(scoring, work.batch, work.head, 0);
    const unsigned char* const visible = mask_row(scoring, work.batch, work.head, 0);
#pragma unroll 1
    for (int i = 0; i < Traits::ROWS; ++i)
#pragma unroll 1
        for (int j = 0; j < Traits::KEYS; ++j) {
            const long long row = query + i * LANES_M, column = key + j * LANES_N;
            if (row >= work.query_len || column >= work.key_len) continue;
            float& score = place(i, j);
            // The sum of two finite numbers may be infinite, and infinity - infinity is NaN.
            if (scoring.bias)
                score = min_keeping_nan(score + widen(bias[row * scoring.bias_row + column * scoring.bias_key]), MAX_FLOAT);
            if (has_mask(scoring) && !visible[row * scoring.mask_row + column * scoring.mask_key])
                score = negative_infinity();
        }
#pragma unroll
    for (int i = 0; i < Traits::ROWS; ++i)
#pragma unroll
        for (int j = 0; j < Traits::KEYS; ++j) scores[i][j] = place(i, j);
}

// Dot products to masked scores.
template <class Traits>
__device__ void apply_score_rules(float (&scores)[Traits::ROWS][Traits::KEYS], const ScoreRule& rule, const Mask& mask,
                                  bool masked, int query, int key)
{
    for_each_score<Traits>(scores, query, key, [&](float& s, int, int) { s = rule.score(s); });
    if (rule.bends())
        for_each_score<Traits>(scores, query, key, [&](float& s, int, int) { s = rule.bent(s); });
    if (rule.has_alibi())
        for_each_score<Traits>(scores, query, key, [&](float& s, int i, int j) { s = rule.with_alibi(s, i, j); });
    if (masked)
        for_each_score<Traits>(scores, query, key, [&](float& s, int i, int j) {
            s = mask.sees(i, j) ? s : negative_infinity();
        });
}

// Joins the partial results of the warps that share rows, in a fixed order, and the last term; normalizes, and writes out
// and lse.
template <class Traits>
__device__ void merge_and_store(RowState<Traits>& state, const SharedTiles<Traits>& shared, const Place<Traits>& place,
                                const WorkItem<typename Traits::Element>& work, int value_dim, float last_term)
{
    float* const maxima = shared.p; // [WARPS_N][BLOCK_M]
    float* const sums = shared.p + Traits::WARPS_N * Traits::BLOCK_M;
    __syncthreads(); // Q and P have been read for the last time
#pragma unroll
    for (int i = 0; i < Traits::ROWS; ++i) {
        state.sum[i] = reduce_over_columns(state.sum[i], [](float a, float b) { return a + b; });
        if (place.column == 0) {
            maxima[place.warp_key * Traits::BLOCK_M + place.row + i * LANES_M] = state.max[i];
            sums[place.warp_key * Traits::BLOCK_M + place.row + i * LANES_M] = state.sum[i];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Traits::ROWS; ++i) {
        const int row = place.row + i * LANES_M;
        float row_max = last_term;
        for (int w = 0; w < Traits::WARPS_N; ++w) row_max = fmaxf(row_max, maxima[w * Traits::BLOCK_M + row]);
        const float base = finite_max(row_max);
        float row_sum = weight_of(last_term, base);
        for (int w = 0; w < Traits::WARPS_N; ++w)
            row_sum += sums[w * Traits::BLOCK_M + row] * weight_of(maxima[w * Traits::BLOCK_M + row], base);
        if (work.lse && place.warp_key == 0 && place.column == 0 && work.first_query + row < work.query_len)
            work.lse[work.first_query + row] = log_sum_exp(base, row_sum);
        const float weight = row_sum == 0 ? 0 : __fdividef(weight_of(state.max[i], base), row_sum);
#pragma unroll
        for (int c = 0; c < Traits::VECTORS; ++c) state.out[i][c] = scaled(weight, state.out[i][c]);
    }
    // In each round every warp adds other rows than the warps it shares them with.
#pragma unroll
    for (int round = 0; round < Traits::WARPS_N; ++round) {
#pragma unroll
        for (int i = 0; i < Traits::ROWS; ++i) {
            if ((i + round) % Traits::WARPS_N != place.warp_key) continue;
#pragma unroll
            for (int c = 0; c < Traits::VECTORS; ++c) {
                const int offset = (place.row + i * LANES_M) * Traits::Q_STRIDE + (c * LANES_N + place.column) * 4;
                float4& total = *reinterpret_cast<float4*>(shared.q + offset);
                total = round == 0 ? state.out[i][c] : add(state.out[i][c], total);
            }
        }
        __syncthreads();
    }
    store_tile<Traits::THREADS, Traits::BLOCK_M, Traits::HEAD_DIM, Traits::Q_STRIDE>(
        shared.q, work.out, work.first_query, work.query_len, value_dim);
}

// FlashAttention with online softmax over the tiles of keys that the CTA's queries can see.
template <class Traits> __device__ void scalar_attention(const Forward& params)
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    __shared__ TilePlace shared_place;
    const TilePlace place_of_tile = place_of_cta<Traits::BLOCK_M>(params, shared_place);
    if (!place_of_tile.template exists<Traits::BLOCK_M>()) return;
    const auto work = work_item<Traits::BLOCK_M, typename Traits::Element>(params, place_of_tile);

    const SharedTiles<Traits> shared(shared_memory);
    const Place<Traits> place;
    const Mask mask(params.scoring, work.query_len, work.key_len);
    // In log2 units scores are 1.44 times larger, so that adding the ALiBi term would round up to twice as coarsely as a plain
    // fp32 softmax does: they stay as they are until the exponential.
    const ScoreRule rule(params.scoring, work.terms, work.query_len, work.key_len, 1);
    const int first_tile = mask.first_key(work.first_query) / Traits::BLOCK_N;
    const int end_tile = (mask.end_key(work.first_query, Traits::BLOCK_M) + Traits::BLOCK_N - 1) / Traits::BLOCK_N;

    const KeyPipeline<Traits> pipeline{work, shared, params.head_dim, params.value_dim, end_tile};
    pipeline.start(first_tile);
    load_query<Traits>(shared.q, work, params.head_dim);

    RowState<Traits> state;
    float* const p = shared.warp_p();
    const int warp_row = place.row % Traits::WARP_M;
    for (int tile = first_tile; tile < end_tile; ++tile) {
        pipeline.advance_to(tile);

        float scores[Traits::ROWS][Traits::KEYS];
        multiply_qk<Traits>(scores, shared.q + place.row * Traits::Q_STRIDE, shared.k(tile) + place.key * Traits::K_STRIDE);

        const int first_key = tile * Traits::BLOCK_N;
        const bool masked = mask.hides_part_of(work.first_query, Traits::BLOCK_M, first_key, Traits::BLOCK_N);
        apply_score_rules<Traits>(scores, rule, mask, masked, work.first_query + place.row, first_key + place.key);
        if (params.scoring.bias || has_mask(params.scoring))
            apply_tensors<Traits>(scores, p + warp_row * Traits::P_STRIDE + place.column, params.scoring, work,
                                  work.first_query + place.row, first_key + place.key);
        state.update(scores);

#pragma unroll
        for (int i = 0; i < Traits::ROWS; ++i)
#pragma unroll
            for (int j = 0; j < Traits::KEYS; ++j)
                p[(warp_row + i * LANES_M) * Traits::P_STRIDE + place.column + j * LANES_N] = scores[i][j];
        if constexpr (drops<Traits>()) {
            // There, as random numbers need the registers of the weights.
            const Dropout& dropout = dropout_of<ForwardDropout>(params);
            const DropoutMask kept(dropout, work.batch);
#pragma unroll 1
            for (int i = 0; i < Traits::ROWS * Traits::KEYS; ++i) {
                const int row = i / Traits::KEYS * LANES_M, key = i % Traits::KEYS * LANES_N;
                float& weight = p[(warp_row + row) * Traits::P_STRIDE + place.column + key];
                const bool keeps = kept.keeps(work.head, work.first_query + place.row + row, first_key + place.key + key);
                weight = keeps ? weight * dropout.factor : 0;
            }
        }
        __syncwarp(); // P is private to the warp; the next tile's barrier keeps it from being overwritten too early
        multiply_pv<Traits>(state.out, p + warp_row * Traits::P_STRIDE,
                            shared.v(tile) + place.warp_key * Traits::WARP_N * Traits::V_STRIDE + place.column * 4);
    }
    merge_and_store(state, shared, place, work, params.value_dim, last_term_of(params.scoring, work.head));
}

} // namespace warptile
