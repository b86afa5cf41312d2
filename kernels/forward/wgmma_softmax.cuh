// Online softmax over accumulator registers, in base 2. A thread holds two rows; a row is shared by the four lanes of a
// quad, each with its own columns.
//
// In a plain block nothing is hidden, and no maximum is taken: its weights count against the rows' previous maxima. If their sums show
// that a weight is too large, the maxima are raised and the weights divided. If that can't be, the block's scores are computed again.
#pragma once

#include "forward/wgmma_layout.cuh"
#include "rule/mask.cuh"
#include "rule/score.cuh"
// Behind those: the order of constants is that of the symbols in each image.
#include "forward/wgmma_packed_rows.cuh"
#include "forward/wgmma_softcap.cuh"

namespace warptile {

constexpr int ROWS_PER_THREAD = 2; // the second is 8 below the first

// Where in its warpgroup's 64 rows, and in every 8 columns, the calling thread's first accumulator lies.
__device__ inline int lane_row() { return thread_index() % WARPGROUP_THREADS / 32 * 16 + thread_index() % 32 / 4; }
__device__ inline int lane_column() { return thread_index() % 4 * 2; }

// The first row of a tile that the calling warp has: warps of the loading warpgroup come before those that compute.
__device__ inline int warp_row() { return (int)(thread_index() / 32 - WARPGROUP_WARPS) * (MMA_ROWS / WARPGROUP_WARPS); }

// The head of one of the thread's rows. If a warpgroup has rows of several heads, the first `warpgroup_queries` rows belong to the tile's.
template <class Traits> __device__ int head_of_row(const Forward& params, const Tile& tile, int row)
{
    int head = tile.head;
    if constexpr (Traits::GROUPS) head += ((lane_row() + 8 * row) << group_log(params)) / MMA_ROWS;
    if constexpr (Traits::packs_rows())
        head += PackedRows(params, tile.first_query + warp_row()).head(thread_index() % 32 / 4 + 8 * row);
    return head;
}

__device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// How a dot product becomes an exponent of 2. Everything but the one factor of the inner loop is worked out where it is
// used, from the constant bank: registers are scarce.
template <class Traits> struct ScoreScale : KeptExponents<Traits> {
    const Forward& params;
    float scale_log2; // score * log2(e) = dot * scale_log2; with softcap: tanh * scale_log2

    __device__ explicit ScoreScale(const Forward& params)
        // A scale of 0 must still keep hidden keys hidden: 0 * -inf is NaN. So is a later 0 * inf.
        : KeptExponents<Traits>(params.scoring), params(params),
          scale_log2(fminf(fmaxf((has_softcap(params) ? params.scoring.softcap : params.scoring.scale) * LOG2_E, 1e-30f),
                           MAX_FLOAT))
    {
    }

    // 0, which the compiler cannot know.
    __device__ int opaque_zero() const { return params.heads >> 31; }

    __device__ bool has_softcap() const { return has_softcap(params); }

    // Factor that turns a score into units of the dot product.
    __device__ float unit() const { return LOG2_E * reciprocal_approximate(scale_log2); }

    __device__ CappedExponents capped_exponents() const
    {
        if constexpr (Traits::keeps_factors()) return this->capped;
        // Worked out here, for each block: they would stay in registers.
        const float factor = computed_here(params.scoring.scale);
        return {factor * reciprocal_approximate(params.scoring.softcap), factor * LOG2_E};
    }

    // The largest score in the polynomial's range, as an exponent of 2.
    __device__ float largest_score() const { return CappedExponents::largest_score() * scale_log2; }

    // Dot products -> tanh(dot * scale / cap), if there is a softcap.
    template <int COUNT> __device__ void bend(float (&dots)[COUNT]) const
    {
        if (has_softcap()) cap_with(dots, params.scoring.scale / params.scoring.softcap);
    }

    // `bend` for a warp's block, faster where no score is large of rows that are not `ignored`. A partial block always takes the exact tanh: behind its
    // keys there may be others', which must not matter.
    template <int COUNT> __device__ void bend_block(float (&dots)[COUNT], const bool (&ignored)[ROWS_PER_THREAD], bool is_partial) const
    {
        if constexpr (!Traits::has_fast_cap() || !Traits::keeps_factors()) return bend(dots);
        if (!has_softcap()) return;
        // Worked out here, for each block: it would stay in registers.
        const float dot_to_argument = params.scoring.scale * reciprocal_approximate(computed_here(params.scoring.softcap));
        unsigned seen[ROWS_PER_THREAD] = {0, 0};
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            dots[i] *= dot_to_argument;
            seen[i % 4 / 2] |= __float_as_uint(fmaf(dots[i], dots[i], 1.0f));
        }
        bool large = is_partial;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            large |= is_large(seen[row]) & !ignored[row];
        if (uniform(__any_sync(0xffffffff, large)))
            cap_with(dots, 1);
        else
            tanh_of_small<8>(dots, computed_here(params.heads) >> 31);
    }

