// The backward pass of f32, by the vector units: the two kernels of backward/pair.cuh, as simple as they can be. All threads of a CTA
// compute the weights of a block and the gradients of its scores into shared memory, and then each adds to its part of a row of the
// results.
#pragma once

#include "backward/pair.cuh"

namespace warptile {

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_, bool OF_KEYS_> struct ScalarPairTraits {
    using Element = Element_;
    static constexpr bool OF_KEYS = OF_KEYS_, OF_SCORES = false;
    static constexpr int HEAD_DIM = HEAD_DIM_, DEPTH = HEAD_DIM, BLOCK_M = BLOCK_M_, BLOCK_N = BLOCK_N_;
    static constexpr int WARPS = WARPS_, THREADS = 32 * WARPS, STAGES = STAGES_, MIN_CTAS = 1;
    static constexpr int STRIDE = HEAD_DIM + 4, K_STRIDE = STRIDE, V_STRIDE = STRIDE;
    static constexpr unsigned ROLE = OF_KEYS ? ROLE_KEY_GRADIENTS : ROLE_QUERY_GRADIENTS, SCHEDULE = SCHEDULE_ONE_TILE;
    static constexpr unsigned FEATURES = PairTraits<__half, 64, 64, 64, 4, 1, true>::FEATURES;
    static constexpr int ROWS = OF_KEYS ? BLOCK_N : BLOCK_M, COLUMNS = OF_KEYS ? BLOCK_M : BLOCK_N;
    static constexpr int ROW_THREADS = THREADS / ROWS, RESULTS = HEAD_DIM / ROW_THREADS; // of a row, and of a thread
    static_assert(sizeof(Element) == 4 && STAGES == 1 && THREADS % ROWS == 0 && RESULTS % 4 == 0, "a thread has fours of columns");
    static_assert(!OF_KEYS || PREPASS_ROWS % COLUMNS == 0, "numbers of a block's queries are there");

    // Shared memory: own tensors, those of columns, weights and gradients of scores.
    static constexpr int OWN_BYTES = ROWS * STRIDE * 4, MOVING_BYTES = COLUMNS * STRIDE * 4, STAGES_AT = 2 * OWN_BYTES;
    static constexpr int WEIGHT_STRIDE = COLUMNS + 1;
    static constexpr int WEIGHTS_AT = STAGES_AT + 2 * MOVING_BYTES;
    static constexpr int PLACE_AT = WEIGHTS_AT + 2 * ROWS * WEIGHT_STRIDE * 4 / 16 * 16 + 16;
    static constexpr int SHARED_BYTES = PLACE_AT + (int)sizeof(GradientPlace);
};

// The weight of a score, which takes the product's place, and the gradient of the product without the scale, or of the score, that of the weight's.
template <class Traits>
__device__ inline void weigh_one(const Backward& params, const GradientPlace& place, const Mask& mask, const ScoreRule& rule, int head, int query,
                                 int key, float& score, float& gradient)
{
    using Element = typename Traits::Element;
    const Scoring& scoring = params.scoring;
    bool sees = query < place.q.len && mask.sees(query, key);
    if (sees && has_mask(scoring)) sees = mask_shows(scoring, place.batch, head, query, key);
    if (!sees) {
        score = gradient = 0;
        return;
    }
    float exponent = rule.score(score), slope = 1;
    rule.bend<!Traits::OF_SCORES>(exponent, slope);
    if (rule.has_alibi()) exponent = rule.with_alibi(exponent, query, key);
    if (scoring.bias) exponent = fmaf(widen(bias_row<Element>(scoring, place.batch, head, query)[key * scoring.bias_key]), LOG2_E, exponent);
    const long long number = place.numbers_of(params, head) + query;
    score = exp2_approximate(exponent - params.rows.scaled_lse[number]);
    float factor = 1;
    if constexpr (drops<Traits>()) {
        const Dropout& dropout = dropout_of<BackwardDropout>(params);
        const bool drops_any = !Traits::OF_SCORES || dropout.dropped != 0;
        factor = !drops_any || DropoutMask(dropout, place.batch).keeps(head, query, key) ? dropout.factor : 0;
        gradient = factor == 0 ? 0 : gradient * factor;
    }
    gradient = score * (gradient - params.rows.delta[number]) * slope;
    if constexpr (drops<Traits>()) score *= factor;
}

template <int COUNT> __device__ inline float dot(const float* x, const float* y)
{
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < COUNT; i += 4) {
        const float4 a = widen4(x + i), b = widen4(y + i);
        sum = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
    }
    return sum;
}

__device__ inline void add_four(float* sums, float factor, const float* row)
{
    const float4 four = widen4(row);
    sums[0] = fmaf(factor, four.x, sums[0]);
    sums[1] = fmaf(factor, four.y, sums[1]);
    sums[2] = fmaf(factor, four.z, sums[2]);
    sums[3] = fmaf(factor, four.w, sums[3]);
}

