// A computing warpgroup: 64 query rows of every tile. The next block's scores are multiplied while this block's weights
// wait for their product with the values, and the softmax runs under both:
//
//     scores(first block); softmax(first)
//     for each further block:  issue scores(next);  issue output += weights(this) values(this);  softmax(next)
//     issue output += weights(last) values(last)
//     issue scores(first block of the next tile);  finish and write this tile
//
// so that a tile's row sums, log-sum-exp and stores run under products as well. The warpgroups of a CTA are not synchronized
// with each other: while one waits for its products or computes its softmax, the others keep the tensor cores busy.
#pragma once

#include "forward/wgmma_again.cuh"
#include "forward/wgmma_alibi.cuh"
#include "forward/wgmma_dropout.cuh"
#include "forward/wgmma_epilogue.cuh"
#include "forward/wgmma_few_terms.cuh"
#include "forward/wgmma_joint_sum.cuh"
#include "forward/wgmma_listed.cuh"
#include "forward/wgmma_packed_queries.cuh"
#include "forward/wgmma_parts.cuh"
#include "work/lengths.cuh"
// Behind those: the order of constants is that of the symbols in each image.
#include "forward/wgmma_boxes.cuh"
#include "forward/wgmma_keymask.cuh"
#include "ptx/named_arrive.cuh"