  private:
    template <int COUNT> __device__ void cap_with(float (&dots)[COUNT], float dot_to_argument) const
    {
        constexpr int AT_ONCE = 4; // ptxas would have more of them under way than there are registers
        const int zero = opaque_zero();
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const float dot = i < AT_ONCE ? dots[i] : after(dots[i], dots[i - AT_ONCE], zero);
            dots[i] = tanh_approximate(dot * dot_to_argument);
        }
    }
    __device__ static bool has_softcap(const Forward& params) { return Traits::SOFTCAP && params.scoring.softcap > 0; }
};

// The running maximum is raised only when it would grow by more than this factor's exponent: until then weights up to
// 2^8 are exact enough in every element type, and the output need not be rescaled. FlashAttention-4 does the same. (A smaller one
// makes bf16's error smaller, and costs more than it is worth: docs/notebook/wgmma.md.)
constexpr float RESCALE_EXPONENT = 8;

// A larger offset is coarser than the fused score * scale + offset, which rounds once: the largest score's exponent would
// come out as anything but 0, and its weight as 0 or infinity.
constexpr float COARSE_OFFSET = 0x1p24f;

template <class Traits> struct RowState {
    // What turns score * scale_log2 into the exponent of a weight: minus the reference maximum, rounded once, so that all
    // that depends on it cancels exactly. Infinity until a key was seen.
    float offset[ROWS_PER_THREAD];
    float sum[ROWS_PER_THREAD]; // this lane's columns only
    // Factors for the output accumulated before this block; the first is negative, in all lanes of a warp, if none of the warp's rows has one.
    float rescale[ROWS_PER_THREAD];
    bool any_coarse; // some row of the warp has a coarse offset; same in all lanes of a warp
    bool has_maxima; // with fast terms, in place of it: no row of the warp has one, and all have seen a key

    static constexpr int COUNT = Traits::BLOCK_N / 2; // scores a thread
    static constexpr int CHUNK = 8;                   // scores of one round of `exponentiate`
    static_assert(COUNT % CHUNK == 0, "rounds cover a thread's scores");

    // Results of a row after its last key: the inverse that its output is multiplied by, and its log-sum-exp.
    __device__ void finish(float (&inverse)[ROWS_PER_THREAD], float (&lse)[ROWS_PER_THREAD], const Forward& params, const Tile& tile) const
    {
        finish(inverse, lse, params, [&](int row) { return head_of_row<Traits>(params, tile, row); });
    }
    // `head_of`: of one of the thread's rows.
    template <class HeadOf>
    __device__ void finish(float (&inverse)[ROWS_PER_THREAD], float (&lse)[ROWS_PER_THREAD], const Forward& params, HeadOf head_of) const
    {
        float total[ROWS_PER_THREAD], max[ROWS_PER_THREAD], keep[ROWS_PER_THREAD];
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            total[row] = quad_sum(sum[row]);
            max[row] = -offset[row];
            keep[row] = 1;
        }
        end_rows<!(Traits::GROUPS || Traits::packs_rows())>(params.scoring, head_of, max, total, keep);
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            inverse[row] = total[row] == 0 ? 0.0f : keep[row] * reciprocal_approximate(total[row]);
            lse[row] = (__log2f(total[row]) + max[row]) * LN_2;
        }
    }

    __device__ void reset()
    {
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            offset[row] = positive_infinity();
            sum[row] = 0;
        }
        any_coarse = false;
        has_maxima = false;
    }

    __device__ bool must_rescale() const { return !(rescale[0] < 0); }
    __device__ void forget_rescale() { rescale[0] = -1; }

    // Of a row that does not exist: no block is computed again for its sake. A row whose sum is NaN, as its output will be, is like that.
    __device__ void give_up(int row) { sum[row] = not_a_number(); }

    // Scores -> weights, in place; updates max, sum and rescale.
    __device__ void update(float (&scores)[COUNT], const ScoreScale<Traits>& scale)
    {
        raise(scores, scale);
        float added[ROWS_PER_THREAD];
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            added[row] = fabsf(offset[row]) > COARSE_OFFSET ? 0 : offset[row]; // coarse, or infinite
        exponentiate(scores, scale, added, sum);
    }

    // The same for a plain block, in which nothing is hidden, without a look at the scores: weights count against the maxima of before, and their
    // sums tell whether one is too large, or not a number. Then this returns false, in all lanes of the warp: nothing has changed but
    // `scores` and `sums`, and the block needs `lower`, and `update_again` if that can't be. `offsets`: those of the rows, and what else a row's
    // scores have in common.
    __device__ bool update_plain(float (&scores)[COUNT], const ScoreScale<Traits>& scale, const float (&offsets)[ROWS_PER_THREAD],
                                 float (&sums)[ROWS_PER_THREAD])
    {
        float added[ROWS_PER_THREAD] = {offsets[0], offsets[1]};
        exponentiate(scores, scale, added, sums);
        return keep_if(Traits::has_fast_terms() || !any_coarse, sums); // with terms the caller has looked
    }

    // The same where `bias(first key of 16, words)` has pairs of numbers that are added to scores, as ptx/box_words.cuh lays them out. All
    // rows have maxima.
    template <class Box>
    __device__ bool update_boxed(float (&scores)[COUNT], const ScoreScale<Traits>& scale, const Box& box, float (&sums)[ROWS_PER_THREAD])
    {
        float added[ROWS_PER_THREAD] = {offset[0], offset[1]};
        exponentiate_boxed(scores, scale, added, sums, box);
        return keep_if(true, sums);
    }

    // The same where exponents of a row also differ by `per_key` from a key to the next.
    __device__ bool update_linear(float (&scores)[COUNT], const ScoreScale<Traits>& scale, const float (&offsets)[ROWS_PER_THREAD], float per_key,
                                  float (&sums)[ROWS_PER_THREAD])
    {
        float added[ROWS_PER_THREAD] = {offsets[0], offsets[1]};
        exponentiate<true>(scores, scale, added, sums, per_key);
        return keep_if(!any_coarse, sums);
    }

    // `update_plain` with a softcap. Warps may go different ways, which is why no product is among them.
    __device__ bool update_bent(float (&scores)[COUNT], ScoreScale<Traits>& scale, float (&sums)[ROWS_PER_THREAD])
    {
        if (scale.bending == Bending::LOOKS && has_large(scores, scale)) scale.bending = Bending::EXACT;
        if (scale.bending == Bending::EXACT) {
            scale.bend(scores);
            return update_plain(scores, scale, offset, sums);
        }
        float added[ROWS_PER_THREAD] = {offset[0], offset[1]};
        exponentiate_capped(scores, scale, scale.capped_exponents(), added, sums);
        return keep_if(!any_coarse, sums, [&](int row) { return scale.limits[row]; });
    }

    // Once maxima have changed: whether sums will tell of scores beyond the polynomial's range. Larger ones must raise a sum more than a lane's
    // scores at the maximum do. Of smaller ones the weights come out too small, by 1/128 of that at the range's end at most, which must not
    // matter even if all `keys` are like that.
    __device__ void choose_bending(ScoreScale<Traits>& scale, int keys) const
    {
        const float largest = scale.largest_score(), from = (float)(32 - __clz(keys)) - largest;
        bool fits = true;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            scale.limits[row] = exp2_approximate(offset[row] + largest);
            fits &= ((-offset[row] >= from) & (scale.limits[row] > COUNT / ROWS_PER_THREAD)) | is_given_up(row);
        }
        if (scale.bending != Bending::EXACT) scale.bending = __all_sync(0xffffffff, fits) ? Bending::FITS : Bending::LOOKS;
