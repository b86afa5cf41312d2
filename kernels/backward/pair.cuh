// The portable backward pass: two kernels by mma.sync, on every GPU from sm_80 on. One has a tile of keys of a key/value head and goes over
// the queries that see some of them, head after head of those that share the keys: dK and dV. The other has a tile of queries of a head and
// goes over the keys: dQ. Both recompute the scores. Each sum is made by one warp in one order, so no bit depends on the launch.
//
// In both the tile's rows are the rows of all products, 16 or 32 for a warp: their own tensors stay in shared memory (keys and values, or
// queries and the gradient of the output), those of the columns move through a ring. Weights and gradients of scores become left operands
// as they are. Where dK and dV are too many for a warp, two or four have the same rows: each computes a part of a block's scores and a
// part of the columns of the results, and they exchange weights and gradients.
#pragma once

#include "backward/place.cuh"
#include "base/abi_backward_dropout.cuh"
#include "base/record.cuh"
#include "memory/chunk.cuh"
#include "memory/copy.cuh"
#include "ptx/launch.cuh"
#include "ptx/mma.cuh"
#include "ptx/words.cuh"
#include "rule/dropout.cuh"
#include "rule/mask.cuh"
#include "rule/score.cuh"
#include "rule/tensors.cuh"

namespace warptile {

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_, bool OF_KEYS_> struct PairTraits {
    using Element = Element_;
    static constexpr bool OF_KEYS = OF_KEYS_; // else of queries
    static constexpr bool OF_SCORES = false;  // else of products
    static constexpr int HEAD_DIM = HEAD_DIM_;
    static constexpr int DEPTH = HEAD_DIM; // columns of both tensors in shared memory
    static constexpr int BLOCK_M = BLOCK_M_; // queries
    static constexpr int BLOCK_N = BLOCK_N_; // keys
    static constexpr int WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int STAGES = STAGES_; // blocks of columns in shared memory
    static constexpr int STRIDE = HEAD_DIM + 8, K_STRIDE = STRIDE, V_STRIDE = STRIDE; // padded: eight rows' chunks lie in different banks
    static constexpr unsigned ROLE = OF_KEYS ? ROLE_KEY_GRADIENTS : ROLE_QUERY_GRADIENTS, SCHEDULE = SCHEDULE_ONE_TILE;
    static constexpr unsigned FEATURES = SCORE_OPTIONS | SCORE_TENSORS | FEATURE_PACKED |
                                         FEATURE_DEVICE_LENGTHS | FEATURE_UNALIGNED | FEATURE_NEGATIVE_SCALE | FEATURE_VALUE_DIM;

    static constexpr int ROWS = OF_KEYS ? BLOCK_N : BLOCK_M, COLUMNS = OF_KEYS ? BLOCK_M : BLOCK_N;
    // Warps that share rows: so that 32 of a warp's have results that fit registers where there are warps enough, else 16.
    static constexpr int PARTS = !OF_KEYS ? 1 : WARPS == 8 && BLOCK_M == 64 ? (HEAD_DIM > 128 ? 4 : 2) : HEAD_DIM > 128 ? 2 : 1;
    static constexpr int WARP_ROWS = ROWS / (WARPS / PARTS), ROW_TILES = WARP_ROWS / FRAGMENT_ROWS;
    static constexpr int RESULT_TILES = HEAD_DIM / PARTS / FRAGMENT_COLUMNS; // of a warp
    static constexpr int SPAN = COLUMNS / PARTS; // whose scores a warp computes
    static constexpr int CHUNK = SPAN < 32 ? SPAN : 32, CHUNK_TILES = CHUNK / FRAGMENT_COLUMNS, CHUNK_STEPS = CHUNK / FRAGMENT_DEPTH;
    static_assert(sizeof(Element) == 2, "mma.sync takes f16 and bf16");
    static_assert(WARP_ROWS % FRAGMENT_ROWS == 0 && WARP_ROWS * (WARPS / PARTS) == ROWS, "a product has 16 rows");
    static_assert(SPAN % CHUNK == 0 && CHUNK % FRAGMENT_DEPTH == 0 && (PARTS == 1 || SPAN == CHUNK), "chunks of columns");
    static_assert(!OF_KEYS || PREPASS_ROWS % COLUMNS == 0, "numbers of a block's queries are there");

    // Shared memory.
    static constexpr int ROW_BYTES = STRIDE * (int)sizeof(Element);
    static constexpr int OWN_BYTES = ROWS * ROW_BYTES, MOVING_BYTES = COLUMNS * ROW_BYTES; // of each of two tensors
    static constexpr int NUMBER_BYTES = OF_KEYS ? COLUMNS * (int)sizeof(float) : 0;        // of each of two lists
    static constexpr int STAGE_BYTES = 2 * (MOVING_BYTES + NUMBER_BYTES);
    static constexpr int STAGES_AT = 2 * OWN_BYTES;
    static constexpr int EXCHANGE_AT = STAGES_AT + STAGES * STAGE_BYTES;
    static constexpr int EXCHANGE_BYTES = PARTS == 1 ? 0 : 2 * ROWS * COLUMNS * (int)sizeof(Element);
    static constexpr int NUMBERS_AT = EXCHANGE_AT + EXCHANGE_BYTES; // of own queries
    static constexpr int PLACE_AT = NUMBERS_AT + (OF_KEYS ? 0 : 2 * ROWS * (int)sizeof(float));
    static constexpr int SHARED_BYTES = PLACE_AT + (int)sizeof(GradientPlace);
    // Three where a warp has few results.
    static constexpr int MIN_CTAS = WARPS > 4 ? 1 : !OF_KEYS && ROW_TILES == 1 && HEAD_DIM <= 128 ? 3 : 2;
};

// Writes a tile of a gradient from shared memory to the rows and columns that exist.
template <class Traits>
__device__ inline void store_gradient(const Backward& params, const Tensor& to, const GradientPlace& place, const Extent& extent, int dim,
                                      const float* tile)
{
    using Element = typename Traits::Element;
    constexpr int COUNT = CHUNK<Element>, CHUNKS_PER_ROW = Traits::HEAD_DIM / COUNT;
    const bool adds = params.gradients & GRADIENTS_ADD, aligned = in_chunks<Element>(to);
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < Traits::ROWS * CHUNKS_PER_ROW; chunk += Traits::THREADS) {
        const int row = chunk / CHUNKS_PER_ROW, column = chunk % CHUNKS_PER_ROW * COUNT;
        if (place.first + row >= extent.len || column >= dim) continue;
        const float* const from = tile + row * Traits::STRIDE + column;
        const long long at = place.batch * to.batch + (extent.first + place.first + row) * to.row + place.head * to.head + column;
        if (params.gradients & GRADIENTS_F32) {
            float* const numbers = static_cast<float*>(to.address) + at;
#pragma unroll
            for (int i = 0; i < COUNT; i++) numbers[i] = adds ? numbers[i] + from[i] : from[i];
            continue;
        }
        Element* const elements = static_cast<Element*>(to.address) + at;
        Chunk<Element> rounded;
        if (adds) rounded = load_chunk(elements, aligned, COUNT);
#pragma unroll
        for (int i = 0; i < COUNT; i++) rounded.elements[i] = narrow<Element>(adds ? widen(rounded.elements[i]) + from[i] : from[i]);
        store_chunk(elements, rounded, aligned, COUNT);
    }
}