namespace warptile {

template <class Traits> class Consumer : ScoreTerms<Traits>, DroppedWeights<Traits>, ListedSteps<Traits>, Distances<Traits> {
  public:
    using Element = typename Traits::Element;

    __device__ Consumer(const ForwardTma& params, unsigned char* shared, SharedLayout<Traits> layout, int warpgroup)
        : DroppedWeights<Traits>(params), params(params.forward), out_map(params.out_map), shared(shared), layout(layout),
          // With packed rows the compiler loses sight of what is uniform if it knows the only one.
          warpgroup(Traits::CONSUMERS == 1 && !Traits::packs_rows() ? 0 : warpgroup), scale(params.forward)
    {
    }

    __device__ void run()
    {
        clear_output();
        receive_tile();
        while (!uniform(tile().is_end())) {
            const bool has_rows = uniform(this->has_rows());
            const bool computes = has_rows && !uniform(tile().is_empty());
            if (computes && !compute_tiles())
                continue;
            if (computes || is_part()) {
                if (!computes) {
                    pass_blocks(uniform(tile().end_block - tile().first_block));
                    release_queries();
                }
                finish_part(uniform(this->has_rows()), computes);
                receive_tile();
                continue;
            }
            if (has_rows)
                write_empty_tile();
            else
                pass_blocks(uniform(tile().end_block - tile().first_block));
            release_queries();
            receive_tile();
        }
        // Shared memory is others' once the CTA has ended.
        if constexpr (Traits::OUTPUT_BUFFER)
            if (threadIdx.x % 32 == 0) wait_for_store_reads<0>();
    }

  private:
    // The tile in hand and all that follow it, up to the end or one without keys or rows; that one is then in hand. Or up to a part of a
    // tile: true, and it is in hand, its keys seen.
    __device__ bool compute_tiles()
    {
        start_tile();
        wait_for_first_keys();
        const bool in_turn = begins_in_turn();
        if (in_turn && warpgroup == 1) named_barrier_wait(SECOND_BEGINS, 2 * WARPGROUP_THREADS);
        issue_scores();
        if constexpr (packs_for_two() && !BEGINS_AFTER_SOFTMAX)
            if (in_turn && warpgroup == 0) {
                wgmma_wait<0>();
                pin(scores);
                named_barrier_arrive(SECOND_BEGINS, 2 * WARPGROUP_THREADS);
            }
        take_first_scores();
        if constexpr (packs_for_two() && BEGINS_AFTER_SOFTMAX)
            if (in_turn && warpgroup == 0) named_barrier_arrive(SECOND_BEGINS, 2 * WARPGROUP_THREADS);
        for (;;) {
            // Where scores have terms, all steps are one code.
            if constexpr (lists_blocks<Traits>()) {
                while (has_more() && next_is_plain()) step<true>();
            } else if constexpr (!Traits::has_tensors() && !Traits::has_score_boxes()) {
                if constexpr (Traits::has_alibi()) this->enter(block, plain_top, plain_floor);
                if (warp_agrees(block <= plain_top))
                    while (block > plain_floor) {
                        block--;
                        step<true>();
                    }
            }
            if (has_more()) {
                block--;
                step<false>();
            } else if (is_part()) {
                // Without the next tile's scores in flight: a merge needs their registers.
                issue_last_output();
                wgmma_wait<0>();
                pin(output);
                pin(weights);
                release_values();
                if constexpr (Traits::OUTPUT_THROUGH_QUERIES)
                    release(layout.queries_empty(warpgroup, queries_at.stage ^ 1));
                pass_blocks(left_behind);
                left_behind = 0;
                return true;
            } else {
                issue_last_output();
                receive_tile();
                const OutputRows<Traits> rows(params, layout.tile(shared, tiles - 2), warpgroup);
                float inverse[ROWS_PER_THREAD], lse[ROWS_PER_THREAD];
                state.finish(inverse, lse, params, layout.tile(shared, tiles - 2));
                this->scale_kept(inverse);
                rows.write_lse(lse);
                const bool more = start_tile(Traits::has_score_boxes() ? last_block - uniform(layout.tile(shared, tiles - 2).first_block) : 0);
                if (more)
                    wait_for_first_keys();
                // Without another tile these are scores of whatever the buffers hold, and nobody reads them: ptxas
                // serializes products with a way out between them.
                issue_scores();
                write_output(rows, inverse);
                if (!more) {
                    wgmma_wait<0>();
                    release_output();
                    pass_blocks(hidden);
                    return false;
                }
                take_first_scores();
                release_output();
            }
            // Without this the compiler is not sure that the warp is together again, and computes ring stages and
            // descriptors in ordinary registers: twice the instructions around each product.
            __syncwarp();
        }
    }

    // The two warpgroups of a tile of packed rows would begin with the same keys at the same time, and go on like that: both multiply, then
    // both compute their softmax. So the second one begins when the first has its first scores, or at head size 64, where the softmax takes
    // longer, its first weights. In a launch without a counter a CTA has one tile: nobody meets twice.
    __device__ static constexpr bool packs_for_two() { return Traits::packs_rows() && Traits::CONSUMERS == 2; }
    enum : bool { BEGINS_AFTER_SOFTMAX = Traits::HEAD_DIM <= 64 };
    enum : int { SECOND_BEGINS = 1 + Traits::CONSUMERS, FEWEST_BLOCKS = BEGINS_AFTER_SOFTMAX ? 16 : 1 };
    __device__ bool begins_in_turn() const
    {
        if constexpr (packs_for_two())
            return uniform(!params.work.counter && tile().has_rows(0, queries()) && tile().has_rows(1, queries()) &&
                           tile().end_block - tile().first_block >= FEWEST_BLOCKS);
        return false;
    }

    // Returns true if the tile in hand has another block.
    __device__ bool has_more() const
    {
        if constexpr (lists_blocks<Traits>())
            return !this->is_last;
        else
            return warp_agrees(block > last_block);
    }
    // Of a list: looks at the next block once its keys have arrived. Returns true if it hides nothing.
    __device__ bool next_is_plain()
    {
        if (!keys_ready) wait_for_keys();
        keys_ready = true;
        return this->look(layout.listed(shared, keys_at.stage), warpgroup);
    }
    __device__ bool is_last_block() const
    {
        if constexpr (lists_blocks<Traits>())
            return this->is_last;
        else
            return block == last_block;
    }

    // What all lanes agree on anyway. Of the variants of groups the compiler does not see it, with the same consequence as below.
    __device__ static bool warp_agrees(bool condition)
    {
        if constexpr (Traits::GROUPS || Traits::packs_rows()) return uniform(condition);
        return condition;
    }

    __device__ int queries() const { return warpgroup_queries<Traits>(params); }
    __device__ bool has_rows() const { return tile().has_rows(warpgroup, queries()); }

    __device__ const Tile& tile() const { return layout.tile(shared, tiles - 1); }

    __device__ void receive_tile()
    {
        barrier_wait(layout.queries_full(warpgroup, queries_at.stage), queries_at.parity);
        tiles++;
    }

    __device__ void write_empty_tile() const
    {
        const OutputRows<Traits> rows(params, tile(), warpgroup);
        rows.write_zeros();
        const auto lse_of = [&](int row) { return lse_without_keys(params.scoring, head_of_row<Traits>(params, tile(), row)); };
        const float first = lse_of(0);
        rows.write_lse({first, Traits::GROUPS || Traits::packs_rows() ? lse_of(1) : first});
    }

    __device__ bool is_part() const
    {
        if constexpr (Traits::SERVING)
            return uniform(!layout.part(shared, tiles - 1).is_whole());
        return false;
    }

    // Leaves this part of the tile in hand, all of whose keys have been seen, in the workspace; writes the tile from all its parts if the
    // others are there already.
    __device__ void finish_part(bool has_rows, bool has_output)
    {
        if constexpr (Traits::SERVING) {
            forget_scores();
            if (!has_output)
                state.reset();
            const Parts<Traits> parts(params, layout.part(shared, tiles - 1), warpgroup);
            if constexpr (Traits::packs_rows()) {
                // Each warp for itself: the first ones often have all rows.
                // Zeros, too: whoever adds up does not look for parts without keys.
                if (OutputRows<Traits>(params, tile(), warpgroup).has_rows() && has_rows)
                    parts.leave(output, state, true);
                // Nobody reads queries before the warpgroup loads those of another tile.
                static_assert(JointSum<Traits>::SUM_BYTES <= Traits::QUERY_BYTES, "sums fit where the queries were");
                float4* const buffer = reinterpret_cast<float4*>(shared + (layout.queries(warpgroup, 0) - layout.base));
                const JointSum<Traits> sum(params, parts, layout.part(shared, tiles - 1), tile(), warpgroup, buffer);
                sum.run(layout.arrived(shared, warpgroup), has_rows);
                forget_scores();
                clear_output();
                return;
            }
            if (has_rows)
                parts.leave(output, state, has_output);
            warpgroup_sync(); // all of it is written
            unsigned& arrived = layout.arrived(shared, warpgroup);
            if (thread_index() % WARPGROUP_THREADS == 0)
                arrived = parts.arrive();
            warpgroup_sync();
            if (uniform(parts.is_last(arrived)) && has_rows) {
                parts.add_up(output, state);
                const OutputRows<Traits> rows(params, tile(), warpgroup);
                float inverse[ROWS_PER_THREAD], lse[ROWS_PER_THREAD];
                state.finish(inverse, lse, params, tile());
                rows.write_lse(lse);
                rows.write(output, inverse);
            }
            clear_output();
        }
    }

    // They need no registers until the next ones are computed.
    __device__ void forget_scores()
    {
#pragma unroll
        for (int i = 0; i < Traits::BLOCK_N / 2; i++)
            scores[i] = 0;
#pragma unroll
        for (int i = 0; i < Traits::BLOCK_N / 4; i++)
            weights[i] = 0;
    }

    // Returns true if other rows may follow a sequence's last row of k and v. In pages that is always possible.
    __device__ bool keys_are_followed() const
    {
        if constexpr (Traits::SERVING)
            if (params.pages.table)
                return true;
        return warptile::keys_are_followed(params.sequences);
    }

    // Returns true if `block` has rows of k and v that may be another sequence's.
    __device__ bool has_others_keys() const { return keys_are_followed() && is_partial(); }
    __device__ bool is_partial() const { return (block + 1) * Traits::BLOCK_N > tile().key_len; }

    // Keys and values that other warpgroups' rows see.
    __device__ void pass_blocks(int blocks)
    {
        for (; blocks > 0; blocks--) {
            wait_for_keys();
            release_keys();
            wait_for_values();
            release_values();
        }
    }

    // The next tile's first product is in flight behind the finished tile's last.
    __device__ void write_output(const OutputRows<Traits>& rows, const float (&inverse)[ROWS_PER_THREAD])
    {
        wgmma_wait<1>();
        pin(output);
        pin(weights);
        release_values();
        if constexpr (Traits::OUTPUT_THROUGH_QUERIES || Traits::OUTPUT_BUFFER) {
            if constexpr (Traits::OUTPUT_THROUGH_QUERIES) warpgroup_sync(); // no warp multiplies its queries any more
            rows.write_through(output_buffer(), out_map, layout.tile(shared, tiles - 2), output, inverse);
        } else
            rows.write(output, inverse);
        clear_output();
    }

    // Which of two buffers the finished tile's queries have, one tile before the one in hand.
    __device__ int finished_stage() const { return tiles % 2; }

    __device__ unsigned char* output_buffer() const
    {
        if constexpr (Traits::OUTPUT_BUFFER) return shared + SharedLayout<Traits>::OUTPUT_AT + warpgroup * Traits::STAGED_BYTES;
        return shared + (layout.queries(warpgroup, finished_stage()) - layout.base);
    }

    // The finished tile's queries' buffer, once the copy engine has read the output out of it.
    __device__ void release_output() const
    {
        if constexpr (Traits::OUTPUT_THROUGH_QUERIES)
            if (threadIdx.x % 32 == 0) {
                wait_for_store_reads<0>();
                barrier_arrive(layout.queries_empty(warpgroup, finished_stage()));
            }
    }

    // Where the tile in hand begins and ends; false if there is nothing to compute in it. `of_before`: blocks that come after the
    // warpgroup's last one of the tile before, where no register keeps them.
    __device__ bool start_tile(int of_before = 0)
    {
        if constexpr (lists_blocks<Traits>()) {
            const int first_row = tile().first_query + warpgroup * queries();
            this->start(Mask(params.scoring, tile().query_len, tile().key_len), first_row, keys_are_followed());
            hidden = uniform(tile().first_block); // 0, which the compiler is not to know: without loops over hidden blocks it keeps
            left_behind = 0;                      // ring stages and descriptors in ordinary registers
            return !uniform(tile().is_empty());
        }
        const int first_block = uniform(tile().first_block);
        const int end_block = uniform(tile().end_block);

        const Mask mask(params.scoring, tile().query_len, tile().key_len);
        int first_row = tile().first_query + warpgroup * queries(), packed_queries = 0;
        if constexpr (Traits::packs_rows()) {
            const QueryRange range = queries_of_rows<Traits>(params, first_row, queries());
            first_row = range.first;
            packed_queries = range.count;
        }
        const auto seeing = [&] { return Traits::packs_rows() ? packed_queries : queries(); };
        const int seen_blocks = (mask.end_key(first_row, seeing()) + Traits::BLOCK_N - 1) / Traits::BLOCK_N;
        block = uniform(min(end_block, max(seen_blocks, first_block + 1))) - 1;
        last_block = uniform(min(block, max(first_block, mask.first_key(first_row) / Traits::BLOCK_N)));

        // A plain step's scores need no mask, and the values of the step before have all their rows.
        const int common_end = mask.end_key(first_row, 1); // keys from here on are hidden from some row
        plain_top = common_end / Traits::BLOCK_N;
        if (has_others_keys())
            plain_top = min(plain_top, block - 1);
        const int common_begin = first_row + seeing() - 1 + mask.shift - mask.left;
        plain_floor = max(last_block, (common_begin + Traits::BLOCK_N - 1) / Traits::BLOCK_N);
        plain_top = uniform(plain_top);
        plain_floor = uniform(plain_floor);
        if constexpr (Traits::has_alibi()) this->begin(params.scoring, tile(), first_row, plain_top, plain_floor);
        if constexpr (drops<Traits>()) this->DroppedWeights<Traits>::begin(tile(), first_row);
        if constexpr (Traits::has_fast_cap()) scale.begin_tile(params.scoring);

        const bool more = first_block < end_block && uniform(has_rows());
        hidden = (Traits::has_score_boxes() ? of_before : left_behind) + (more ? end_block - 1 - block : 0);
        left_behind = Traits::has_score_boxes() ? 0 : more ? last_block - first_block : 0;
        if constexpr (Traits::packs_rows())
            if (more) {
                const unsigned queries = layout.queries(warpgroup, queries_at.stage);
                load_packed_queries<Traits>(params, tile(), queries);
                fence_shared_for_async();
                warpgroup_sync();
            }
        return more;
    }

    // Those of the first block that the warpgroup's rows see.
    __device__ void wait_for_first_keys()
    {
        for (int blocks = hidden; blocks > 0; blocks--) {
            wait_for_keys();
            release_keys();
        }
        wait_for_keys();
        if constexpr (lists_blocks<Traits>()) {
            this->look(layout.listed(shared, keys_at.stage), warpgroup);
            this->move_on();
        }
    }

    // The weights of a tile's first block, whose scores are in flight.
    __device__ void take_first_scores()
    {
        ask_for_terms();
        wgmma_wait<0>();
        pin(scores);
        hide_keys();
        release_keys();
        if (is_last_block())
            leave_queries();
        state.reset();
        give_up_rows();
        soften();
        state.forget_rescale(); // the output is 0
        convert();

        for (int blocks = hidden; blocks > 0; blocks--) {
            wait_for_values();
            release_values();
        }
        keys_ready = barrier_test(layout.keys_full(keys_at.stage), keys_at.parity);
        values_ready = barrier_test(layout.values_full(values_at.stage), values_at.parity);
    }

    // Rows behind the sequence's last one may be others', whose scores must not make the warp compute blocks again.
    __device__ void give_up_rows()
    {
        const int rows = rows_of_queries<Traits>(params, tile().query_len) - tile().first_query - warpgroup * queries();
        if (rows < queries())
#pragma unroll
            for (int row = 0; row < ROWS_PER_THREAD; row++)
                if (((lane_row() + 8 * row) & (queries() - 1)) >= rows)
                    state.give_up(row);
    }

    // The scores of `block`, and the output of the one before it. A PLAIN step needs nothing special: no key is masked, and there
    // are no values to clear.
    template <bool PLAIN> __device__ void step()
    {
        if (!keys_ready)
            wait_for_keys();
        if constexpr (lists_blocks<Traits>()) this->move_on();
        issue_scores<PLAIN>();
        prepare_output<PLAIN>(block + 1);
        issue_output();
        ask_for_terms();
        bool plain = PLAIN;
        if constexpr (Traits::has_plain_terms() || Traits::has_score_boxes()) plain = may_be_plain();
        [[maybe_unused]] const auto bias = box_here(); // before the wait, which has room for it

        wgmma_wait<1>();
        pin(scores);
        if constexpr (PLAIN || Traits::has_plain_terms() || Traits::has_score_boxes()) {
            if constexpr (PLAIN)
                soften_plain();
            else if constexpr (Traits::has_score_boxes())
                soften_boxed(bias, plain);
            else
                soften_with_terms(plain);
            if constexpr (Traits::has_score_boxes()) __syncwarp(); // as in `compute_tiles`
            release_keys();
            if (is_last_block())
                leave_queries();
        } else {
            hide_keys();
            release_keys();
            if (is_last_block())
                leave_queries();
            soften();
            state.keep_before_here();
        }

        // Asked early, so that the answers are there when the next step begins.
        keys_ready = barrier_test(layout.keys_full(keys_at.stage), keys_at.parity);
        wgmma_wait<0>();
        pin(output);
        pin(weights);
        release_values();
        values_ready = barrier_test(layout.values_full(values_at.stage), values_at.parity);
        convert();
    }

    __device__ void issue_last_output()
    {
        if constexpr (lists_blocks<Traits>()) this->keep_last();
        prepare_output<false>(block);
        issue_output();
    }

    // Before the product of the waiting weights with the values of `values_block`.
    template <bool PLAIN> __device__ void prepare_output(int values_block)
    {
        drop(values_block);
        if (state.must_rescale())
            rescale();
        if (!values_ready)
            wait_for_values();
        if constexpr (PLAIN) return;
        if constexpr (lists_blocks<Traits>()) {
            if (!this->was_whole)
#pragma unroll
                for (int unit = 0; unit < ListedSteps<Traits>::UNITS; unit++)
                    clear_values_behind<LISTED_BOX_ROWS>(uniform(tile().key_len - this->before[unit]), unit);
        } else if (keys_are_followed())
            clear_values_behind(tile().key_len - values_block * Traits::BLOCK_N);
    }

    // scores = queries keys^T. Of a PLAIN step the product also hides keys, if some are.
    template <bool PLAIN = false> __device__ void issue_scores()
    {
        constexpr int STEPS_PER_SLAB = SLAB_COLUMNS / MMA_K;
        const auto queries = matrix_descriptor(layout.queries(warpgroup, queries_at.stage), 0);
        const auto keys = matrix_descriptor(layout.keys(keys_at.stage), 0);
        constexpr bool HIDES = PLAIN && Traits::hides_keys();
        unsigned some_hidden = 0;
        if constexpr (HIDES) // the first lane's is enough
            if (threadIdx.x % 32 == 0) some_hidden = HiddenLayout<Traits>::keys(shared, keys_at.stage).some;
        pin(scores);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < Traits::HEAD_DIM / MMA_K; step++) {
            const int slab = step / STEPS_PER_SLAB;
            const int column_bytes = step % STEPS_PER_SLAB * MMA_K * (int)sizeof(Element);
            Wgmma<Traits::BLOCK_N>::template shared<Element>(
                scores, advance_descriptor(queries, slab * Traits::QUERY_SLAB_BYTES + column_bytes),
                advance_descriptor(keys, slab * Traits::KEY_SLAB_BYTES + column_bytes), step > 0);
        }
        if constexpr (HIDES) {
            using Hidden = HiddenLayout<Traits>;
            // The fences are those that ptxas would put around a branch, and remark on.
            if (__any_sync(0xffffffff, some_hidden)) {
                wgmma_fence();
                hide_columns<Traits::BLOCK_N>(scores, layout.base + Hidden::left_at() + keys_at.stage * HIDING_LEFT_BYTES,
                                              layout.base + Hidden::right_at());
            }
            wgmma_fence();
        }
        wgmma_commit();
    }

