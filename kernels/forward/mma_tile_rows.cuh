// A warp's rows of a tile of the family `mma`: their scores against blocks of keys, and the weighted values, in registers.
//
// A plain block takes no maximum: its weights count against the rows' maxima of the first block, and their sums tell whether one has
// become too large. Then the block starts over, checks its scores, and raises the maxima. So weights follow the products at once, and
// the weights of the next 16 keys are computed while these keys' products with the values run.
#pragma once

#include "forward/mma_tile_layout.cuh"
#include "rule/mask.cuh"
#include "rule/partial.cuh"
#include "rule/tensors.cuh"

namespace warptile {

// Additional state of rows whose scores have tensors: the first block that is not plain because of a mask.
template <bool HAS_TENSORS> struct TensorRows {};
template <> struct TensorRows<true> {
    int first_careful;
};

// Additional state of rows with lists of blocks: whether a block has been added. Any may be the first one.
template <bool LISTS_BLOCKS> struct ListedRows {};
template <> struct ListedRows<true> {
    bool has_begun = false;
};

// Additional state of rows with dropout: what its random numbers follow from, which all lanes hold, and for each row of the lane the weights
// of its keys that are kept, a bit each.
template <bool DROPS> struct DroppingRows {
    __device__ DroppingRows(const Forward&, const Segment&) {}
};
template <> struct DroppingRows<true> {
    DropoutMask mask;
    unsigned kept_bits[4];

    __device__ DroppingRows(const Forward& params, const Segment& tile) : mask(dropout_of<ForwardDropout>(params), tile.batch)
    {
        for (unsigned* const word : {&mask.first, &mask.second, &mask.sequence, &mask.head, &mask.query, &mask.key}) *word = uniform_of(*word);
    }
};

template <class Traits>
class TileRows : TensorRows<bool(Traits::FEATURES & SCORE_TENSORS)>, ListedRows<lists_blocks<Traits>()>, DroppingRows<drops<Traits>()> {
  public:
    using Element = typename Traits::Element;
    __device__ static constexpr bool has_tensors() { return Traits::FEATURES & SCORE_TENSORS; }
    static constexpr int ROW_TILES = Traits::ROW_TILES, COLUMN_TILES = Traits::COLUMN_TILES, KEY_TILES = Traits::KEY_TILES;

    __device__ TileRows(const Forward& params, unsigned shared, const Segment& tile, int group)
        : DroppingRows<drops<Traits>()>(params, tile), params(params), tile(tile), group(group), queries_at(uniform_of(shared + Traits::QUERIES_AT + first_row() * Traits::ROW_BYTES))
    {
        const int lane = threadIdx.x % 32;
        key_place = kept(Traits::place(lane / 16 * 8 + lane % 8, lane / 8 % 2));
        place = kept(Traits::place(lane % 16, lane / 16));
        const Scoring& scoring = params.scoring;
        scale = ScoreRule(scoring, LOG2_E).scale;
        const bool hides_rows = has_tensors() && has_mask(scoring) && !masks_keys_alone(scoring);
        // Hidden scores are -inf, also when they are scaled.
        const bool takes_care = are_no_multiples(scoring, scale) || hides_rows;
        const Mask mask(scoring, tile.q.len, tile.k.len);
        const int first_query = Row(tile, group, first_row()).query;
        const int last_query = min(Row(tile, group, first_row() + Traits::WARP_ROWS - 1).query, tile.q.len - 1);
        // Keys that some row of the warp sees, and those that all see.
        const int from = first_query + mask.shift - mask.left, all_from = last_query + mask.shift - mask.left;
        const int to = first_query < tile.q.len ? min(last_query + mask.shift + mask.right, tile.k.len - 1) : -1;
        const int all_to = min(first_query + mask.shift + mask.right, tile.k.len - 1);
        // As blocks.
        see_from = uniform_of(max(from - tile.first_key, 0) / Traits::BLOCK_N);
        see_to = uniform_of(to < tile.first_key ? -1 : (to - tile.first_key) / Traits::BLOCK_N);
        all_see_from = uniform_of((max(all_from - tile.first_key, 0) + Traits::BLOCK_N - 1) / Traits::BLOCK_N);
        all_see_to = uniform_of(all_to < tile.first_key ? -1 : (all_to - tile.first_key + 1) / Traits::BLOCK_N - 1);
        // Blocks go from the last one to the first: where the rows' first blocks are different ones, a row has no maximum in those before
        // its own.
        const int begun_at = all_to < tile.first_key ? 0 : (all_to - tile.first_key) / Traits::BLOCK_N;
        careful_from = uniform_of(takes_care ? 0 : begun_at < see_to ? begun_at : NO_BLOCK);
        if constexpr (has_tensors()) this->first_careful = careful_from;
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            max_[row] = negative_infinity();
            sum_[row] = 0;
        }
        clear(output);
    }