template <class Number> __device__ inline void clear(Number& number) { number = 0; }
template <class T, int COUNT> __device__ inline void clear(T (&list)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) clear(list[i]);
}

// What a warp does with the scores of its rows and some columns: products, weights, and the gradients of scores.
template <class Traits> class PairScores {
  protected:
    using Element = typename Traits::Element;
    static constexpr int ROW_TILES = Traits::ROW_TILES, CHUNK_TILES = Traits::CHUNK_TILES, CHUNK_STEPS = Traits::CHUNK_STEPS;
    using Scores = float[ROW_TILES][CHUNK_TILES][4];

    __device__ PairScores(const Backward& params, unsigned shared, const GradientPlace& place) : params(params), shared(shared), place(place) {}

    __device__ static int row_warp() { return threadIdx.x / 32 % (Traits::WARPS / Traits::PARTS); }
    __device__ static int part() { return Traits::PARTS == 1 ? 0 : threadIdx.x / 32 / (Traits::WARPS / Traits::PARTS); }
    __device__ static int first_row() { return row_warp() * Traits::WARP_ROWS; }

    // Products of the warp's rows with those of some columns; `ADDS`: on top of those of other parts.
    template <bool ADDS = false> __device__ void multiply_scores(unsigned own, unsigned moving, Scores& scores) const
    {
        if constexpr (!ADDS) clear(scores);
#pragma unroll
        for (int step = 0; step < Traits::DEPTH / FRAGMENT_DEPTH; step++) {
            unsigned left[ROW_TILES][4];
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; tile++)
                load_matrices(left[tile], own + tile * FRAGMENT_ROWS * Traits::ROW_BYTES + step * 2 * CHUNK_BYTES);
#pragma unroll
            for (int pair = 0; pair < CHUNK_STEPS; pair++) {
                unsigned right[4];
                load_matrices(right, moving + pair * 16 * Traits::ROW_BYTES + step * 2 * CHUNK_BYTES);
#pragma unroll
                for (int half = 0; half < 2; half++)
#pragma unroll
                    for (int tile = 0; tile < ROW_TILES; tile++)
                        mma<Element>(scores[tile][2 * pair + half], left[tile], right[2 * half], right[2 * half + 1]);
            }
        }
    }

    // Calls `use(score, gradient, lse, delta)`, with the numbers of the query, which are at `numbers` in shared memory.
    template <class Use> __device__ void each_pair(Scores& s, Scores& g, unsigned numbers, Use use) const
    {
        if constexpr (Traits::OF_KEYS) {
#pragma unroll
            for (int i = 0; i < CHUNK_TILES; i++) {
                const uint2 lse = load_two_words(numbers + 8 * i * sizeof(float));
                const uint2 delta = load_two_words(numbers + Traits::NUMBER_BYTES + 8 * i * sizeof(float));
#pragma unroll
                for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        use(s[tile][i][j], g[tile][i][j], __uint_as_float(j % 2 ? lse.y : lse.x), __uint_as_float(j % 2 ? delta.y : delta.x));
            }
        } else {
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint2 two = load_two_words(numbers + (2 * tile + half) * 8 * 2 * sizeof(float)); // lse and delta of a row
#pragma unroll
                    for (int i = 0; i < CHUNK_TILES; i++)
#pragma unroll
                        for (int j = 2 * half; j < 2 * half + 2; j++)
                            use(s[tile][i][j], g[tile][i][j], __uint_as_float(two.x), __uint_as_float(two.y));
                }
        }
    }

    // Adds to exponents what depends on the place; -inf where a key is hidden.
    __device__ void add_terms(const ScoreRule& rule, const Mask& mask, int row, int column, int head, Scores& scores) const
    {
        const Scoring& scoring = params.scoring;
        if (rule.has_alibi())
            each(row, column, scores, [&](float& score, int query, int key) { score = rule.with_alibi(score, query, key); });
        if (scoring.bias)
            each(row, column, scores, [&](float& score, int query, int key) {
                if (query < place.q.len && key < place.k.len)
                    score = fmaf(widen(bias_row<Element>(scoring, place.batch, head, query)[key * scoring.bias_key]), LOG2_E, score);
            });
        if (has_mask(scoring))
            each(row, column, scores, [&](float& score, int query, int key) {
                if (query < place.q.len && key < place.k.len && !mask_shows(scoring, place.batch, head, query, key))
                    score = negative_infinity();
            });
        each(row, column, scores, [&](float& score, int query, int key) {
            if (!mask.sees(query, key)) score = negative_infinity();
        });
    }
    template <class Use> __device__ void each(int row, int column, Scores& scores, Use use) const
    {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
            for (int i = 0; i < CHUNK_TILES; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int r = row + 16 * tile + j / 2 * 8 + lane / 4, c = column + 8 * i + lane % 4 * 2 + j % 2;
                    use(scores[tile][i][j], Traits::OF_KEYS ? c : r, Traits::OF_KEYS ? r : c);
                }
    }

    // Calls `use(tile, i, j, kept)` with each weight of a chunk. `row` and `column` are multiples of 16.
    template <class Use> __device__ void each_kept(int row, int column, int head, Use use) const
    {
        const DropoutMask mask(dropout_of<BackwardDropout>(params), place.batch);
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++) {
            const int r = row + 16 * tile + lane / 4;
            if constexpr (Traits::OF_KEYS) {
                // A lane has one of two neighbouring keys, and another lane has the other: each draws for one of two queries, and tells the other.
                const int upper = (row + 16 * tile) >> 4 & 1, odd = lane / 4 % 2;
#pragma unroll
                for (int i = 0; i < CHUNK_TILES; i += 2) {
                    const DropoutCell cell = mask.cell(head, column + 8 * i + lane % 4 * 2 + odd, r);
                    const unsigned first = upper ? cell.kept(2) : cell.kept(0), second = upper ? cell.kept(3) : cell.kept(1);
                    const unsigned drawn = (first >> 1 & 0x40404040) | (second & 0x80808080), told = __shfl_xor_sync(0xffffffff, drawn, 4);
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const unsigned kept = (e == odd ? drawn : told) >> 8 * odd;
#pragma unroll
                        for (int at = 0; at < 4; at++) use(tile, i + at % 2, at / 2 * 2 + e, kept >> (16 * (at % 2) + 6 + at / 2) & 1);
                    }
                }
            } else {
                const DropoutCell cell = mask.cell(head, r, column + lane % 4 * 2);
                const int upper = column >> 4 & 1;
#pragma unroll
                for (int i = 0; i < CHUNK_TILES; i++) {
                    const unsigned kept = CHUNK_TILES == 2 && upper ? cell.kept(2 + i) : cell.kept(i);
#pragma unroll
                    for (int at = 0; at < 4; at++) use(tile, i, at, kept >> (8 * at + 7) & 1);
                }
            }
        }
    }

    // Makes weights of products, and of the gradients of weights those of the products, except for the scale, or those of the scores. They are
    // of columns from `from` on of the block that is at `moving` in shared memory and at `first_column`.
    __device__ void weigh_scores(unsigned moving, int head, int first_column, int from, Scores& s, Scores& g) const
    {
        const Scoring& scoring = params.scoring;
        const Mask mask(scoring, place.q.len, place.k.len); // anew for each block: registers have no room for it
        const int lane = threadIdx.x % 32;
        const int row = place.first + first_row(), column = first_column + from;
        const bool hides = Traits::OF_KEYS ? mask.hides_part_of(column, Traits::CHUNK, row, Traits::WARP_ROWS)
                                           : mask.hides_part_of(row, Traits::WARP_ROWS, column, Traits::CHUNK);
        const ScoreRule rule(scoring, HeadTerms::of(scoring, place.batch, head), place.q.len, place.k.len, LOG2_E);
        if constexpr (drops<Traits>()) {
            const Dropout& dropout = dropout_of<BackwardDropout>(params);
            const float factor = dropout.factor;
            if (!Traits::OF_SCORES || dropout.dropped != 0)
                each_kept(row, column, head, [&](int tile, int i, int j, bool kept) { g[tile][i][j] = kept ? g[tile][i][j] * factor : 0; });
        }
        unsigned numbers = shared + Traits::NUMBERS_AT + (first_row() + lane / 4) * 2 * (unsigned)sizeof(float);
        if constexpr (Traits::OF_KEYS) numbers = moving + 2 * Traits::MOVING_BYTES + (from + lane % 4 * 2) * (unsigned)sizeof(float);
        if (rule.bends() || rule.has_alibi() || scoring.bias || has_mask(scoring) || hides) {
            each_pair(s, g, numbers, [&](float& score, float& gradient, float, float delta) {
                gradient -= delta;
                score = rule.score(score);
                rule.bend<!Traits::OF_SCORES>(score, gradient);
            });
            add_terms(rule, mask, row, column, head, s);
            each_pair(s, g, numbers, [&](float& score, float& gradient, float lse, float) {
                score = exp2_approximate(score - lse);
                gradient *= score;
            });
        } else {
            each_pair(s, g, numbers, [&](float& score, float& gradient, float lse, float delta) {
                score = exp2_approximate(fmaf(score, rule.scale, -lse));
                gradient = score * (gradient - delta);
            });
        }
        if constexpr (drops<Traits>() && Traits::OF_KEYS) {
            const float factor = dropout_of<BackwardDropout>(params).factor;
            each_kept(row, column, head, [&](int tile, int i, int j, bool kept) { s[tile][i][j] = kept ? s[tile][i][j] * factor : 0; });
        }
    }

    const Backward& params;
    const unsigned shared;
    const GradientPlace& place;
};