    // The keys of a block whose product has not hidden them. In a product without another one under way ptxas would not keep stages and
    // descriptors in uniform registers.
    __device__ void hide_keys()
    {
        if constexpr (Traits::hides_keys()) hide_in_registers<Traits>(scores, HiddenLayout<Traits>::keys(shared, keys_at.stage));
        if constexpr (Traits::has_score_boxes()) box_here().add(scores, scale.unit());
    }

    // The bias of the block that the keys in hand are of, or nothing.
    __device__ auto box_here() const
    {
        if constexpr (Traits::has_score_boxes())
            return BoxHere<Traits>(layout.box(warpgroup, keys_at.stage));
        else
            return 0;
    }

    // Scores with a bias -> weights. As a plain block where the mask hides nothing, unless rows have seen no key yet, or have coarse
    // offsets: they take their maxima at once.
    __device__ void soften_boxed(const BoxHere<Traits>& bias, bool plain)
    {
        if (plain) {
            float sums[ROWS_PER_THREAD] = {};
            if (__builtin_expect(state.update_boxed(scores, scale, bias, sums), true) || state.lower(scores, sums)) return;
            multiply_again();
        }
        bias.add(scores, scale.unit());
        apply_mask<Traits>(scores, params, tile(), warpgroup, block);
        state.update(scores, scale);
        state.keep_before_here();
    }

