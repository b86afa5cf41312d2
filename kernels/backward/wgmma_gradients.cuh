// What a warpgroup of the one-pass kernels computes: dK and dV of 64 keys, in registers, and in turn with the others the tile's share of dQ
// of a block of queries.
//
// The scores of a block are transposed, keys x queries, so that weights and gradients of scores are left operands of dV and dK as they are.
//
// The products with queries begin at -lse / scale and those with values at -delta: loads of these between exp2 and its use would wait
// behind wgmma's own. dQ needs the gradients of all the tile's scores; it is computed one block late, when the other warpgroups have long
// left their own. Queries are given back at the end of a block, so that those of the next but one come in time.
#pragma once

#include "backward/wgmma_layout.cuh"
#include "backward/wgmma_rows.cuh"
#include "base/after.cuh"
#include "base/math.cuh"
#include "memory/ring.cuh"
#include "ptx/launch.cuh"
#include "ptx/stage.cuh"

namespace warptile {

template <class Traits> __device__ inline void compute_gradients(const BackwardTma& block, const OnePassShared<Traits> shared, const int warpgroup)
{
    using Element = typename Traits::Element;
    constexpr int SCORES = Traits::SCORES, RESULTS = Traits::RESULTS, STEPS = Traits::BLOCK_M / MMA_K, DEPTH = Traits::HEAD_DIM / MMA_K;
    const Backward& params = block.backward;
    const float scale_log2 = params.scoring.scale * LOG2_E, lse_factor = -1 / scale_log2;
    const auto lane = [] { return thread_index() % 32; };
    const auto arrive = [&](unsigned barrier) {
        if (lane() == 0) barrier_arrive(barrier);
    };
    // With dropout products with queries begin where weights come out multiplied, and those with values at 0.
    MaskedScores<Traits> scores(block);
    float first_product = 0, delta_factor = -1;
    if constexpr (drops<Traits>()) {
        first_product = log2f(kept_factor(block)) / scale_log2;
        delta_factor = -1 / kept_factor(block);
    }
    // Numbers of a thread's queries.
    const auto begin_at = [&](float (&x)[SCORES], unsigned at, float factor) {
#pragma unroll
        for (int i = 0; i < SCORES; i += 4) {
            const float2 two = load_two(at + i * 8);
            x[i] = x[i + 2] = two.x * factor;
            x[i + 1] = x[i + 3] = two.y * factor;
        }
    };
    const float argument = bend_argument<Traits>(params.scoring);
    const bool queries_are_followed = params.sequences.query_offsets || params.sequences.query_lengths;
    unsigned it = 0, given = 0, loads = 0; // blocks of this CTA, sums of dQ that this warpgroup has given away, and tiles with keys
    RingPosition<Traits::CONSUMERS> ring;  // who computes the block's share of dQ, and how often it has
    // Whether this warpgroup computes that of the block before.
    const auto has_duty = [&] { return uniform(ring.stage == 0 ? Traits::CONSUMERS - 1 : ring.stage - 1) == warpgroup; };

    for (unsigned turn = 0;; turn++) {
        const KeyTile& tile = shared.wait_for_tile(turn);
        if (!tile.exists) return;
        const int of_head = uniform(tile.end_block - tile.first_block), blocks = of_head * uniform(tile.heads), last_block = uniform(tile.end_block) - 1;
        const Mask mask = tile.mask(params);
        const int first_key = uniform(tile.first_key) + warpgroup * MMA_ROWS;
        float dk[RESULTS], dv[RESULTS];
#pragma unroll
        for (int i = 0; i < RESULTS; i++) dk[i] = dv[i] = 0;

        const unsigned long long keys = matrix_descriptor(shared.base + Traits::KEYS_AT + warpgroup * Traits::QUERY_SLAB_BYTES, 1);
        const unsigned long long values = matrix_descriptor(shared.base + Traits::VALUES_AT + warpgroup * Traits::QUERY_SLAB_BYTES, 1);
        const auto along_rows = [](unsigned long long descriptor, int step, int slab_bytes) {
            return advance_descriptor(descriptor, step % 4 * 32 + step / 4 * slab_bytes);
        };
        // dQ of the block before, which is this warpgroup's, behind what has been issued.
        const auto issue_sum = [&](float (&sum)[RESULTS]) {
            barrier_wait(shared.slopes_full(warpgroup), given & 1);
            wgmma_fence();
            const unsigned long long slopes = matrix_descriptor(shared.slopes(warpgroup), 1);
            const unsigned long long all_keys = matrix_descriptor(shared.base + Traits::KEYS_AT, Traits::KEY_SLAB_BYTES);
#pragma unroll
            for (int step = 0; step < Traits::BLOCK_N / MMA_K; step++)
                WgmmaRows<Traits::HEAD_DIM>::template shared<Element>(sum, along_rows(slopes, step, Traits::QUERY_SLAB_BYTES),
                                                                      advance_descriptor(all_keys, step * 2 * SWIZZLE_GROUP_BYTES), step > 0);
            wgmma_commit();
        };
        const auto give_sum = [&](float (&sum)[RESULTS]) {
            wgmma_wait<0>();
            pin(sum);
            arrive(shared.slopes_empty(warpgroup));
            barrier_wait(shared.sums_empty(warpgroup), ~given & 1);
            given++;
            const unsigned at = shared.sums(warpgroup) + thread_index() % 128 * 16;
#pragma unroll
            for (int i = 0; i < RESULTS / 4; i++) {
                const unsigned words[4] = {__float_as_uint(sum[4 * i]), __float_as_uint(sum[4 * i + 1]), __float_as_uint(sum[4 * i + 2]),
                                           __float_as_uint(sum[4 * i + 3])};
                store_four_words(at + i * 2048, words);
            }
            fence_shared_for_async();
            __syncwarp();
            arrive(shared.sums_full(warpgroup));
        };

        const int key_rows = keys_are_followed(params.sequences) ? uniform(tile.k.len - tile.first_key) : Traits::BLOCK_N;
        if (blocks > 0) {
            barrier_wait(shared.keys_full(), loads & 1);
            if (key_rows < Traits::BLOCK_N) clear_end<Traits::BLOCK_N, Traits::SLABS>(shared.base + Traits::KEYS_AT, key_rows, warpgroup);
        }
        int query_block = last_block, head = uniform(tile.kv_head) * uniform(tile.heads);
        float slope = 0; // of products, with ALiBi
        const auto take_slope = [&] { slope = product_slope<Traits>(params.scoring, uniform(tile.exists - 1), head); };
        take_slope();
        const auto draw = [&](int of_head, int of_block) {
            if constexpr (drops<Traits>()) scores.draw(uniform(tile.exists - 1), of_head, of_block * Traits::BLOCK_M, first_key, shared.base, warpgroup);
        };
        if (drops<Traits>() && blocks > 0) draw(head, query_block);
#pragma unroll 1
        for (int i = 0; i < blocks; i++, it++) {
            float x[SCORES], y[SCORES];
            unsigned weights[SCORES / 2], slopes[SCORES / 2];
            const int stage = uniform(it & 1);
            const unsigned phase = it >> 1 & 1;
            const unsigned numbers = shared.numbers(stage) + thread_index() % 4 * 8;
            const int first_query = query_block * Traits::BLOCK_M;
            const int rows = queries_are_followed ? mask.query_len - first_query : Traits::BLOCK_M;
            barrier_wait(shared.queries_full(stage), phase);
            if (rows < Traits::BLOCK_M) clear_end<Traits::BLOCK_M, Traits::SLABS>(shared.queries(stage), rows, warpgroup);
            if constexpr (!caps<Traits>()) begin_at(x, numbers, lse_factor);
            if constexpr (drops<Traits>())
#pragma unroll
                for (float& one : x) one += first_product;
            else
                begin_at(y, numbers + Traits::NUMBER_BYTES, -1);
            if constexpr (!caps<Traits>()) pin(x);
            if constexpr (!drops<Traits>()) pin(y);
            wgmma_fence();
            const unsigned long long queries = matrix_descriptor(shared.queries(stage), 1), d_out = matrix_descriptor(shared.d_out(stage), 1);
#pragma unroll
            for (int step = 0; step < DEPTH; step++)
                Wgmma<Traits::BLOCK_M>::template shared<Element>(x, along_rows(keys, step, Traits::KEY_SLAB_BYTES),
                                                                 along_rows(queries, step, Traits::QUERY_SLAB_BYTES), !caps<Traits>() || step > 0);
            wgmma_commit();
            barrier_wait(shared.d_out_full(stage), phase);
            if (rows < Traits::BLOCK_M) clear_end<Traits::BLOCK_M, Traits::SLABS>(shared.d_out(stage), rows, warpgroup);
            if (i == 0) {
                barrier_wait(shared.values_full(), loads & 1);
                if (key_rows < Traits::BLOCK_N) clear_end<Traits::BLOCK_N, Traits::SLABS>(shared.base + Traits::VALUES_AT, key_rows, warpgroup);
            }
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < DEPTH; step++)
                Wgmma<Traits::BLOCK_M>::template shared<Element>(y, along_rows(values, step, Traits::KEY_SLAB_BYTES),
                                                                 along_rows(d_out, step, Traits::QUERY_SLAB_BYTES), !drops<Traits>() || step > 0);
            wgmma_commit();
            wgmma_wait<1>();
            pin(x);
            pin(dk);
            query_block = query_block - last_block + of_head == 1 ? last_block : query_block - 1;
            const int diagonal = first_query + mask.shift;
            if constexpr (has_distances<Traits>()) {
                const int distance = first_query + mask.key_len - mask.query_len + lane() % 4 * 2 - first_key - thread_index() % 128 / 32 * 16 - lane() / 4;
                add_distances<true>(x, distance, slope);
                if (query_block == last_block) {
                    head++;
                    if (i < blocks - 1) take_slope();
                }
            }
            // Weights are at most 1, of which f16 has three more bits than bf16.
            if constexpr (caps<Traits>()) {
                float bent[SCORES];
                bend(bent, x, argument, params.heads >> 31);
                hide_unseen<Traits::BLOCK_M>(bent, mask, first_key, diagonal);
#pragma unroll
                for (int j = 0; j < SCORES / 2; j++) {
                    // Not too many at once: registers have no room for them.
                    const float unit = cap_exponent(params.scoring), cap = j < 2 ? unit : after(unit, __uint_as_float(weights[j - 2]), params.heads >> 31);
                    const float2 lse = load_two(numbers + j / 2 * 32);
                    const float2 two = {weight_of_bent(bent[2 * j], cap, lse.x), weight_of_bent(bent[2 * j + 1], cap, lse.y)};
                    weights[j] = pack<Element>(two.x, two.y);
                    slopes[j] = pack<__half>(slope_of_bent(two.x, bent[2 * j]), slope_of_bent(two.y, bent[2 * j + 1]));
                }
            } else {
                hide_unseen<Traits::BLOCK_M>(x, mask, first_key, diagonal);
#pragma unroll
                for (int j = 0; j < SCORES / 2; j++) {
                    const float2 two = {exp2_approximate(x[2 * j] * scale_log2), exp2_approximate(x[2 * j + 1] * scale_log2)};
                    weights[j] = pack<Element>(two.x, two.y);
                    slopes[j] = pack<__half>(two.x, two.y);
                    if constexpr (drops<Traits>()) {
                        weights[j] = scores.kept_pair(weights[j], j);
                        slopes[j] = scores.marked_pair(slopes[j], j);
                    }
                }
            }
            pin(weights);
            pin(slopes);
            pin(dv);
            wgmma_fence();
            const unsigned long long d_out_rows = matrix_descriptor(shared.d_out(stage), Traits::QUERY_SLAB_BYTES);
#pragma unroll
            for (int step = 0; step < STEPS; step++)
                Wgmma<Traits::HEAD_DIM>::template from_registers<Element>(dv, weights + 4 * step,
                                                                          advance_descriptor(d_out_rows, step * 2 * SWIZZLE_GROUP_BYTES), true);
            wgmma_commit();
            float deltas[drops<Traits>() ? SCORES / 2 : 1];
            if constexpr (drops<Traits>())
#pragma unroll
                for (int j = 0; j < SCORES / 2; j += 2) {
                    const float2 two = load_two(numbers + Traits::NUMBER_BYTES + j * 16);
                    deltas[j] = two.x * delta_factor;
                    deltas[j + 1] = two.y * delta_factor;
                }
            wgmma_wait<1>();
            pin(y);
            if (i == blocks - 1) arrive(shared.values_empty());
            const int which = uniform(ring.stage);
            barrier_wait(shared.slopes_empty(which), ~ring.parity & 1);
            const unsigned l = lane(), chunk = 2 * (thread_index() % 128 / 32) + l / 8 % 2;
            const unsigned slope_row = shared.slopes(which) + warpgroup * Traits::QUERY_SLAB_BYTES + (l / 16 * 8 + l % 8) * SWIZZLE_BYTES + (chunk ^ l % 8) * 16;
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
#pragma unroll
                for (int j = 4 * step; j < 4 * step + 4; j++) {
                    const float2 two = unpacked<__half>(slopes[j]);
                    if constexpr (drops<Traits>())
                        slopes[j] = pack<Element>(fmaf(fmaxf(two.x, 0), y[2 * j], fabsf(two.x) * deltas[j / 2 * 2]),
                                                  fmaf(fmaxf(two.y, 0), y[2 * j + 1], fabsf(two.y) * deltas[j / 2 * 2 + 1]));
                    else
                        slopes[j] = pack<Element>(two.x * y[2 * j], two.y * y[2 * j + 1]);
                }
                store_matrices_transposed(slope_row + step * 2 * SWIZZLE_GROUP_BYTES, slopes + 4 * step);
            }
            pin(dk);
            pin(slopes);
            wgmma_fence();
            const unsigned long long query_rows = matrix_descriptor(shared.queries(stage), Traits::QUERY_SLAB_BYTES);
#pragma unroll
            for (int step = 0; step < STEPS; step++)
                Wgmma<Traits::HEAD_DIM>::template from_registers<Element>(dk, slopes + 4 * step,
                                                                          advance_descriptor(query_rows, step * 2 * SWIZZLE_GROUP_BYTES), true);
            wgmma_commit();
            fence_shared_for_async();
            __syncwarp();
            arrive(shared.slopes_full(which));
            if constexpr (drops<Traits>()) {
                // For the next block, under two products.
                if (query_block == last_block) head++;
                if (i < blocks - 1) draw(head, query_block);
            }
            wgmma_wait<1>();
            pin(dv);
            pin(weights);
            arrive(shared.d_out_empty(stage));
            if (i > 0 && has_duty()) {
                float sum[RESULTS];
                issue_sum(sum);
                wgmma_wait<1>();
                pin(dk);
                pin(slopes);
                arrive(shared.queries_empty(stage));
                give_sum(sum);
            } else {
                wgmma_wait<0>();
                pin(dk);
                pin(slopes);
                arrive(shared.queries_empty(stage));
            }
            ring.advance();
        }
        if (blocks > 0 && has_duty()) {
            float sum[RESULTS];
            issue_sum(sum);
            give_sum(sum);
        }
        if (blocks > 0) {
            arrive(shared.keys_empty());
            loads++;
        }
        write_rows<Element, false>(params, params.dk, tile, first_key, params.head_dim, dk, params.scoring.scale);
        write_rows<Element, false>(params, params.dv, tile, first_key, params.value_dim, dv, 1);
        __syncwarp();
        arrive(shared.tile_empty(turn % 2));
    }
}

} // namespace warptile
