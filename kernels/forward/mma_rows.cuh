// A warp's 16 rows of a tile: their scores against a group of keys, and the weighted values, or some of their columns, in registers.
// Warps that share 16 rows multiply queries and keys over their columns each, and add up their scores in shared memory.
#pragma once

#include "forward/mma_layout.cuh"
#include "rule/partial.cuh"
#include "rule/tensors.cuh"

namespace warptile {

template <class Traits> class Rows16 : Traits::Keys::Scales {
  public:
    using Element = typename Traits::Element;
    using Keys = typename Traits::Keys;
    using Scales = typename Keys::Scales;
    static constexpr int HEAD_DIM = Traits::HEAD_DIM, KEYS = Traits::KEYS;
    static constexpr int COLUMN_TILES = HEAD_DIM / Traits::column_parts() / FRAGMENT_COLUMNS, KEY_TILES = KEYS / FRAGMENT_COLUMNS;

    __device__ Rows16(const typename Keys::Block& block, const MmaThread<Traits>& thread, int group)
        : Scales(block), params(Keys::forward(block)), thread(thread), group(group)
    {
    }

    // Which row of the tile is a lane's `half`: 8 rows apart.
    __device__ int row(int half, int lane) const { return first_row() + half * 8 + lane / 4; }
    __device__ int first_row() const { return thread.row_warp() * FRAGMENT_ROWS; }

    // Begins with segment `number`, whose queries have arrived; or will have when they are taken.
    __device__ void start(int number)
    {
        const Segment& of = thread.segment(number);
        segment = number;
        if constexpr (!Traits::prepares_early()) take_queries();
        const int lane = anew(thread.lane);
        ScoreRule rule(params.scoring, LOG2_E, Traits::FEATURES);
        Scales::read(of.kv_head);
        Scales::multiply(rule);
        scale = rule.scale;
        dot_limit = rule.dot_limit();
        const Mask mask(params.scoring, of.q.len, of.k.len);
        const int first_query = Traits::row_warps() == 1 ? of.first_query : Row(of, group, first_row()).query;
        const int last_query = min(Row(of, group, first_row() + FRAGMENT_ROWS - 1).query, of.q.len - 1);
        all_see_from = last_query + mask.shift - mask.left;
        all_see_to = min(first_query + mask.shift + mask.right, of.k.len - 1);
        if constexpr (Traits::row_warps() > 1) {
            see_from = first_query + mask.shift - mask.left;
            see_to = first_query < of.q.len ? min(last_query + mask.shift + mask.right, of.k.len - 1) : -1;
        }
        last_term_ = negative_infinity();
        if (Traits::has(LAST_TERM_FEATURES) && have_last_terms(params.scoring)) {
            const Row row(of, group, first_row() + lane % FRAGMENT_ROWS);
            last_term_ = last_term_of(params.scoring, min(row.head, params.heads - 1));
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const Row row(of, group, this->row(half, lane));
            diagonal[half] = row.query + mask.shift;
            slopes[half] = 0;
            if (Traits::has(FEATURE_ALIBI) && params.scoring.slopes && row.query < of.q.len)
                slopes[half] = params.scoring.slopes[of.batch * params.scoring.slopes_batch + row.head] * LOG2_E;
            sums[half] = {negative_infinity(), 0};
        }
#pragma unroll
        for (int i = 0; i < COLUMN_TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) output[i][j] = 0;
    }

    // The segment's queries have arrived.
    __device__ void take_queries()
    {
        if constexpr (Traits::HOLDS_QUERIES)
#pragma unroll
            for (int step = 0; step < query_steps(); step++) load_query(step, queries[step]);
    }

    // Adds the keys from `first_key` on, which lie `at` bytes into shared memory, their values behind them. Where warps share rows, all
    // of the team meet in `sync_team` once.
    template <class Sync> __device__ void add(int first_key, int at, Sync sync_team)
    {
        if (Traits::row_warps() > 1 && (first_key > see_to || first_key + KEYS <= see_from)) return;
        Scores scores;
        const int lane = anew(thread.lane);
        const unsigned keys = thread.address_of(at) + thread.column_part() * part_bytes();
        if constexpr (BY_STEPS)
            multiply_by_steps(scores, keys, lane);
        else
            multiply_by_keys(scores, keys, lane);
        if constexpr (Traits::column_parts() > 1) {
            leave_scores(scores, at, lane);
            sync_team();
            add_up_scores(scores, at, lane);
        }
        soften(first_key, scores);

        const unsigned values = keys + Traits::GROUP_BYTES;
#pragma unroll
        for (int step = 0; step < KEYS / FRAGMENT_DEPTH; step++) {
            unsigned weights[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float(&two)[4] = scores[2 * step + j / 2];
                weights[j] = narrow2<typename Keys::Weight>(two[j % 2 * 2], two[j % 2 * 2 + 1]);
            }
            const int row = step * FRAGMENT_DEPTH + lane % 16;
#pragma unroll
            for (int i = 0; i < COLUMN_TILES; i += Keys::TILES) {
                unsigned words[4], operands[2 * Keys::TILES];
                load_matrices_transposed(words, values + row * Traits::KEY_ROW_BYTES + thread.swizzled_key(row, Keys::chunk_of(i) + lane / 16));
                Keys::value_operands(words, operands);
#pragma unroll
                for (int j = 0; j < Keys::TILES; j++)
                    mma<typename Keys::Weight>(output[i + j], weights, operands[2 * j], operands[2 * j + 1]);
            }
        }
    }

    // The maximum and the whole sum of a lane's row.
    __device__ RowSum sum(int half) const
    {
        RowSum sum = sums[half];
        sum.sum += __shfl_xor_sync(0xffffffff, sum.sum, 1);
        sum.sum += __shfl_xor_sync(0xffffffff, sum.sum, 2);
        return sum;
    }
    // Two neighbouring columns of a lane's row; `Keys` defines their order.
    __device__ float2 columns(int half, int tile) const { return Scales::times_values(Keys::columns(output, half, tile)); }
    // The last term of row first_row() + lane % 16, loaded early and kept.
    __device__ float last_term() const { return last_term_; }

  private:
    using Scores = float[KEY_TILES][4];
    // Steps of 16 columns in this warp's part of a product of queries and keys.
    __device__ static constexpr int query_steps() { return HEAD_DIM / Traits::column_parts() / FRAGMENT_DEPTH; }
    // Bytes of this warp's part of a row of keys or values. Chunks are swizzled within 128 bytes.
    __device__ static constexpr int part_bytes() { return Traits::KEY_ROW_BYTES / Traits::column_parts(); }
    // A product is split into two sums, with dependency chains half as long, where few products run at once and registers allow it.
    static constexpr bool TWO_SUMS = Traits::HOLDS_QUERIES && KEY_TILES <= 4;

    // Where keys are converted and registers do not hold the queries, these are loaded once for all keys of the group. A loop, because the
    // addresses of all steps would take more registers than there are.
    static constexpr bool BY_STEPS = !Traits::HOLDS_QUERIES && Keys::STEPS > 2;

    // Where a warp's share of the scores of 8 keys lies, for those with which it shares the rows: in those columns of keys that only it
    // reads.
    __device__ float4& left_scores(int at, int part, int tile, int lane) const
    {
        constexpr int ACROSS = part_bytes() / (int)sizeof(float4); // lanes
        static_assert(Traits::row_warps() == 1 && part_bytes() % 128 == 0, "the columns of a part belong to one warp");
        static_assert(ACROSS <= 32 && 32 % ACROSS == 0 && KEY_TILES * 32 / ACROSS <= KEYS, "room in the rows of keys");
        const int row = tile * (32 / ACROSS) + lane / ACROSS;
        return *reinterpret_cast<float4*>(thread.shared + at + row * Traits::KEY_ROW_BYTES + part * part_bytes() +
                                          lane % ACROSS * (int)sizeof(float4));
    }
    __device__ void leave_scores(const Scores& scores, int at, int lane) const
    {
        __syncwarp(); // all lanes have read the keys
#pragma unroll
        for (int i = 0; i < KEY_TILES; i++)
            left_scores(at, thread.column_part(), i, lane) = {scores[i][0], scores[i][1], scores[i][2], scores[i][3]};
    }
    // In the same order by all warps, so that they agree about maxima.
    __device__ void add_up_scores(Scores& scores, int at, int lane) const
    {
#pragma unroll
        for (int i = 0; i < KEY_TILES; i++) {
            float4 all = left_scores(at, 0, i, lane);
#pragma unroll
            for (int part = 1; part < Traits::column_parts(); part++) {
                const float4 more = left_scores(at, part, i, lane);
                all.x += more.x, all.y += more.y, all.z += more.z, all.w += more.w;
            }
            scores[i][0] = all.x, scores[i][1] = all.y, scores[i][2] = all.z, scores[i][3] = all.w;
        }
    }

    // The operands of `Keys::STEPS` steps of 8 keys.
    __device__ void load_keys(unsigned keys, int lane, int tile, int step, unsigned (&operands)[2 * Keys::STEPS]) const
    {
        unsigned words[4];
        const int row = tile * FRAGMENT_COLUMNS + lane % 8;
        load_matrices(words, keys + row * Traits::KEY_ROW_BYTES + thread.swizzled_key(row, 4 / Keys::STEPS * step + lane / 8));
        Keys::key_operands(words, operands);
    }

    __device__ void multiply_by_keys(Scores& scores, unsigned keys, int lane) const
    {
#pragma unroll
        for (int i = 0; i < KEY_TILES; i++) {
            float odd[4];
#pragma unroll
            for (int j = 0; j < 4; j++) scores[i][j] = odd[j] = 0;
#pragma unroll
            for (int step = 0; step < query_steps(); step += Keys::STEPS) {
                unsigned operands[2 * Keys::STEPS], query[4];
                load_keys(keys, lane, i, step, operands);
#pragma unroll
                for (int j = 0; j < Keys::STEPS; j++) {
                    query_words(step + j, query);
                    mma<Element>(TWO_SUMS && j % 2 ? odd : scores[i], query, operands[2 * j], operands[2 * j + 1]);
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) scores[i][j] += odd[j];
        }
    }

    __device__ void multiply_by_steps(Scores& scores, unsigned keys, int lane) const
    {
#pragma unroll
        for (int i = 0; i < KEY_TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) scores[i][j] = 0;
#pragma unroll 1
        for (int step = 0; step < query_steps(); step += Keys::STEPS) {
            unsigned query[Keys::STEPS][4];
#pragma unroll
            for (int j = 0; j < Keys::STEPS; j++) load_query(step + j, query[j]);
#pragma unroll
            for (int i = 0; i < KEY_TILES; i++) {
                unsigned operands[2 * Keys::STEPS];
                load_keys(keys, lane, i, step, operands);
#pragma unroll
                for (int j = 0; j < Keys::STEPS; j++) mma<Element>(scores[i], query[j], operands[2 * j], operands[2 * j + 1]);
            }
        }
    }

    __device__ void load_query(int step, unsigned (&words)[4]) const
    {
        Keys::load_query(step, thread.lane, words, [&](int of_warp, int chunk) {
            const int row = first_row() + of_warp;
            const int part = thread.column_part() * (Traits::ROW_BYTES / Traits::column_parts());
            return thread.address_of(thread.queries_at(segment) + row * Traits::ROW_BYTES + part + thread.swizzled(row, chunk));
        });
    }
    __device__ void query_words(int step, unsigned (&words)[4]) const
    {
        if constexpr (Traits::HOLDS_QUERIES) {
#pragma unroll
            for (int i = 0; i < 4; i++) words[i] = queries[step][i];
        } else {
            load_query(step, words);
        }
    }

    // Calls `change` with every score, its half, and the key.
    template <class Change> __device__ void each(Scores& scores, int first_key, Change change) const
    {
#pragma unroll
        for (int i = 0; i < KEY_TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                change(scores[i][j], j / 2, first_key + i * FRAGMENT_COLUMNS + thread.lane % 4 * 2 + j % 2);
    }

    // Dot products -> weights.
    __device__ void soften(int first_key, Scores& scores)
    {
        // One pass for each option, so that none is compiled into the others.
        each(scores, first_key, [&](float& score, int, int) { score = clamp_keeping_nan(score, dot_limit) * scale; });
        if (Traits::has(FEATURE_SOFTCAP) && params.scoring.softcap > 0) {
            const ScoreRule rule(params.scoring, LOG2_E);
            each(scores, first_key, [&](float& score, int, int) { score = rule.bent(score); });
        }
        if (Traits::has(FEATURE_ALIBI) && params.scoring.slopes) {
            // ALiBi counts distances bottom-right, wherever the mask's diagonal is.
            const Segment& of = thread.segment(segment);
            const int shift = params.scoring.align_top_left ? of.k.len - of.q.len : 0;
            each(scores, first_key, [&](float& score, int half, int key) {
                score -= slopes[half] * fabsf((float)(diagonal[half] + shift - key));
            });
        }
        if constexpr (Traits::has(SCORE_TENSORS)) apply_tensors(first_key, scores);
        if (first_key < all_see_from || first_key + KEYS - 1 > all_see_to) {
            const int last_key = thread.segment(segment).k.len - 1;
            each(scores, first_key, [&](float& score, int half, int key) {
                const int middle = diagonal[half];
                if (key < middle - params.scoring.window_left || key > min(middle + params.scoring.window_right, last_key))
                    score = negative_infinity();
            });
        }
        float largest[2] = {sums[0].max, sums[1].max};
        each(scores, first_key, [&](float& score, int half, int) { largest[half] = fmaxf(largest[half], score); });
        bool same = true;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float& row = largest[half];
            row = fmaxf(row, __shfl_xor_sync(0xffffffff, row, 1));
            row = fmaxf(row, __shfl_xor_sync(0xffffffff, row, 2));
            same = same && row == sums[half].max;
        }
        if (__any_sync(0xffffffff, !same)) {
            float factor[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                RowSum& row = sums[half];
                factor[half] = rescale(row.max, largest[half]);
                row = {largest[half], row.sum * factor[half]};
            }
#pragma unroll
            for (int i = 0; i < COLUMN_TILES; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) output[i][j] *= factor[j / 2];
        }
        each(scores, first_key, [&](float& score, int half, int) {
            score = rescale(score, sums[half].max);
            sums[half].sum += score;
        });
    }

    // Adds the bias, and hides what the key mask does.
    __device__ void apply_tensors(int first_key, Scores& scores) const
    {
        const Segment& of = thread.segment(segment);
        const Scoring& scoring = params.scoring;
        const int key = first_key + thread.lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const Row row(of, group, this->row(half, thread.lane));
            const int head = min(row.head, params.heads - 1), query = min(row.query, of.q.len - 1);
            const auto score = [&](int i) -> float& { return scores[i / 2][2 * half + i % 2]; };
            if (scoring.bias)
                each_of_row<KEY_TILES>(bias_row<Element>(scoring, of.batch, head, query), scoring.bias_key, key, of.k.len,
                                       [&](int i, Element bias) { score(i) = with_bias(score(i), widen(bias)); });
            if (has_mask(scoring))
                each_of_row<KEY_TILES>(mask_row(scoring, of.batch, head, query), scoring.mask_key, key, of.k.len, [&](int i, unsigned char shown) {
                    if (!shown) score(i) = negative_infinity();
                });
        }
    }

    const Forward& params;
    const MmaThread<Traits> thread;
    const int group; // query heads a key/value head
    int segment = 0;
    float scale, dot_limit; // of rule/score.cuh
    float last_term_;
    unsigned queries[Traits::HOLDS_QUERIES ? query_steps() : 1][4];
    float output[COLUMN_TILES][4];
    // State of this lane's two rows.
    RowSum sums[2];
    int diagonal[2]; // rule/mask.cuh
    float slopes[2]; // in exponents of 2
    int all_see_from, all_see_to; // keys that all rows of the warp see
    int see_from, see_to;         // and that some do
};

} // namespace warptile