    // output += weights values
    __device__ void issue_output()
    {
        const auto values = matrix_descriptor(layout.values(values_at.stage), Traits::KEY_SLAB_BYTES);
        pin(output);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < Traits::BLOCK_N / MMA_K; step++)
            Wgmma<Traits::VALUE_DIM>::template from_registers<Element>(
                output, weights + 4 * step, advance_descriptor(values, step * MMA_K * SWIZZLE_BYTES), true);
        wgmma_commit();
    }

    // Scores -> weights in fp32: options of single scores, other terms, mask, online softmax.
    __device__ void soften()
    {
        scale.bend_block(scores, {state.is_given_up(0), state.is_given_up(1)}, is_partial());
        if constexpr (Traits::has_alibi()) this->Distances<Traits>::add(scores, block * Traits::BLOCK_N, scale.unit());
        if constexpr (Traits::has_fast_terms()) {
            float of_rows[ROWS_PER_THREAD];
            this->add(scores, params.scoring, false, of_rows);
        } else if constexpr (Traits::has_tensors())
            this->add(scores, params.scoring, tile(), tile().first_query + warpgroup * queries(), block * Traits::BLOCK_N, scale.unit());
        if constexpr (lists_blocks<Traits>())
            this->hide(scores, params, tile(), tile().first_query + warpgroup * queries());
        else
            apply_mask<Traits>(scores, params, tile(), warpgroup, block);
        state.update(scores, scale);
        if constexpr (Traits::has_fast_cap()) state.choose_bending(scale, tile().key_len);
    }

    // The same of a block in which nothing is hidden. It may need the queries and keys once more.
    __device__ void soften_plain()
    {
        float sums[ROWS_PER_THREAD] = {};
        if constexpr (Traits::has_fast_cap()) {
            if (__builtin_expect(state.update_bent(scores, scale, sums), true))
                return;
        } else if constexpr (Traits::has_alibi()) {
            float added[ROWS_PER_THREAD];
            const float per_key = this->linear(block, state.offset, added);
            if (__builtin_expect(state.update_linear(scores, scale, added, per_key, sums), true))
                return;
        } else {
            scale.bend(scores);
            if (__builtin_expect(state.update_plain(scores, scale, state.offset, sums), true))
                return;
        }
        if constexpr (Traits::has_fast_cap()) {
            if (state.lower_bent(scores, scale, sums)) return state.choose_bending(scale, tile().key_len);
        } else if (state.lower(scores, sums))
            return;
        using Again = ScoresAgain<Traits>;
        const Again again(layout.queries(warpgroup, queries_at.stage), layout.keys(keys_at.stage));
        state.template update_again<Again::COUNT>(scores, scale, [&](int first_key, float(&part)[Again::COUNT]) {
            again.multiply(first_key, part);
            scale.bend(part);
            if constexpr (Traits::hides_keys())
                hide_in_registers<Traits>(part, HiddenLayout<Traits>::keys(shared, keys_at.stage), first_key);
            if constexpr (Traits::has_alibi()) this->Distances<Traits>::add(part, block * Traits::BLOCK_N + first_key, scale.unit());
        });
        if constexpr (Traits::has_fast_cap()) state.choose_bending(scale, tile().key_len);
    }

    // Scores with terms -> weights. A `plain` block takes no maxima at first. If weights are too large and can't be lowered, the scores are
    // computed again, and all that follows is done once more, with maxima. The terms are still in registers.
    __device__ void soften_with_terms(bool plain)
    {
        while (true) {
            scale.bend(scores);
            float of_rows[ROWS_PER_THREAD], added[ROWS_PER_THREAD];
            this->add(scores, params.scoring, plain, of_rows);
            if (!plain)
                break;
#pragma unroll
            for (int row = 0; row < ROWS_PER_THREAD; row++)
                added[row] = of_rows[row] * scale.scale_log2 + state.offset[row];
            float sums[ROWS_PER_THREAD] = {};
            if (__builtin_expect(state.update_plain(scores, scale, added, sums), true) || state.lower(scores, sums)) return;
            multiply_again();
            plain = false;
        }
        apply_mask<Traits>(scores, params, tile(), warpgroup, block);
        state.update(scores, scale);
        state.keep_before_here();
    }

    // Returns true if `block` needs no maxima at first: its range of keys hides nothing, and its distances are linear.
    __device__ bool may_be_plain() const
    {
        const Mask mask(params.scoring, tile().query_len, tile().key_len);
        return state.has_maxima && is_linear() &&
               !mask.hides_part_of(tile().first_query + warpgroup * queries(), queries(), block * Traits::BLOCK_N, Traits::BLOCK_N);
    }

    __device__ bool is_linear() const
    {
        if constexpr (Traits::has_score_boxes())
            return true;
        else
            return this->ScoreTerms<Traits>::is_linear(params.scoring);
    }

    // The scores of `block` once more.
    __device__ void multiply_again()
    {
        using Again = ScoresAgain<Traits>;
        const Again again(layout.queries(warpgroup, queries_at.stage), layout.keys(keys_at.stage));
#pragma unroll
        for (int begin = 0; begin < Traits::BLOCK_N / 2; begin += Again::COUNT)
            again.multiply(begin * 2, reinterpret_cast<float(&)[Again::COUNT]>(scores[begin]));
    }

    // Those of `block`.
    __device__ void ask_for_terms()
    {
        if constexpr (Traits::has_fast_terms())
            this->ask(params.scoring, tile(), tile().first_query + warpgroup * queries(), block * Traits::BLOCK_N, scale.unit());
        else if constexpr (Traits::has_tensors())
            this->ask(params.scoring, tile(), tile().first_query + warpgroup * queries(), block * Traits::BLOCK_N);
    }

    __device__ void convert()
    {
#pragma unroll
        for (int i = 0; i < Traits::BLOCK_N / 4; i++)
            weights[i] = pack<Element>(scores[2 * i], scores[2 * i + 1]);
    }

    // Some of the waiting weights, which are those of `of_block`: under the product of the next scores.
    __device__ void drop(int of_block)
    {
        if constexpr (drops<Traits>())
            this->drop_of(weights, of_block * Traits::BLOCK_N);
    }

    __device__ void clear_output()
    {
#pragma unroll
        for (int i = 0; i < Traits::VALUE_DIM / 2; i++)
            output[i] = 0;
    }

    __device__ void rescale()
    {
#pragma unroll
        for (int i = 0; i < Traits::VALUE_DIM / 2; i++)
            output[i] *= state.rescale[i % 4 / 2];
    }

    __device__ void wait_for_keys() const { barrier_wait(layout.keys_full(keys_at.stage), keys_at.parity); }
    __device__ void wait_for_values() const { barrier_wait(layout.values_full(values_at.stage), values_at.parity); }

    // Clears rows past a sequence's end, which may hold another sequence's values or stale data: their weight is 0, but 0 * NaN is NaN.
    // Every warpgroup clears them itself, so that none reads them before they are cleared.
    // Of a listed block, a unit of ROWS rows has `rows`.
    template <int ROWS = Traits::BLOCK_N> __device__ void clear_values_behind(int rows, int unit = 0) const
    {
        if (rows >= ROWS) return;
        constexpr int CHUNKS_PER_ROW = SWIZZLE_BYTES / 16;
        unsigned char* const values = shared + (layout.values(values_at.stage) - layout.base) + unit * ROWS * SWIZZLE_BYTES;
        for (int slab = 0; slab < Traits::VALUE_SLABS; slab++)
            for (int i = rows * CHUNKS_PER_ROW + thread_index() % WARPGROUP_THREADS; i < ROWS * CHUNKS_PER_ROW; i += WARPGROUP_THREADS)
                reinterpret_cast<uint4*>(values + slab * Traits::KEY_SLAB_BYTES)[i] = {0, 0, 0, 0};
        fence_shared_for_async();
        warpgroup_sync();
    }

    __device__ void warpgroup_sync() const { named_barrier_wait(1 + warpgroup, WARPGROUP_THREADS); } // 0 is __syncthreads

    // Every warp releases for itself: wgmma_wait says nothing about the other warps of the warpgroup.
    __device__ static void release(unsigned barrier)
    {
        if (threadIdx.x % 32 == 0)
            barrier_arrive(barrier);
    }
    // A block of keys or values: in pairs both CTAs wait for the readers of both.
    __device__ static void release_block(unsigned barrier)
    {
        if constexpr (Traits::PAIRS)
            barrier_arrive_in_pair(barrier);
        else
            release(barrier);
    }
    __device__ void release_keys()
    {
        release_block(layout.keys_empty(keys_at.stage));
        keys_at.advance();
    }
    __device__ void release_values()
    {
        release_block(layout.values_empty(values_at.stage));
        values_at.advance();
    }
    // The tile has its last scores; the buffer is released once its output has left through it.
    __device__ void leave_queries()
    {
        if constexpr (Traits::OUTPUT_THROUGH_QUERIES)
            queries_at.advance();
        else
            release_queries();
    }
    __device__ void release_queries()
    {
        release(layout.queries_empty(warpgroup, queries_at.stage));
        queries_at.advance();
    }

    const Forward& params;
    const TensorMap& out_map;
    unsigned char* shared;
    SharedLayout<Traits> layout;
    int warpgroup;
    ScoreScale<Traits> scale;

    float scores[Traits::BLOCK_N / 2];     // of `block`, then its weights in fp32
    unsigned weights[Traits::BLOCK_N / 4]; // packed, waiting for their product
    float output[Traits::VALUE_DIM / 2];
    RowState<Traits> state;
    bool keys_ready;   // the next block is known to be in shared memory
    bool values_ready;

    unsigned tiles = 0; // received so far, the end included
    int block;          // of keys, counting down in a tile
    int last_block;  // that the warpgroup sees; the tile's may be lower, and those are passed over after the tile
    int hidden;      // blocks to pass over before the tile's first: of the tile before it, and of this one
    int left_behind = 0; // blocks of the tile that come after the warpgroup's last
    int plain_top;   // steps from blocks up to here...
    int plain_floor; // ... to blocks from here on are plain
    RingPosition<Traits::RING_STAGES> keys_at;
    RingPosition<Traits::RING_STAGES> values_at;
    RingPosition<Traits::QUERY_STAGES> queries_at;
};

} // namespace warptile
