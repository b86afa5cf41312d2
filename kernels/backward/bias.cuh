// The gradient of an additive bias: the gradients of scores, summed over the dimensions that the bias does not depend on. A CTA has a tile of
// it. It recomputes the scores of a block of queries and keys for each batch entry and head that share the tile, and for each block of queries
// or keys if these share it, one after the other in this order, and adds their gradients in fp32 where its threads have them. In the end it
// sums over the tile's rows or columns, if all queries or keys share it. So no bit depends on the launch.
//
// The head size is cut into parts that move through a ring, first those of queries and keys, then those of the gradient of the output and of
// values: no result has a column for each element of a head, so one tiling serves all head sizes.
#pragma once

#include "backward/scalar.cuh"
#include "base/abi_backward_bias.cuh"

namespace warptile {

template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_> struct BiasTraits {
    using Element = Element_;
    static constexpr bool OF_KEYS = false, OF_SCORES = true, IS_F32 = sizeof(Element) == 4;
    static constexpr int HEAD_DIM = HEAD_DIM_; // at most
    static constexpr int DEPTH = 64;                                 // columns of a part
    static constexpr int BLOCK_M = BLOCK_M_, BLOCK_N = BLOCK_N_, WARPS = WARPS_, THREADS = 32 * WARPS, STAGES = STAGES_, MIN_CTAS = IS_F32 ? 1 : 3;
    static constexpr int STRIDE = DEPTH + CHUNK<Element>, K_STRIDE = STRIDE, V_STRIDE = STRIDE;
    static constexpr unsigned ROLE = ROLE_BIAS_GRADIENTS, SCHEDULE = SCHEDULE_ONE_TILE;
    static constexpr unsigned FEATURES = PairTraits<__half, 64, 64, 64, 4, 1, true>::FEATURES | FEATURE_DROPOUT;

    // By mma.sync two warps have the same rows, and each half of the columns.
    static constexpr int ROWS = BLOCK_M, COLUMNS = BLOCK_N, PARTS = 2;
    static constexpr int WARP_ROWS = ROWS / (WARPS / PARTS), ROW_TILES = WARP_ROWS / FRAGMENT_ROWS;
    static constexpr int SPAN = COLUMNS / PARTS, CHUNK = SPAN, CHUNK_TILES = CHUNK / FRAGMENT_COLUMNS, CHUNK_STEPS = CHUNK / FRAGMENT_DEPTH;
    static_assert(IS_F32 || (ROW_TILES * FRAGMENT_ROWS == WARP_ROWS && SPAN == 32), "random numbers are those of 32 columns");
    static_assert(ROWS * COLUMNS % THREADS == 0 && PREPASS_ROWS % ROWS == 0, "numbers of a block's queries are there");

    // Shared memory: parts of rows and of columns, numbers of queries. The sums take the same place in the end.
    static constexpr int ROW_BYTES = STRIDE * (int)sizeof(Element), OWN_BYTES = ROWS * ROW_BYTES;
    static constexpr int STAGE_BYTES = (ROWS + COLUMNS) * ROW_BYTES, NUMBERS_AT = STAGES * STAGE_BYTES;
    static constexpr int SUM_STRIDE = COLUMNS + 1;
    static constexpr int SHARED_BYTES = NUMBERS_AT + 2 * ROWS * (int)sizeof(float);
    static_assert(ROWS * SUM_STRIDE * (int)sizeof(float) <= SHARED_BYTES, "sums fit");
};

// The blocks that a CTA sums over, of which it takes one after the other in parts.
template <class Traits> struct BiasWalk {
    const BiasGradient& params;
    const int tile_batch, tile_head, tile_row, tile_key; // the first of the tile, in the gradient
    GradientPlace place;                                 // of a block's queries
    int key, part;

    __device__ BiasWalk(const BiasGradient& params, int batch, int head, int row, int key)
        : params(params), tile_batch(batch), tile_head(head), tile_row(row), tile_key(key), key(key), part(0)
    {
        place.head = head;
        place.first = row;
        enter(batch);
        if (exists() && !is_seen()) next_block();
    }

    __device__ const Backward& backward() const { return params.dropping.backward; }
    __device__ bool exists() const { return place.batch < (params.batch == 1 ? backward().sequences.batch : tile_batch + 1); }
    __device__ int parts_of_keys() const { return (backward().head_dim + Traits::DEPTH - 1) / Traits::DEPTH; }
    __device__ bool is_last_part() const { return part == parts_of_keys() + (backward().value_dim + Traits::DEPTH - 1) / Traits::DEPTH - 1; }

    __device__ void next()
    {
        if (is_last_part()) {
            part = 0;
            next_block();
        } else {
            part++;
        }
    }

  private:
    __device__ void enter(int batch)
    {
        const Sequences& sequences = backward().sequences;
        place.batch = batch;
        if (!exists()) return;
        place.q = queries_of(sequences, batch);
        place.k = keys_of(sequences, batch);
        place.numbers = (long long)batch * backward().heads * backward().rows.query_tiles * PREPASS_ROWS;
    }
    // Returns true if a query of the block sees a key of it, as far as first and last ones tell.
    __device__ bool is_seen() const
    {
        const Mask mask(backward().scoring, place.q.len, place.k.len);
        return place.first < place.q.len && mask.first_key(place.first) < key + Traits::COLUMNS && mask.end_key(place.first, Traits::ROWS) > key;
    }
    __device__ void next_block()
    {
        do {
            key += Traits::COLUMNS;
            if (params.keys == 1 && key < place.k.len) continue;
            key = tile_key;
            place.first += Traits::ROWS;
            if (params.rows == 1 && place.first < place.q.len) continue;
            place.first = tile_row;
            place.head++;
            if (params.heads == 1 && place.head < backward().heads) continue;
            place.head = tile_head;
            enter(place.batch + 1);
        } while (exists() && !is_seen());
    }
};

// A warp's part of a tile, by mma.sync.
template <class Traits, bool IS_F32 = Traits::IS_F32> class BiasSums : PairScores<Traits> {
    using Base = PairScores<Traits>;
    using typename Base::Scores;
    using Base::first_row, Base::part, Base::shared;

  public:
    __device__ BiasSums(const Backward& params, unsigned char* memory, const GradientPlace& place)
        : Base(params, (unsigned)__cvta_generic_to_shared(memory), place)
    {
        clear(s);
        clear(g);
        clear(sums);
    }

    __device__ void multiply(int stage, bool of_values)
    {
        const int lane = threadIdx.x % 32;
        const unsigned block = shared + stage * Traits::STAGE_BYTES;
        const unsigned own = block + (first_row() + lane % 16) * Traits::ROW_BYTES + lane / 16 * CHUNK_BYTES;
        const unsigned moving =
            block + Traits::OWN_BYTES + (part() * Traits::SPAN + lane / 16 * 8 + lane % 8) * Traits::ROW_BYTES + lane / 8 % 2 * CHUNK_BYTES;
        if (of_values)
            this->template multiply_scores<true>(own, moving, g);
        else
            this->template multiply_scores<true>(own, moving, s);
    }

    __device__ void add(const GradientPlace& place, int key)
    {
        this->weigh_scores(0, place.head, key, part() * Traits::SPAN, s, g);
#pragma unroll
        for (int tile = 0; tile < Traits::ROW_TILES; tile++)
#pragma unroll
            for (int i = 0; i < Traits::CHUNK_TILES; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sums[tile][i][j] += g[tile][i][j];
        clear(s);
        clear(g);
    }

    __device__ void put(float* tile)
    {
        this->each(first_row(), part() * Traits::SPAN, sums, [&](float& sum, int row, int column) { tile[row * Traits::SUM_STRIDE + column] = sum; });
    }

  private:
    Scores s, g, sums;
};

// A thread's part of a tile in fp32.
template <class Traits> class BiasSums<Traits, true> {
    static constexpr int COUNT = Traits::ROWS * Traits::COLUMNS / Traits::THREADS;

  public:
    __device__ BiasSums(const Backward& params, const unsigned char* memory, const GradientPlace&)
        : params(params), memory(reinterpret_cast<const float*>(memory))
    {
    }

    __device__ void multiply(int stage, bool of_values)
    {
        const float* const own = memory + stage * Traits::STAGE_BYTES / 4;
        const float* const others = own + Traits::OWN_BYTES / 4;
        each([&](int i, int row, int column) {
            const float product = dot<Traits::DEPTH>(own + row * Traits::STRIDE, others + column * Traits::STRIDE);
            g[i] += of_values ? product : 0;
            s[i] += of_values ? 0 : product;
        });
    }

    __device__ void add(const GradientPlace& place, int key)
    {
        const Scoring& scoring = params.scoring;
        const Mask mask(scoring, place.q.len, place.k.len);
        const ScoreRule rule(scoring, HeadTerms::of(scoring, place.batch, place.head), place.q.len, place.k.len, LOG2_E);
        each([&](int i, int row, int column) {
            weigh_one<Traits>(params, place, mask, rule, place.head, place.first + row, key + column, s[i], g[i]);
            sums[i] += g[i];
            s[i] = g[i] = 0;
        });
    }

    __device__ void put(float* tile)
    {
        each([&](int i, int row, int column) { tile[row * Traits::SUM_STRIDE + column] = sums[i]; });
    }

  private:
    template <class Use> __device__ static void each(Use use)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) use(i, (i * Traits::THREADS + threadIdx.x) / Traits::COLUMNS, (i * Traits::THREADS + threadIdx.x) % Traits::COLUMNS);
    }