template <class Traits> class PairWarp : PairScores<Traits> {
    using Base = PairScores<Traits>;
    using typename Base::Scores;
    using Base::first_row, Base::multiply_scores, Base::params, Base::part, Base::place, Base::row_warp, Base::shared, Base::weigh_scores;

  public:
    using Element = typename Traits::Element;
    static constexpr int ROW_TILES = Traits::ROW_TILES, RESULT_TILES = Traits::RESULT_TILES;
    static constexpr int CHUNK_STEPS = Traits::CHUNK_STEPS;
    using Words = unsigned[ROW_TILES][CHUNK_STEPS][4]; // of 16 bits, as left operands
    using Results = float[ROW_TILES][RESULT_TILES][4];

    __device__ PairWarp(const Backward& params, unsigned shared, const GradientPlace& place) : Base(params, shared, place)
    {
        const int lane = threadIdx.x % 32;
        own_at = shared + (first_row() + lane % 16) * Traits::ROW_BYTES + lane / 16 * CHUNK_BYTES;
        scores_at = (part() * Traits::SPAN + lane / 16 * 8 + lane % 8) * Traits::ROW_BYTES + lane / 8 % 2 * CHUNK_BYTES;
        results_at = lane % 16 * Traits::ROW_BYTES + lane / 16 * CHUNK_BYTES + part() * RESULT_TILES * CHUNK_BYTES;
        clear(first);
        clear(second);
    }

    // Adds a block of columns of head `head`, which lies at `moving`: of the first tensor, and of the second behind it.
    __device__ void add(unsigned moving, int head, int first_column)
    {
        if constexpr (Traits::PARTS == 1) {
#pragma unroll 1
            for (int from = 0; from < Traits::COLUMNS; from += Traits::CHUNK) {
                Words weights, slopes;
                weigh(moving, head, first_column, from, weights, slopes);
                const unsigned block = moving + results_at + from * Traits::ROW_BYTES;
                if constexpr (Traits::OF_KEYS) multiply_results(weights, block + Traits::MOVING_BYTES, second);
                multiply_results(slopes, block, first);
            }
        } else {
            Words weights, slopes;
            weigh(moving, head, first_column, part() * Traits::SPAN, weights, slopes);
            const unsigned exchange = shared + Traits::EXCHANGE_AT + row_warp() * Traits::WARP_ROWS * Traits::COLUMNS * 4 + threadIdx.x % 32 * 16;
            const auto place_of = [&](int part, int tile, int step, int which) {
                return exchange + (((part * ROW_TILES + tile) * CHUNK_STEPS + step) * 2 + which) * 512;
            };
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
                for (int step = 0; step < CHUNK_STEPS; step++) {
                    store_four_words(place_of(part(), tile, step, 0), weights[tile][step]);
                    store_four_words(place_of(part(), tile, step, 1), slopes[tile][step]);
                }
            named_barrier_wait(1 + row_warp(), 32 * Traits::PARTS);
#pragma unroll
            for (int other = 0; other < Traits::PARTS; other++) {
#pragma unroll
                for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
                    for (int step = 0; step < CHUNK_STEPS; step++) {
                        load_four_words(weights[tile][step], place_of(other, tile, step, 0));
                        load_four_words(slopes[tile][step], place_of(other, tile, step, 1));
                    }
                const unsigned block = moving + results_at + other * Traits::SPAN * Traits::ROW_BYTES;
                multiply_results(weights, block + Traits::MOVING_BYTES, second);
                multiply_results(slopes, block, first);
            }
        }
    }

    // Writes the results that are wanted, by way of the place of the tile's own tensors. All threads come here.
    __device__ void write(float* tile) const
    {
        if constexpr (Traits::OF_KEYS) {
            write(params.dk, first, params.scoring.scale, place.k, params.head_dim, tile);
            write(params.dv, second, 1, place.k, params.value_dim, tile);
        } else {
            write(params.dq, first, params.scoring.scale, place.q, params.head_dim, tile);
        }
    }

  private:
    // results += words times the rows of a tensor.
    __device__ static void multiply_results(const Words& words, unsigned rows, Results& results)
    {
#pragma unroll
        for (int step = 0; step < CHUNK_STEPS; step++)
#pragma unroll
            for (int pair = 0; pair < RESULT_TILES / 2; pair++) {
                unsigned right[4];
                load_matrices_transposed(right, rows + step * FRAGMENT_DEPTH * Traits::ROW_BYTES + pair * 2 * CHUNK_BYTES);
#pragma unroll
                for (int half = 0; half < 2; half++)
#pragma unroll
                    for (int tile = 0; tile < ROW_TILES; tile++)
                        mma<Element>(results[tile][2 * pair + half], words[tile][step], right[2 * half], right[2 * half + 1]);
            }
    }

    // Weights of a chunk's scores and gradients of these, in 16 bits. The chunk is at `from` of the block, the block at `first_column`.
    __device__ void weigh(unsigned moving, int head, int first_column, int from, Words& weights, Words& slopes)
    {
        Scores s, g;
        const unsigned chunk = moving + scores_at + (Traits::PARTS == 1 ? from * Traits::ROW_BYTES : 0);
        multiply_scores(own_at, chunk, s);
        multiply_scores(own_at + Traits::OWN_BYTES, chunk + Traits::MOVING_BYTES, g);
        weigh_scores(moving, head, first_column, from, s, g);
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
            for (int step = 0; step < CHUNK_STEPS; step++)
#pragma unroll
                for (int word = 0; word < 4; word++) {
                    const int at = 2 * step + word / 2, j = word % 2 * 2;
                    weights[tile][step][word] = narrow2<Element>(s[tile][at][j], s[tile][at][j + 1]);
                    slopes[tile][step][word] = narrow2<Element>(g[tile][at][j], g[tile][at][j + 1]);
                }
    }

    __device__ void write(const Tensor& to, const Results& results, float factor, const Extent& rows, int dim, float* tile) const
    {
        if (!to.address) return;
        const int lane = threadIdx.x % 32;
        __syncthreads(); // all have read what was there
        float* const own = tile + (first_row() + lane / 4) * Traits::STRIDE + part() * RESULT_TILES * FRAGMENT_COLUMNS + lane % 4 * 2;
#pragma unroll
        for (int tile_ = 0; tile_ < ROW_TILES; tile_++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int i = 0; i < RESULT_TILES; i++)
                    *reinterpret_cast<float2*>(own + (16 * tile_ + 8 * half) * Traits::STRIDE + 8 * i) =
                        {results[tile_][i][2 * half] * factor, results[tile_][i][2 * half + 1] * factor};
        __syncthreads();
        store_gradient<Traits>(params, to, place, rows, dim, tile);
    }

    unsigned own_at, scores_at, results_at; // of what this lane names of blocks of 16 rows
    Results first;                          // dK or dQ, without the scale
    float second[Traits::OF_KEYS ? ROW_TILES : 1][Traits::OF_KEYS ? RESULT_TILES : 1][4]; // dV
};