    // When they have arrived.
    __device__ void take_queries()
    {
#pragma unroll
        for (int step = 0; step < Traits::HELD_STEPS; step++) load_queries(step, queries[step]);
    }

    // Adds a block of keys, which lie at `keys` in shared memory, their values behind them. `wait_for_values` runs once, before values are
    // read: one place for all warps, as it has a barrier.
    template <class Wait> __device__ void add(int block, unsigned keys, Wait wait_for_values)
    {
        if constexpr (drops<Traits>())
            if (block >= see_from && block <= see_to) find_kept(block);
        if constexpr (Traits::WEIGHS_FIRST)
            add_weighed_first(block, keys, wait_for_values);
        else
            add_weighing_beside(block, keys, wait_for_values);
        if constexpr (lists_blocks<Traits>()) this->has_begun = this->has_begun || (block >= see_from && block <= see_to);
    }

    static constexpr int ROWS = 2 * ROW_TILES; // of a lane
    // Which row of the tile is a lane's `row`: 8 rows apart.
    __device__ int row_of_tile(int row, int lane) const { return first_row() + row * 8 + lane / 4; }
    __device__ int first_row() const
    {
        if constexpr (Traits::column_parts() == 1) return threadIdx.x / 32 * Traits::WARP_ROWS;
        return threadIdx.x / 32 % Traits::row_warps() * Traits::WARP_ROWS;
    }
    // Which columns of the results are this warp's.
    __device__ int column_part() const
    {
        if constexpr (Traits::column_parts() == 1) return 0;
        return threadIdx.x / 32 / Traits::row_warps();
    }
    // The maximum and the whole sum of a lane's row.
    __device__ RowSum sum(int row) const
    {
        float sum = sum_[row];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        return {max_[row], sum};
    }
    // Two neighbouring columns of a lane's row: of each 8 from 8 * tile on of this warp's, those from 2 * (lane % 4) on.
    __device__ float2 columns(int row, int tile) const
    {
        return {output[row / 2][tile][row % 2 * 2], output[row / 2][tile][row % 2 * 2 + 1]};
    }

  private:
    static constexpr bool SPLITS_KEYS = Traits::SPLITS_KEYS;
    // Bytes of this warp's part of a row of values. Chunks are swizzled within SPAN.
    __device__ static constexpr int part_bytes() { return Traits::ROW_BYTES / Traits::column_parts(); }
    static constexpr int LOADS_AHEAD = Traits::LOADS_AHEAD, WORDS = LOADS_AHEAD + 1;
    using Words = unsigned[WORDS][4];
    static constexpr int PAIRS = ROW_TILES * 4; // of a lane's weights of 16 keys
    using Scores = float[ROW_TILES][KEY_TILES][4];
    using Weights = unsigned[ROW_TILES][4];