template <class Traits> __device__ void scalar_gradients(const Backward& params)
{
    constexpr int STRIDE = Traits::STRIDE, WEIGHT_STRIDE = Traits::WEIGHT_STRIDE, RESULTS = Traits::RESULTS;
    extern __shared__ __align__(128) unsigned char shared[];
    grid_dependency_wait();
    GradientPlace& place = *reinterpret_cast<GradientPlace*>(shared + Traits::PLACE_AT);
    if (threadIdx.x == 0) place = gradient_place<Traits::ROWS, Traits::OF_KEYS>(params, blockIdx.x);
    __syncthreads();
    if (!place.exists(Traits::OF_KEYS)) return;
    const Moving moving = moving_of<Traits>(params, place);
    const Mask mask(params.scoring, place.q.len, place.k.len);
    load_own<Traits>(shared, params, place);
    cp_async_commit(); // also where no block follows
    const float* const own = reinterpret_cast<const float*>(shared);
    const float* const others = reinterpret_cast<const float*>(shared + Traits::STAGES_AT);
    float* const weights = reinterpret_cast<float*>(shared + Traits::WEIGHTS_AT);
    float* const gradients = weights + Traits::ROWS * WEIGHT_STRIDE;
    // This thread's part of the results: of a row fours of columns, as far apart as the row has threads.
    const int row = threadIdx.x / Traits::ROW_THREADS, first_column = threadIdx.x % Traits::ROW_THREADS * 4;
    float first[RESULTS] = {}, second[Traits::OF_KEYS ? RESULTS : 1] = {};
#pragma unroll 1
    for (int head = moving.first_head; head < moving.first_head + moving.heads; head++) {
        const ScoreRule rule(params.scoring, HeadTerms::of(params.scoring, place.batch, head), place.q.len, place.k.len, LOG2_E);
#pragma unroll 1
        for (int block = 0; block < moving.blocks; block++) {
            const int first_other = (moving.first_block + block) * Traits::COLUMNS;
            load_others<Traits>(shared + Traits::STAGES_AT, params, place, head, first_other);
            cp_async_commit();
            cp_async_wait<0>();
            __syncthreads(); // the block is there
#pragma unroll 1
            for (int i = threadIdx.x; i < Traits::ROWS * Traits::COLUMNS; i += Traits::THREADS) {
                const int r = i / Traits::COLUMNS, c = i % Traits::COLUMNS;
                float score = dot<Traits::HEAD_DIM>(own + r * STRIDE, others + c * STRIDE);
                float gradient = dot<Traits::HEAD_DIM>(own + (Traits::ROWS + r) * STRIDE, others + (Traits::COLUMNS + c) * STRIDE);
                const int own_row = place.first + r, other = first_other + c;
                weigh_one<Traits>(params, place, mask, rule, head, Traits::OF_KEYS ? other : own_row, Traits::OF_KEYS ? own_row : other, score,
                                 gradient);
                weights[r * WEIGHT_STRIDE + c] = score;
                gradients[r * WEIGHT_STRIDE + c] = gradient;
            }
            __syncthreads(); // all weights are there
#pragma unroll 1
            for (int c = 0; c < Traits::COLUMNS; c++) {
                const float weight = weights[row * WEIGHT_STRIDE + c], gradient = gradients[row * WEIGHT_STRIDE + c];
#pragma unroll
                for (int i = 0; i < RESULTS; i += 4) {
                    const int column = first_column + i * Traits::ROW_THREADS;
                    add_four(first + i, gradient, others + c * STRIDE + column);
                    if constexpr (Traits::OF_KEYS) add_four(second + i, weight, others + (Traits::COLUMNS + c) * STRIDE + column);
                }
            }
            __syncthreads(); // all have read the block
        }
    }
    grid_dependency_launch();
    cp_async_wait<0>();
    float* const tile = reinterpret_cast<float*>(shared);
    const auto put = [&](const float* results, float factor) {
        __syncthreads(); // all have read what was there
#pragma unroll
        for (int i = 0; i < RESULTS; i++) tile[row * STRIDE + first_column + i / 4 * 4 * Traits::ROW_THREADS + i % 4] = results[i] * factor;
        __syncthreads();
    };
    const Extent& extent = Traits::OF_KEYS ? place.k : place.q;
    const Tensor& to = Traits::OF_KEYS ? params.dk : params.dq;
    if (to.address) {
        put(first, params.scoring.scale);
        store_gradient<Traits>(params, to, place, extent, params.head_dim, tile);
    }
    if constexpr (Traits::OF_KEYS) {
        if (params.dv.address) {
            put(second, 1);
            store_gradient<Traits>(params, params.dv, place, extent, params.value_dim, tile);
        }
    }
}

} // namespace warptile