// The columns that some row of the tile sees, in blocks, and the heads that they are taken of.
struct Moving {
    int first_block, blocks, first_head, heads;
};

template <class Traits> __device__ inline Moving moving_of(const Backward& params, const GradientPlace& place)
{
    const Mask mask(params.scoring, place.q.len, place.k.len);
    int from, to; // the last one
    Moving moving;
    if (Traits::OF_KEYS) {
        const int group = params.heads / params.kv_heads;
        const int last = min(place.first + Traits::ROWS, place.k.len) - 1 - mask.shift;
        from = max(place.first - mask.shift - mask.right, 0);
        to = min(last + mask.left, place.q.len - 1);
        moving.first_head = place.head * group;
        moving.heads = group;
    } else {
        from = mask.first_key(place.first);
        to = mask.end_key(place.first, Traits::ROWS) - 1;
        moving.first_head = place.head;
        moving.heads = 1;
    }
    moving.first_block = from / Traits::COLUMNS;
    moving.blocks = from <= to ? to / Traits::COLUMNS - moving.first_block + 1 : 0;
    return moving;
}

// Starts the copy of COUNT rows of a head of a sequence to shared memory.
template <class Traits, int COUNT>
__device__ inline void load_rows(unsigned char* to, const Tensor& tensor, const GradientPlace& place, int head, const Extent& extent, int first,
                                 int dim)
{
    using Element = typename Traits::Element;
    const Element* const rows = static_cast<const Element*>(tensor.address) + place.batch * tensor.batch + head * tensor.head +
                                extent.first * tensor.row;
    copy_tile_async<Traits::THREADS, COUNT, Traits::DEPTH, Traits::STRIDE>(reinterpret_cast<Element*>(to),
                                                                              Rows<const Element>(rows, tensor.row), first, extent.len, dim);
}