    const Backward& params;
    const float* const memory;
    float s[COUNT] = {}, g[COUNT] = {}, sums[COUNT] = {};
};

// Writes a tile's sums, over all rows or columns if these share the gradient.
template <class Traits> __device__ inline void write_bias_gradient(const BiasGradient& params, int batch, int head, int row, int key, const float* tile)
{
    using Element = typename Traits::Element;
    const int flags = params.dropping.backward.gradients;
    const int rows = params.rows == 1 ? 1 : min(Traits::ROWS, params.rows - row), keys = params.keys == 1 ? 1 : min(Traits::COLUMNS, params.keys - key);
    const int of_rows = params.rows == 1 ? Traits::ROWS : 1, of_keys = params.keys == 1 ? Traits::COLUMNS : 1;
    for (int i = threadIdx.x; i < rows * keys; i += Traits::THREADS) {
        const int r = i / keys, k = i % keys;
        float sum = 0;
        for (int of_row = r; of_row < r + of_rows; of_row++)
            for (int of_key = k; of_key < k + of_keys; of_key++) sum += tile[of_row * Traits::SUM_STRIDE + of_key];
        const long long at = batch * params.batch_step + (row + r) * params.row_step + head * params.head_step + key + k;
        if (flags & GRADIENTS_F32) {
            float& number = static_cast<float*>(params.d_bias)[at];
            number = flags & GRADIENTS_ADD ? number + sum : sum;
        } else {
            Element& number = static_cast<Element*>(params.d_bias)[at];
            number = narrow<Element>(flags & GRADIENTS_ADD ? widen(number) + sum : sum);
        }
    }
}