    template <class Number> __device__ static void clear(Number& number) { number = 0; }
    template <class T, int COUNT> __device__ static void clear(T (&list)[COUNT])
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) clear(list[i]);
    }

    // Computes the weights of 16 keys while the previous keys' products with values run. If the block has to start over, its keys are
    // multiplied again.
    template <class Wait> __device__ void add_weighing_beside(int block, unsigned keys, Wait wait_for_values)
    {
        bool sees = block >= see_from && block <= see_to;
        bool careful = block >= careful_from;
        if constexpr (has_tensors()) ask_key_mask(block, sees, careful);
        int done = 0; // keys of the block
        Scores scores;
#pragma unroll 1
        for (bool again = false;; again = true) {
            Weights weights[2]; // of 16 keys, and of those after them
            float sums[2][ROWS];
            // Also where the warp sees nothing: from what would be left unset there, registers would be kept all the time.
            clear(scores);
            if constexpr (has_tensors())
                if (!careful) begin_with_bias(block, scores);
            if (SPLITS_KEYS) {
                clear(weights[0]);
                clear(sums[0]);
            }
            if (sees)
                multiply_keys(keys, scores, [&](int turn, int turns) {
                    constexpr int COUNT = SPLITS_KEYS ? PAIRS : 0;
#pragma unroll
                    for (int pair = turn * COUNT / turns; pair < (turn + 1) * COUNT / turns; pair++)
                        weigh(scores, 0, pair, weights[0], sums[0]);
                });
            if (!again) wait_for_values();
            if (!sees) return;
            if (careful) {
                add_carefully(block, done, scores, values_of(keys));
                return;
            }
            if (prepare(block, scores) || !SPLITS_KEYS)
#pragma unroll
                for (int pair = 0; pair < PAIRS; pair++) weigh(scores, 0, pair, weights[0], sums[0]);
            done = add_values(scores, weights, sums, values_of(keys));
            if (__builtin_expect(done == Traits::BLOCK_N, true)) return;
            careful = true;
        }
    }

    // All weights before the values, so that nothing is asked again once the keys have made way. They take the place of the scores.
    template <class Wait> __device__ void add_weighed_first(int block, unsigned keys, Wait wait_for_values)
    {
        bool sees = block >= see_from && block <= see_to;
        bool careful = block >= careful_from;
        if constexpr (has_tensors()) ask_key_mask(block, sees, careful);
        Scores scores;
#pragma unroll 1
        for (;;) {
            clear(scores);
            if constexpr (has_tensors())
                if (!careful) begin_with_bias(block, scores);
            if (!sees) break;
            multiply_keys(keys, scores, [](int, int) {});
            if (careful) break;
            prepare(block, scores);
            if (__builtin_expect(weigh_in_place(scores), true)) break;
            careful = true;
        }
        wait_for_values();
        if (!sees) return;
        const unsigned values = values_of(keys);
        if (careful) {
            add_carefully(block, 0, scores, values);
            return;
        }
        multiply_all_values(values, [&](int step, int pair) { return __float_as_uint(place_of_weights(scores, step, pair)); });
    }

    // The products of a block that is added without care come on top of its bias, in their units.
    __device__ void begin_with_bias(int block, Scores& scores) const
    {
        if (!params.scoring.bias) return;
        const float unit = LOG2_E / scale;
        each_bias(tile.first_key + block * Traits::BLOCK_N, scores, [&](float& score, float bias) { score = bias * unit; });
    }

    // Applies a mask that depends on keys only. `sees` becomes false if it hides the whole block, `careful` true if it hides a part.
    __device__ void ask_key_mask(int block, bool& sees, bool& careful) const
    {
        if (!sees || !masks_keys_alone(params.scoring)) return;
        const unsigned char* const row = mask_row(params.scoring, tile.batch, 0, 0);
        const int first_key = tile.first_key + block * Traits::BLOCK_N;
        bool some = false, all = true;
        for (int i = threadIdx.x % 32; i < Traits::BLOCK_N; i += 32) {
            const bool shown = first_key + i < tile.k.len && row[(first_key + i) * params.scoring.mask_key];
            some = some || shown;
            all = all && shown;
        }
        sees = __any_sync(0xffffffff, some);
        careful = careful || __any_sync(0xffffffff, !all);
    }

    // Weights in place of a block's scores, and the rows' sums with them; false, and no sum is changed, if one is too large or not a
    // number.
    __device__ bool weigh_in_place(Scores& scores)
    {
        float all[ROWS];
#pragma unroll
        for (int step = 0; step < Traits::KEY_STEPS; step++) {
            Weights weights;
            float sums[ROWS];
#pragma unroll
            for (int pair = 0; pair < PAIRS; pair++) weigh(scores, step, pair, weights, sums);
#pragma unroll
            for (int pair = 0; pair < PAIRS; pair++) place_of_weights(scores, step, pair) = __uint_as_float(weights[pair / 4][pair % 4]);
#pragma unroll
            for (int row = 0; row < ROWS; row++) all[row] = step == 0 ? sums[row] : all[row] + sums[row];
        }
        if (!fits(all)) return false;
#pragma unroll
        for (int row = 0; row < ROWS; row++) sum_[row] += all[row];
        return true;
    }
    // Two weights of 16 bits lie where the first of their scores did.
    __device__ static float& place_of_weights(Scores& scores, int step, int pair)
    {
        return scores[pair / 4][2 * step + pair % 4 / 2][pair % 2 * 2];
    }

    // Masks a plain block's scores, and takes the maxima of the first one. False if there was nothing to do.
    __device__ bool prepare(int block, Scores& scores)
    {
        bool first = block == see_to;
        if constexpr (lists_blocks<Traits>()) first = !this->has_begun;
        const bool hides = block < all_see_from || block > all_see_to;
        if (!first && !hides) return false;
        if (hides) hide(block, 0, scores);
        if (first) set_maxima(scores);
        return true;
    }

    // Address of this warp's columns of the values that belong to the block at `keys`.
    __device__ unsigned values_of(unsigned keys) const { return keys + Traits::KEY_BYTES + column_part() * part_bytes(); }

    __device__ void load_queries(int step, unsigned (&words)[ROW_TILES][4]) const
    {
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
            load_matrices(words[tile], queries_at + Traits::further(place, 2 * step) + tile * FRAGMENT_ROWS * Traits::ROW_BYTES);
    }

    // `between(turn, turns)` runs while the last keys are multiplied.
    template <class Between> __device__ void multiply_keys(unsigned keys, Scores& scores, Between between)
    {
        // Keys are taken in parts, so that the first part's weights are computed while the last part's products run.
        constexpr int PARTS = SPLITS_KEYS ? 2 : 1, PART_STEPS = Traits::KEY_STEPS / PARTS;
        constexpr int PART_TURNS = Traits::DEPTH_STEPS * PART_STEPS, TURNS = PARTS * PART_TURNS;
        const auto key_step = [&](int turn) { return turn / PART_TURNS * PART_STEPS + turn % PART_STEPS; };
        const auto load = [&](int turn, unsigned(&words)[4]) {
            load_matrices(words, keys + Traits::further(key_place, turn % PART_TURNS / PART_STEPS * 2) +
                                     key_step(turn) * FRAGMENT_DEPTH * Traits::ROW_BYTES);
        };
        unsigned query[2][ROW_TILES][4];
        Words words;
        if constexpr (Traits::HELD_STEPS == 0) load_queries(0, query[0]);
#pragma unroll
        for (int turn = 0; turn < LOADS_AHEAD; turn++) load(turn, words[turn]);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int step = turn / PART_STEPS % Traits::DEPTH_STEPS, all_steps = turn / PART_STEPS, i = key_step(turn);
            if (turn + LOADS_AHEAD < TURNS) load(turn + LOADS_AHEAD, words[(turn + LOADS_AHEAD) % WORDS]);
            const int next_step = (step + 1) % Traits::DEPTH_STEPS;
            if (turn % PART_STEPS == PART_STEPS / 2 && turn + PART_STEPS < TURNS && next_step >= Traits::HELD_STEPS)
                load_queries(next_step, query[(all_steps + 1) % 2]);
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int tile = 0; tile < ROW_TILES; tile++)
                    mma<Element>(scores[tile][2 * i + half], step < Traits::HELD_STEPS ? queries[step][tile] : query[all_steps % 2][tile],
                                 words[turn % WORDS][2 * half], words[turn % WORDS][2 * half + 1]);
            if (turn >= TURNS - PART_TURNS) between(turn - (TURNS - PART_TURNS), PART_TURNS);
        }
    }

    // Words of values: those of 16 keys in 16 columns, `turn` by turn, first all columns of the first keys.
    static constexpr int VALUE_TURNS = Traits::KEY_STEPS * COLUMN_TILES / 2; // of a block
    __device__ void load_values(unsigned values, int turn, Words& words) const
    {
        if (turn >= VALUE_TURNS) return;
        const int step = turn / (COLUMN_TILES / 2), i = turn % (COLUMN_TILES / 2);
        load_matrices_transposed(words[turn % WORDS],
                                 values + Traits::further(place, 2 * i) + step * FRAGMENT_DEPTH * Traits::ROW_BYTES);
    }
    __device__ void load_first_values(unsigned values, Words& words) const
    {
#pragma unroll
        for (int turn = 0; turn < LOADS_AHEAD; turn++) load_values(values, turn, words);
    }

    // output += weights of 16 keys times their values; `between(i)` runs after each 16 columns. `words`: the first of them, and then
    // those of the step that follows.
    template <class Between>
    __device__ void multiply_values(const Weights& weights, unsigned values, int step, Words& words, Between between)
    {
#pragma unroll
        for (int i = 0; i < COLUMN_TILES / 2; i++) {
            const int turn = step * (COLUMN_TILES / 2) + i;
            load_values(values, turn + LOADS_AHEAD, words);
            const unsigned(&four)[4] = words[turn % WORDS];
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int tile = 0; tile < ROW_TILES; tile++)
                    mma<Element>(output[tile][2 * i + half], weights[tile], four[2 * half], four[2 * half + 1]);
            between(i);
        }
    }

    // output += a block's weights times its values, where nothing else runs meanwhile. `pair_of(step, pair)`: two weights of 16 keys.
    template <class PairOf> __device__ void multiply_all_values(unsigned values, PairOf pair_of)
    {
        Words words;
        load_first_values(values, words);
#pragma unroll
        for (int step = 0; step < Traits::KEY_STEPS; step++) {
            Weights weights;
#pragma unroll
            for (int pair = 0; pair < PAIRS; pair++) weights[pair / 4][pair % 4] = pair_of(step, pair);
            multiply_values(weights, values, step, words, [](int) {});
        }
    }

    // Which weights of a block are kept. The tile's first key is a multiple of 32. Where rows are queries of one head, two rows of the lane
    // have the same cells.
    __device__ void find_kept(int block)
    {
        const DropoutMask& mask = this->mask;
        const int lane = anew(threadIdx.x) % 32, first_key = tile.first_key + block * Traits::BLOCK_N + lane % 4 * 2;
#pragma unroll
        for (int row_tile = 0; row_tile < ROW_TILES; row_tile++) {
            const Row rows[2] = {Row(tile, group, row_of_tile(2 * row_tile, lane)), Row(tile, group, row_of_tile(2 * row_tile + 1, lane))};
            unsigned bits[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < 2 * KEY_TILES; i += DropoutCell::STRIDE / 4) {
                DropoutCell cell = mask.cell(rows[0].head, rows[0].query, first_key + 4 * i);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (half == 1 && group > 1) cell = mask.cell(rows[1].head, rows[1].query, first_key + 4 * i);
                    bits[half] |= cell.kept_of(rows[half].query >> 3 & 1) << i;
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) this->kept_bits[2 * row_tile + half] = bits[half];
        }
    }
    // A weight of this lane's row `one` and key i of a block; 0 if it is dropped.
    __device__ float kept_weight(float weight, int one, int i) const
    {
        if constexpr (drops<Traits>()) return this->kept_bits[one] & 1u << i ? weight : 0;
        return weight;
    }

    // A pair of weights of 16 keys, and with them the sums of this lane's.
    __device__ void weigh(const Scores& scores, int step, int pair, Weights& weights, float (&sums)[ROWS]) const
    {
        const int tile = pair / 4, i = 2 * step + pair % 4 / 2, half = pair % 2, row = 2 * tile + half;
        float two[2];
#pragma unroll
        for (int j = 0; j < 2; j++) two[j] = exp2_approximate(scores[tile][i][2 * half + j] * scale - max_[row]);
        sums[row] = pair % 4 < 2 ? two[0] + two[1] : sums[row] + (two[0] + two[1]);
        weights[tile][pair % 4] = narrow2<Element>(kept_weight(two[0], row, 2 * i), kept_weight(two[1], row, 2 * i + 1));
    }

    // Returns true if the sums of weights of all lanes are below the limit under which weights are exact enough and fit f16. NaN is not.
    __device__ static bool fits(const float (&sums)[ROWS])
    {
        float all = sums[0] + sums[1];
#pragma unroll
        for (int row = 2; row < ROWS; row++) all += sums[row];
        return !__any_sync(0xffffffff, !(all <= MAX_GROWTH<Element>));
    }

    // A block's values; the weights of the first keys are there. Returns the keys that have been added: all, unless a weight of the next 16
    // is too large, or not a number.
    __device__ int add_values(const Scores& scores, Weights (&weights)[2], float (&sums)[2][ROWS], unsigned values)
    {
        Words words;
        load_first_values(values, words);
#pragma unroll
        for (int step = 0; step < Traits::KEY_STEPS; step++) {
            if (__builtin_expect(!fits(sums[step % 2]), false)) return step * FRAGMENT_DEPTH;
#pragma unroll
            for (int row = 0; row < ROWS; row++) sum_[row] += sums[step % 2][row];
            multiply_values(weights[step % 2], values, step, words, [&](int i) {
                const int next = step + 1;
                if (next >= Traits::KEY_STEPS) return;
                constexpr int TURNS = COLUMN_TILES / 2;
#pragma unroll
                for (int pair = i * PAIRS / TURNS; pair < (i + 1) * PAIRS / TURNS; pair++)
                    weigh(scores, next, pair, weights[next % 2], sums[next % 2]);
            });
        }
        return Traits::BLOCK_N;
    }

    // Calls `change` with every score, its row of the lane, and the key.
    template <class Change> __device__ void each(Scores& scores, int first_key, Change change) const
    {
        const int lane_key = first_key + anew(threadIdx.x) % 4 * 2;
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
            for (int i = 0; i < KEY_TILES; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    change(scores[tile][i][j], 2 * tile + j / 2, lane_key + i * FRAGMENT_COLUMNS + j % 2);
    }

    // Hides what the mask does, and the first `done` keys.
    __device__ void hide(int block, int done, Scores& scores) const
    {
        const int first_key = tile.first_key + block * Traits::BLOCK_N;
        const Scoring& scoring = params.scoring;
        const int lane = anew(threadIdx.x) % 32, lane_key = first_key + lane % 4 * 2;
        const int shift = scoring.align_top_left ? 0 : tile.k.len - tile.q.len;
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const int diagonal = min(Row(tile, group, row_of_tile(row, lane)).query, tile.q.len - 1) + shift;
            const int from = max(diagonal - scoring.window_left, first_key + done);
            const int end = min(diagonal + scoring.window_right, tile.k.len - 1) + 1;
            static_assert(Traits::BLOCK_N <= 128, "a word has a bit for each of the lane's columns");
            const unsigned hidden = ~columns_from(from - lane_key) | columns_from(end - lane_key);
#pragma unroll
            for (int i = 0; i < 2 * KEY_TILES; i++)
                if (hidden & 1u << i) scores[row / 2][i / 2][row % 2 * 2 + i % 2] = negative_infinity();
        }
    }

    // Calls `change` with each score and its bias, whose numbers are of the tensors' type or f32.
    template <class Change> __device__ void each_bias(int first_key, Scores& scores, Change change) const
    {
        if constexpr (bool(Traits::FEATURES & FEATURE_BIAS_F32)) {
            const bool is_f32 = params.scoring.padding; // see crates/spec/src/abi.rs
            if (is_f32) return each_bias_of<float>(first_key, scores, change);
        }
        each_bias_of<Element>(first_key, scores, change);
    }
    template <class Number, class Change> __device__ void each_bias_of(int first_key, Scores& scores, Change change) const
    {
        each_tensor_row([&](int one, int head, int query, int lane_key) {
            each_of_row<KEY_TILES>(bias_row<Number>(params.scoring, tile.batch, head, query), params.scoring.bias_key, first_key + lane_key,
                                   tile.k.len, [&](int i, Number bias) { change(score_of(scores, one, i), widen(bias)); });
        });
    }

    // Adds the bias, and hides what the key mask does.
    __device__ void apply_tensors(int first_key, Scores& scores) const
    {
        if (params.scoring.bias)
            each_bias(first_key, scores, [](float& score, float bias) { score = with_bias(score, bias); });
        if (has_mask(params.scoring))
            each_tensor_row([&](int one, int head, int query, int lane_key) {
                each_of_row<KEY_TILES>(mask_row(params.scoring, tile.batch, head, query), params.scoring.mask_key, first_key + lane_key,
                                       tile.k.len, [&](int i, unsigned char shown) {
                                           if (!shown) score_of(scores, one, i) = negative_infinity();
                                       });
            });
    }

    // Calls `use` for each row of this lane, with its head, its query and the first of this lane's keys in a block.
    template <class Use> __device__ void each_tensor_row(Use use) const
    {
        const int lane = anew(threadIdx.x) % 32;
#pragma unroll
        for (int one = 0; one < ROWS; one++) {
            const Row row(tile, group, row_of_tile(one, lane));
            use(one, min(row.head, params.heads - 1), min(row.query, tile.q.len - 1), lane % 4 * 2);
        }
    }
    // The score of this lane's row `one` and key i.
    __device__ static float& score_of(Scores& scores, int one, int i) { return scores[one / 2][i / 2][one % 2 * 2 + i % 2]; }

    // The largest score of each row, or `largest` if that is larger.
    __device__ static void find_largest(const Scores& scores, float (&largest)[ROWS])
    {
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            float both[2] = {largest[row], largest[row]}; // two chains
#pragma unroll
            for (int i = 0; i < 2 * KEY_TILES; i++)
                both[i % 2] = fmaxf(both[i % 2], scores[row / 2][i / 2][row % 2 * 2 + i % 2]);
            largest[row] = fmaxf(both[0], both[1]);
            largest[row] = fmaxf(largest[row], __shfl_xor_sync(0xffffffff, largest[row], 1));
            largest[row] = fmaxf(largest[row], __shfl_xor_sync(0xffffffff, largest[row], 2));
        }
    }

    // The maxima of the first block. Where one would be infinite or coarse it stays at -inf.
    __device__ void set_maxima(const Scores& scores)
    {
        float largest[ROWS];
#pragma unroll
        for (int row = 0; row < ROWS; row++) largest[row] = negative_infinity();
        find_largest(scores, largest);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const float max = largest[row] * scale;
            if (fabsf(max) <= COARSE_MAX) max_[row] = max;
        }
    }

    // Whatever the scores are.
    __device__ void add_carefully(int block, int done, Scores& scores, unsigned values)
    {
        const int first_key = tile.first_key + block * Traits::BLOCK_N;
        const Scoring& scoring = params.scoring;
        const int lane = anew(threadIdx.x) % 32;
        const ScoreRule rule(scoring, LOG2_E);
        const float limit = rule.dot_limit();
        each(scores, first_key, [&](float& score, int, int) { score = clamp_keeping_nan(score, limit) * rule.scale; });
        if (are_bent(scoring)) each(scores, first_key, [&](float& score, int, int) { score = rule.bent(score); });
        if (scoring.slopes) {
#pragma unroll
            for (int one = 0; one < ROWS; one++) {
                const Row row(tile, group, row_of_tile(one, lane));
                float slope = 0;
                if (row.query < tile.q.len)
                    slope = scoring.slopes[tile.batch * scoring.slopes_batch + row.head] * LOG2_E;
                // Distances are counted bottom-right, wherever the mask's diagonal is.
                const int diagonal = row.query + tile.k.len - tile.q.len;
                each(scores, first_key, [&](float& score, int row_of_lane, int key) {
                    if (row_of_lane == one) score -= slope * fabsf((float)(diagonal - key));
                });
            }
        }
        if constexpr (has_tensors()) apply_tensors(first_key, scores);
        hide(block, done, scores);
        float largest[ROWS];
#pragma unroll
        for (int row = 0; row < ROWS; row++) largest[row] = max_[row];
        find_largest(scores, largest);
        bool coarse = false;
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const float factor = rescale(max_[row], largest[row]);
            max_[row] = largest[row];
            sum_[row] *= factor;
            coarse = coarse || (fabsf(max_[row]) > COARSE_MAX && max_[row] != negative_infinity());
#pragma unroll
            for (int i = 0; i < COLUMN_TILES; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) output[row / 2][i][row % 2 * 2 + j] *= factor;
        }
        if (__any_sync(0xffffffff, coarse))
            careful_from = 0;
        else if constexpr (has_tensors())
            careful_from = this->first_careful; // rows whose first keys are all but hidden by the bias have others now
        each(scores, first_key, [&](float& score, int row, int) {
            score = rescale(score, max_[row]);
            sum_[row] += score;
        });
        __syncwarp(); // ptxas asks for words no earlier, which would take registers
        multiply_all_values(values, [&](int step, int pair) {
            const float(&two)[4] = scores[pair / 4][2 * step + pair % 4 / 2];
            const int row = 2 * (pair / 4) + pair % 2, i = 2 * step + pair % 4 / 2;
            return narrow2<Element>(kept_weight(two[pair % 2 * 2], row, 2 * i), kept_weight(two[pair % 2 * 2 + 1], row, 2 * i + 1));
        });
    }

    // A maximum is rounded; the fused product and difference of a weight's exponent is not. Where a unit of the maximum is more than one of
    // the exponent, the largest weight might come out as anything.
    static constexpr float COARSE_MAX = 0x1p24f;
    static constexpr int NO_BLOCK = 0x7fffffff;

    const Forward& params;
    const Segment& tile;
    const int group;           // query heads a key/value head
    const unsigned queries_at; // this warp's
    unsigned key_place, place; // of what this lane names in blocks of 16 keys, and in those of queries and values
    float scale;
    int careful_from;             // blocks from here on are not plain ones
    int see_from, see_to;         // blocks with keys that some row of the warp sees
    int all_see_from, all_see_to; // and of which all see all
    unsigned queries[Traits::HELD_STEPS ? Traits::HELD_STEPS : 1][ROW_TILES][4];
    float output[ROW_TILES][COLUMN_TILES][4];
    // For each of this lane's rows, the maximum that is subtracted from scores, in exponents of 2, and the sum of this lane's weights.
    // A row without a maximum has -inf, which makes all weights of a plain block infinite or NaN.
    float max_[ROWS], sum_[ROWS];
};

} // namespace warptile