// The tile's own rows of both tensors.
template <class Traits> __device__ inline void load_own(unsigned char* shared, const Backward& params, const GradientPlace& place)
{
    const Extent& extent = Traits::OF_KEYS ? place.k : place.q;
    load_rows<Traits, Traits::ROWS>(shared, Traits::OF_KEYS ? params.k : params.q, place, place.head, extent, place.first, params.head_dim);
    load_rows<Traits, Traits::ROWS>(shared + Traits::OWN_BYTES, Traits::OF_KEYS ? params.v : params.d_out, place, place.head, extent, place.first,
                                    params.value_dim);
}

// A block of columns of both tensors, of a query head.
template <class Traits>
__device__ inline void load_others(unsigned char* to, const Backward& params, const GradientPlace& place, int head, int first)
{
    const Extent& extent = Traits::OF_KEYS ? place.q : place.k;
    const int of_tensors = Traits::OF_KEYS ? head : head / (params.heads / params.kv_heads);
    load_rows<Traits, Traits::COLUMNS>(to, Traits::OF_KEYS ? params.q : params.k, place, of_tensors, extent, first, params.head_dim);
    load_rows<Traits, Traits::COLUMNS>(to + Traits::MOVING_BYTES, Traits::OF_KEYS ? params.d_out : params.v, place, of_tensors, extent, first,
                                       params.value_dim);
}