#pragma unroll
        for (float& limit : scale.limits)
            limit = scale.bending == Bending::FITS ? fminf(limit, MAX_WEIGHTS) : MAX_WEIGHTS;
    }

    // `lower` after `update_bent`; false, too, if a score may have been large.
    __device__ bool lower_bent(float (&weights)[COUNT], ScoreScale<Traits>& scale, const float (&sums)[ROWS_PER_THREAD])
    {
        bool fits = true;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            fits &= (sums[row] < exp2_approximate(offset[row] + scale.largest_score())) | is_given_up(row);
        if (scale.bending == Bending::FITS && !__all_sync(0xffffffff, fits)) {
            scale.bending = Bending::EXACT;
            return false;
        }
        return lower(weights, sums);
    }

    __device__ bool is_given_up(int row) const { return sum[row] != sum[row]; }

    // Keeps weights that were too large, with their `sums`: the maxima of their rows are raised by as many powers of 2 as the largest sum of a
    // lane has. Returns false, in all lanes of the warp, and changes nothing, if some are out of range or an offset is coarse.
    __device__ bool lower(float (&weights)[COUNT], const float (&sums)[ROWS_PER_THREAD])
    {
        bool fits = Traits::has_fast_terms() || !any_coarse;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            fits &= ((sums[row] < MAX_LOWERED) & (fabsf(offset[row]) < COARSE_OFFSET / 2)) | is_given_up(row);
        if (!__all_sync(0xffffffff, fits)) return false;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            const float largest = quad_max(sums[row]);
            const float risen = largest > MAX_WEIGHTS ? offset[row] - (float)((__float_as_int(largest) >> 23) - 127) : offset[row];
            rescale[row] = exp2_approximate(risen - offset[row]);
            offset[row] = risen;
            sum[row] = (sum[row] + sums[row]) * rescale[row];
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            weights[i] *= rescale[i % 4 / 2];
        return true;
    }

    // The weights of a plain block whose scores `multiply(first key, scores)` computes again, a few at a time: once for the maxima, and once for
    // the weights. So they need no registers beside these.
    template <int PART, class Multiply>
    __device__ void update_again(float (&weights)[COUNT], const ScoreScale<Traits>& scale, Multiply multiply)
    {
        float part[PART], block_max[ROWS_PER_THREAD] = {negative_infinity(), negative_infinity()};
#pragma unroll 1
        for (int begin = 0; begin < COUNT; begin += PART) {
            multiply(begin * 2, part);
#pragma unroll
            for (int i = 0; i < PART; i++)
                block_max[i % 4 / 2] = fmaxf(block_max[i % 4 / 2], part[i]);
        }
        raise_to<!Traits::hides_keys()>(block_max, scale);
#pragma unroll
        for (int begin = 0; begin < COUNT; begin += PART) {
            multiply(begin * 2, part);
#pragma unroll
            for (int i = 0; i < PART; i++) {
                const int row = i % 4 / 2;
                const float exponent = part[i] * scale.scale_log2 + offset[row];
                weights[begin + i] = exp2_approximate(is_coarse(row) ? coarse_exponent(part[i], row, scale) : exponent);
                if constexpr (Traits::hides_keys())
                    if (part[i] == negative_infinity()) weights[begin + i] = 0;
                sum[row] += weights[begin + i];
            }
        }
    }

    // A branch that is never taken, on a value that needs every exponential of `update`. Without it ptxas moves the
    // following wait for a product in front of the exponentials that should run under that product.
    __device__ void keep_before_here() const
    {
        if (sum[0] + sum[1] < 0)
            stay_here();
    }

  private:
    // A lane's of a row in a block.
    static constexpr float MAX_WEIGHTS = MAX_GROWTH<typename Traits::Element>;
    static constexpr float MAX_LOWERED = 0x1p120f; // what a power of 2 brings back to 1

    // Adds a block's sums if no weight is too large for any lane of the warp, or `fits` is false.
    __device__ bool keep_if(bool fits, const float (&sums)[ROWS_PER_THREAD])
    {
        return keep_if(fits, sums, [](int) { return MAX_WEIGHTS; });
    }
    // `limit`: of a row's sum.
    template <class Limit> __device__ bool keep_if(bool fits, const float (&sums)[ROWS_PER_THREAD], Limit limit)
    {
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            fits &= (sums[row] <= limit(row)) | is_given_up(row);
        if (__builtin_expect(!__all_sync(0xffffffff, fits), false))
            return false;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            sum[row] += sums[row];
        forget_rescale();
        return true;
    }

    // Returns true if one of the warp's dot products is large. Rows that are given up don't count.
    __device__ bool has_large(const float (&scores)[COUNT], const ScoreScale<Traits>& scale) const
    {
        float largest[ROWS_PER_THREAD][2] = {};
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float& of_chain = largest[i % 4 / 2][i % 2];
            of_chain = fmaxf(of_chain, fabsf(scores[i]));
        }
        const float limit = fabsf(CappedExponents::largest_argument() * scale.params.scoring.softcap * reciprocal_approximate(scale.params.scoring.scale));
        bool large = false;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            large |= (fmaxf(largest[row][0], largest[row][1]) > limit) & !is_given_up(row);
        return __any_sync(0xffffffff, large);
    }

    __device__ static void add(const float (&scores)[COUNT], int begin, float (&sums)[ROWS_PER_THREAD])
    {
#pragma unroll
        for (int i = begin; i < begin + CHUNK; i++)
            sums[i % 4 / 2] += scores[i];
    }

    __device__ void raise(float (&scores)[COUNT], const ScoreScale<Traits>& scale)
    {
        float block_max[ROWS_PER_THREAD];
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            // Four chains a row, so that none waits for itself.
            float chain[4] = {scores[2 * row], scores[2 * row + 1], scores[2 * row + 4], scores[2 * row + 5]};
#pragma unroll
            for (int i = 8; i < COUNT; i += 8)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    chain[j] = fmaxf(chain[j], scores[i + 2 * row + j / 2 * 4 + j % 2]);
            block_max[row] = fmaxf(fmaxf(chain[0], chain[1]), fmaxf(chain[2], chain[3]));
        }
        raise_to<false>(block_max, scale);
        if (__builtin_expect(some_coarse(), false))