template <class Traits> __device__ void bias_gradient(const BiasGradient& params)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const Backward& backward = params.dropping.backward;
    grid_dependency_wait();
    const int key_tiles = (params.keys + Traits::COLUMNS - 1) / Traits::COLUMNS, row_tiles = (params.rows + Traits::ROWS - 1) / Traits::ROWS;
    const int of_head = blockIdx.x / key_tiles, of_batch = of_head / row_tiles;
    const int batch = of_batch / params.heads, head = of_batch % params.heads;
    const int row = of_head % row_tiles * Traits::ROWS, key = blockIdx.x % key_tiles * Traits::COLUMNS;
    BiasWalk<Traits> loads(params, batch, head, row, key), walk = loads;

    const auto load_next = [&](int stage) {
        if (loads.exists()) {
            unsigned char* const to = shared + stage * Traits::STAGE_BYTES;
            const int of_keys = loads.parts_of_keys(), kv_head = loads.place.head / (backward.heads / backward.kv_heads);
            const bool of_values = loads.part >= of_keys;
            const int column = (of_values ? loads.part - of_keys : loads.part) * Traits::DEPTH;
            const int dim = (of_values ? backward.value_dim : backward.head_dim) - column;
            const auto part = [&](Tensor tensor) {
                tensor.address = static_cast<typename Traits::Element*>(tensor.address) + column;
                return tensor;
            };
            load_rows<Traits, Traits::ROWS>(to, part(of_values ? backward.d_out : backward.q), loads.place, loads.place.head, loads.place.q,
                                            loads.place.first, dim);
            load_rows<Traits, Traits::COLUMNS>(to + Traits::OWN_BYTES, part(of_values ? backward.v : backward.k), loads.place, kv_head,
                                               loads.place.k, loads.key, dim);
            loads.next();
        }
        cp_async_commit();
    };
    BiasSums<Traits> sums(backward, shared, walk.place);
    float2* const numbers = reinterpret_cast<float2*>(shared + Traits::NUMBERS_AT);
    constexpr int AHEAD = Traits::STAGES - 1; // parts
#pragma unroll 1
    for (int stage = 0; stage < AHEAD; stage++) load_next(stage);
#pragma unroll 1
    for (int stage = 0; walk.exists(); stage = stage + 1 == Traits::STAGES ? 0 : stage + 1) {
        cp_async_wait<AHEAD - 1>();
        __syncthreads(); // the part is there, and all have read the one before
        load_next(stage == 0 ? Traits::STAGES - 1 : stage - 1);
        // A block has two parts at least: its numbers are there before the last one.
        if (!Traits::IS_F32 && walk.part == 0 && threadIdx.x < Traits::ROWS) {
            const bool is_there = walk.place.first + (int)threadIdx.x < walk.place.q.len;
            const long long number = walk.place.numbers_of(backward, walk.place.head) + walk.place.first + threadIdx.x;
            numbers[threadIdx.x] = {is_there ? backward.rows.scaled_lse[number] : positive_infinity(), is_there ? backward.rows.delta[number] : 0};
        }
        sums.multiply(stage, walk.part >= walk.parts_of_keys());
        if (walk.is_last_part()) sums.add(walk.place, walk.key);
        walk.next();
    }
    grid_dependency_launch();
    cp_async_wait<0>();
    __syncthreads(); // all have read the last part
    float* const tile = reinterpret_cast<float*>(shared);
    sums.put(tile);
    __syncthreads();
    write_bias_gradient<Traits>(params, batch, head, row, key, tile);
}

} // namespace warptile