// What a tile has of its own, and of queries their numbers.
template <class Traits> __device__ inline void load_tile(unsigned char* shared, const Backward& params, const GradientPlace& place)
{
    load_own<Traits>(shared, params, place);
    if constexpr (!Traits::OF_KEYS) {
        float2* const numbers = reinterpret_cast<float2*>(shared + Traits::NUMBERS_AT);
        const long long first = place.numbers_of(params, place.head) + place.first;
        for (int row = threadIdx.x; row < Traits::ROWS; row += Traits::THREADS) {
            const bool is_there = place.first + row < place.q.len;
            numbers[row] = {is_there ? params.rows.scaled_lse[first + row] : positive_infinity(), is_there ? params.rows.delta[first + row] : 0};
        }
    }
}

// A block of columns of a query head into a stage, and of queries their numbers. `address` is that of `shared`.
template <class Traits>
__device__ inline void load_block(unsigned char* shared, unsigned address, const Backward& params, const GradientPlace& place, int stage, int head,
                                  int first)
{
    const int at = Traits::STAGES_AT + stage * Traits::STAGE_BYTES;
    load_others<Traits>(shared + at, params, place, head, first);
    if constexpr (Traits::OF_KEYS) {
        constexpr int CHUNKS = Traits::NUMBER_BYTES / CHUNK_BYTES; // of each list
        if (threadIdx.x < 2 * CHUNKS) {
            const int list = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
            const float* const numbers = (list ? params.rows.delta : params.rows.scaled_lse) + place.numbers_of(params, head);
            cp_async_16(address + at + 2 * Traits::MOVING_BYTES + threadIdx.x * CHUNK_BYTES, numbers + first + 4 * chunk, true);
        }
    }
}