#pragma unroll
            for (int row = 0; row < ROWS_PER_THREAD; row++)
                round_coarse_exponents(scores, row, scale);
    }

    // `block_max` are this lane's.
    template <bool PLAIN>
    __device__ void raise_to(float (&block_max)[ROWS_PER_THREAD], const ScoreScale<Traits>& scale)
    {
        bool special = false;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++) {
            block_max[row] = quad_max(block_max[row]);
            special |= grows_much<PLAIN>(row, block_max[row], scale);
        }
        forget_rescale();
        if (!__any_sync(0xffffffff, special))
            return;
#pragma unroll
        for (int row = 0; row < ROWS_PER_THREAD; row++)
            raise_max<PLAIN>(row, block_max[row], scale);
        if constexpr (Traits::has_fast_terms() || Traits::has_score_boxes())
            has_maxima = __all_sync(0xffffffff, has_maximum(0) && has_maximum(1));
        else
            any_coarse = __any_sync(0xffffffff, is_coarse(0) || is_coarse(1));
    }

    // False for a row that has seen no key yet and sees none in this block. A row that sees its first ones is raised even if
    // they overflow when scaled, which leaves -inf + inf.
    template <bool PLAIN>
    __device__ bool grows_much(int row, float block_max, const ScoreScale<Traits>& scale) const
    {
        const float growth = block_max * scale.scale_log2 + offset[row];
        if constexpr (PLAIN)
            return !(growth <= RESCALE_EXPONENT);
        else
            return growth > RESCALE_EXPONENT || (growth != growth && block_max > negative_infinity());
    }

    __device__ bool is_seen(int row) const { return offset[row] != positive_infinity(); }
    __device__ bool has_maximum(int row) const { return is_given_up(row) || (is_seen(row) && !is_coarse(row)); }
    // The same in all lanes of a warp.
    __device__ bool some_coarse() const
    {
        if constexpr (Traits::has_fast_terms() || Traits::has_score_boxes()) return !has_maxima && __any_sync(0xffffffff, is_coarse(0) || is_coarse(1));
        return any_coarse;
    }
    __device__ bool is_coarse(int row) const
    {
        return fabsf(offset[row]) > COARSE_OFFSET && is_seen(row) && !is_given_up(row);
    }

    // Scores of finite inputs may be infinite once they are scaled, and infinity - infinity is NaN. So they are taken as no larger
    // than this: a quarter of the range, so that the difference of two of them is finite too.
    static constexpr float MAX_SCALED = MAX_FLOAT / 4;

    __device__ float coarse_exponent(float score, int row, const ScoreScale<Traits>& scale) const
    {
        return __fadd_rn(clamp_keeping_nan(__fmul_rn(score, scale.scale_log2), MAX_SCALED), offset[row]);
    }

    // Replaces the scores of a row with a coarse offset by what `exponentiate`, without the offset, makes the same
    // exponents of, the largest one's exactly 0. Hidden ones stay so.
    __device__ void round_coarse_exponents(float (&scores)[COUNT], int row, const ScoreScale<Traits>& scale)
    {
        const float inverse_scale = reciprocal_of_any(scale.scale_log2);
        const bool coarse = is_coarse(row);
#pragma unroll
        for (int i = 2 * row; i < COUNT; i += 4)
#pragma unroll
            for (int j = i; j < i + 2; j++) {
                const bool replace = coarse && scores[j] != negative_infinity();
                scores[j] = replace ? coarse_exponent(scores[j], row, scale) * inverse_scale : scores[j];
            }
    }

    // The exponential unit takes one warp instruction in 8 cycles; what else there is to do fits between them if it is
    // spread evenly. ptxas would do all scaling first, so a round's scaling is made to depend on the sums of the round
    // before the last.
    template <bool LINEAR = false>
    __device__ static void exponentiate(float (&scores)[COUNT], const ScoreScale<Traits>& scale, float (&added)[ROWS_PER_THREAD],
                                        float (&sums)[ROWS_PER_THREAD], float per_key = 0)
    {
        const int zero = scale.opaque_zero();
#pragma unroll
        for (int begin = 0; begin < COUNT; begin += CHUNK) {
            if (begin >= 2 * CHUNK)
#pragma unroll
                for (int row = 0; row < ROWS_PER_THREAD; row++)
                    added[row] = after(added[row], sums[row], zero);
#pragma unroll
            for (int i = begin; i < begin + CHUNK; i++)
                if constexpr (LINEAR)
                    scores[i] = fmaf(scores[i], scale.scale_log2, fmaf((float)(i / 4 * 8 + i % 2), per_key, added[i % 4 / 2]));
                else
                    scores[i] = scores[i] * scale.scale_log2 + added[i % 4 / 2];
            if (begin >= CHUNK)
                add(scores, begin - CHUNK, sums);
#pragma unroll
            for (int i = begin; i < begin + CHUNK; i++)
                scores[i] = exp2_approximate(scores[i]);
        }
        add(scores, COUNT - CHUNK, sums);
    }

    // The same with a bias, whose words are asked for a round before they are used.
    template <class Box>
    __device__ static void exponentiate_boxed(float (&scores)[COUNT], const ScoreScale<Traits>& scale, float (&added)[ROWS_PER_THREAD],
                                               float (&sums)[ROWS_PER_THREAD], const Box& box)
    {
        static_assert(CHUNK == 8, "a round has the scores of 16 keys");
        const int zero = scale.opaque_zero();
        unsigned words[2][4];
        box(0, words[0]);
#pragma unroll
        for (int begin = 0; begin < COUNT; begin += CHUNK) {
            if (begin + CHUNK < COUNT) box(2 * (begin + CHUNK), words[(begin / CHUNK + 1) % 2]);
            if (begin >= 2 * CHUNK)
#pragma unroll
                for (int row = 0; row < ROWS_PER_THREAD; row++)
                    added[row] = after(added[row], sums[row], zero);
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                scores[begin + i] = box.exponent(words[begin / CHUNK % 2], i, scores[begin + i], scale.scale_log2, added[i % 4 / 2]);
            }
            if (begin >= CHUNK)
                add(scores, begin - CHUNK, sums);
#pragma unroll
            for (int i = begin; i < begin + CHUNK; i++)
                scores[i] = exp2_approximate(scores[i]);
        }
        add(scores, COUNT - CHUNK, sums);
    }

    // The same for dot products that are bounded by a softcap.
    __device__ static void exponentiate_capped(float (&scores)[COUNT], const ScoreScale<Traits>& scale,
                                               const CappedExponents& capped, float (&added)[ROWS_PER_THREAD],
                                               float (&sums)[ROWS_PER_THREAD])
    {
        const int zero = scale.opaque_zero();
        float last = capped.factors[2];
#pragma unroll
        for (int begin = 0; begin < COUNT; begin += CHUNK) {
            if (begin >= 2 * CHUNK)
                last = after(last, sums[0], zero);
#pragma unroll
            for (int i = begin; i < begin + CHUNK; i++)
                scores[i] = capped.exponent(scores[i], last, added[i % 4 / 2]);
            if (begin >= CHUNK)
                add(scores, begin - CHUNK, sums);
#pragma unroll
            for (int i = begin; i < begin + CHUNK; i++)
                scores[i] = exp2_approximate(scores[i]);
        }
        add(scores, COUNT - CHUNK, sums);
    }

    template <bool PLAIN>
    __device__ void raise_max(int row, float block_max, const ScoreScale<Traits>& scale)
    {
        rescale[row] = 1;
        if (!grows_much<PLAIN>(row, block_max, scale))
            return;
        const float risen = -fminf(fmaxf(__fmul_rn(block_max, scale.scale_log2), -MAX_SCALED), MAX_SCALED);
        rescale[row] = exp2_approximate(risen - offset[row]);
        sum[row] *= rescale[row];
        offset[row] = risen;
    }
};

// Hides from a warpgroup's 64 rows the keys of `block` that they don't see. Which keys a row sees is an interval, so most
// blocks need no test of single elements.
template <class Traits>
__device__ void apply_mask(float (&scores)[Traits::BLOCK_N / 2], const Forward& params, const Tile& tile, int warpgroup,
                           int block)
{
    const Mask mask(params.scoring, tile.query_len, tile.key_len);
    const int queries = warpgroup_queries<Traits>(params), first_row = tile.first_query + warpgroup * queries;
    const QueryRange range = queries_of_rows<Traits>(params, first_row, queries);
    if (!mask.hides_part_of(range.first, range.count, block * Traits::BLOCK_N, Traits::BLOCK_N))
        return;
    const int first_key = block * Traits::BLOCK_N + lane_column();
#pragma unroll
    for (int row = 0; row < ROWS_PER_THREAD; row++) {
        int query = lane_row() + 8 * row;
        if constexpr (Traits::GROUPS) query &= queries - 1;
        if constexpr (Traits::packs_rows()) query = PackedRows(params, first_row).query(query) - first_row;
        const int diagonal = first_row + query + mask.shift;
        const int first_seen = diagonal - mask.left - first_key;
        const int end_seen = min(diagonal + mask.right, tile.key_len - 1) + 1 - first_key;
        constexpr int KEYS_PER_WORD = 128;
#pragma unroll
        for (int word = 0; word < Traits::BLOCK_N; word += KEYS_PER_WORD) {
            const unsigned hidden = ~columns_from(first_seen - word) | columns_from(end_seen - word);
#pragma unroll
            for (int i = 0; i < KEYS_PER_WORD / 4; i++)
                if (word + i * 4 < Traits::BLOCK_N && hidden & 1u << i) {
                    float& score = scores[word / 2 + i / 2 * 4 + 2 * row + i % 2];
                    score = negative_infinity();
                }
        }
    }
}

} // namespace warptile