template <class Traits> __device__ void pair_gradients(const Backward& params)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    grid_dependency_wait();
    GradientPlace& place = *reinterpret_cast<GradientPlace*>(shared + Traits::PLACE_AT);
    if (threadIdx.x == 0) place = gradient_place<Traits::ROWS, Traits::OF_KEYS>(params, blockIdx.x);
    __syncthreads();
    if (!place.exists(Traits::OF_KEYS)) return;
    const Moving moving = moving_of<Traits>(params, place);

    int load_head = moving.first_head, loaded = 0; // blocks of this head
    const auto load_next = [&](int stage) {
        if (load_head < moving.first_head + moving.heads && moving.blocks > 0) {
            load_block<Traits>(shared, address, params, place, stage, load_head, (moving.first_block + loaded) * Traits::COLUMNS);
            if (++loaded == moving.blocks) {
                loaded = 0;
                load_head++;
            }
        }
        cp_async_commit();
    };
    load_tile<Traits>(shared, params, place);
    constexpr int AHEAD = Traits::STAGES == 1 ? 1 : Traits::STAGES - 1; // blocks
    for (int stage = 0; stage < AHEAD; stage++) load_next(stage);
    PairWarp<Traits> warp(params, address, place);
    int stage = 0, load_stage = AHEAD % Traits::STAGES;
    const auto next = [](int stage) { return stage + 1 == Traits::STAGES ? 0 : stage + 1; };
#pragma unroll 1
    for (int head = moving.first_head; head < moving.first_head + moving.heads; head++) {
#pragma unroll 1
        for (int block = 0; block < moving.blocks; block++) {
            cp_async_wait<AHEAD - 1>();
            __syncthreads(); // the block is there, and all have added the one before
            if constexpr (Traits::STAGES > 1) load_next(load_stage);
            warp.add(address + Traits::STAGES_AT + stage * Traits::STAGE_BYTES, head, (moving.first_block + block) * Traits::COLUMNS);
            if constexpr (Traits::STAGES == 1) {
                __syncthreads();
                load_next(0);
            }
            stage = next(stage);
            load_stage = next(load_stage);
        }
    }
    grid_dependency_launch();
    cp_async_wait<0>();
    warp.write(reinterpret_cast<float*>(shared));
}

} // namespace warptile
