// A computing warpgroup: 64 query rows of every tile. The next block's scores are multiplied while this block's weights
// wait for their product with the values, and the softmax runs under both:
//
//     scores(0); softmax(0)
//     for each block:  issue scores(next);  issue output += weights(this) values(this);  softmax(next)
//
// "Next" runs on into the next tile, so the tensor cores see no end of a tile. Warpgroups take turns at issuing: while one
// has its products in the tensor cores the other has its softmax.
#pragma once

#include "wgmma_epilogue.cuh"

namespace warptile {

template <class Traits> class Consumer {
  public:
    using Element = typename Traits::Element;
    using Scores = float[Traits::BLOCK_N / 2];
    using Weights = unsigned[Traits::BLOCK_N / 4];
    using Output = float[Traits::HEAD_DIM / 2];

    __device__ Consumer(const WgmmaParams& params, unsigned char* shared, SharedLayout<Traits> layout, int warpgroup)
        : params(params), shared(shared), layout(layout), warpgroup(warpgroup), scale(params.attention)
    {
    }

    __device__ void run()
    {
        if (!next_tile())
            return;

        Scores scores;
        Weights weights;
        Output output;
#pragma unroll
        for (int i = 0; i < Traits::HEAD_DIM / 2; i++)
            output[i] = 0;
        RowState<Traits> state;
        state.reset();
        TileMask<Traits> mask(params.attention, tile(), warpgroup);
        int block = tile().end_block - 1;
        int last_block = tile().first_block;
        OutputRows<Traits> output_rows(params.attention, tile(), warpgroup); // of the tile before, once there is one
        bool first = true; // `block` is the first of its tile

        if (warpgroup == Traits::CONSUMERS - 1)
            pass_turn();
        wait_for_keys();
        issue_scores(scores);
        wgmma_wait<0>();
        pin(scores);
        release_keys();
        if (block == last_block)
            release_queries();
        soften(scores, state, mask, block);
        convert(scores, weights);

        for (;;) {
            const bool last = block == last_block; // `block` is the last of its tile
            const int rows = tile().key_len - block * Traits::BLOCK_N;
            float inverse[ROWS_PER_THREAD];
            if (last) {
                finish_rows(state, inverse);
                const OutputRows<Traits> finished(params.attention, tile(), warpgroup);
                if (!next_tile()) {
                    finish_output(output, weights, state, rows, !first, inverse, finished);
                    break;
                }
                output_rows = finished;
                mask = TileMask<Traits>(params.attention, tile(), warpgroup);
                state.reset();
                block = tile().end_block;
                last_block = tile().first_block;
            }
            block--;

            wait_for_keys();
            await_turn();
            issue_scores(scores);
            if (!first && state.must_rescale)
                rescale(output, state);
            wait_for_values(rows);
            issue_output(output, weights, !first);
            pass_turn();

            wgmma_wait<1>();
            pin(scores);
            release_keys();
            if (block == last_block)
                release_queries();
            soften(scores, state, mask, block);
            state.keep_before_here();

            wgmma_wait<0>();
            pin(output);
            pin(weights);
            release_values();
            convert(scores, weights);
            if (last)
                output_rows.write(params.attention, output, inverse);
            first = last;
        }
        if (warpgroup == 0)
            await_turn(); // takes the last turn that was passed
    }

  private:
    __device__ const Tile& tile() const { return layout.tile(shared, tiles - 1); }

    // Moves on to the next tile with any keys; the empty ones before it are written here. False after the last one.
    __device__ bool next_tile()
    {
        for (;;) {
            barrier_wait(layout.queries_full(warpgroup, queries_at.stage), queries_at.parity);
            tiles++;
            if (tile().is_end())
                return false;
            if (!tile().is_empty())
                return true;
            OutputRows<Traits>(params.attention, tile(), warpgroup).write_zeros(params.attention);
            write_lse(params.attention, tile(), warpgroup, {negative_infinity(), negative_infinity()});
            release_queries();
        }
    }

    __device__ void finish_rows(const RowState<Traits>& state, float (&inverse)[ROWS_PER_THREAD]) const
    {
        float lse[ROWS_PER_THREAD];
        state.finish(inverse, lse, scale);
        write_lse(params.attention, tile(), warpgroup, lse);
    }

    // The last product of the launch, with nothing to overlap.
    __device__ void finish_output(Output& output, const Weights& weights, const RowState<Traits>& state, int rows, bool add,
                                  const float (&inverse)[ROWS_PER_THREAD], const OutputRows<Traits>& rows_to_write)
    {
        if (add && state.must_rescale)
            rescale(output, state);
        wait_for_values(rows);
        issue_output(output, weights, add);
        wgmma_wait<0>();
        pin(output);
        rows_to_write.write(params.attention, output, inverse);
    }

    // scores = queries keys^T
    __device__ void issue_scores(Scores& scores)
    {
        constexpr int STEPS_PER_SLAB = SLAB_COLUMNS / MMA_K;
        const auto queries = matrix_descriptor(layout.queries(warpgroup, queries_at.stage), 0);
        const auto keys = matrix_descriptor(layout.keys(keys_at.stage), 0);
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
        wgmma_commit();
    }

    // output = weights values (+ output)
    __device__ void issue_output(Output& output, const Weights& weights, bool add)
    {
        const auto values = matrix_descriptor(layout.values(values_at.stage), Traits::KEY_SLAB_BYTES);
        pin(output);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < Traits::BLOCK_N / MMA_K; step++)
            Wgmma<Traits::HEAD_DIM>::template from_registers<Element>(
                output, weights + 4 * step, advance_descriptor(values, step * MMA_K * SWIZZLE_BYTES), step > 0 || add);
        wgmma_commit();
    }

    // Scores -> weights in fp32: softcap, mask, online softmax.
    __device__ void soften(Scores& scores, RowState<Traits>& state, const TileMask<Traits>& mask, int block) const
    {
        if (scale.has_softcap())
            scale.cap(scores);
        if (mask.applies_to(block))
            mask.apply(scores, params.attention, tile(), warpgroup, block);
        state.update(scores, scale);
    }

    __device__ static void convert(const Scores& scores, Weights& weights)
    {
#pragma unroll
        for (int i = 0; i < Traits::BLOCK_N / 4; i++)
            weights[i] = pack<Element>(scores[2 * i], scores[2 * i + 1]);
    }

    __device__ static void rescale(Output& output, const RowState<Traits>& state)
    {
#pragma unroll
        for (int i = 0; i < Traits::HEAD_DIM / 2; i++)
            output[i] *= state.rescale[i % 4 / 2];
    }

    __device__ void wait_for_keys() const { barrier_wait(layout.keys_full(keys_at.stage), keys_at.parity); }

    // `rows` of the block are the sequence's own; may be more than there are.
    __device__ void wait_for_values(int rows) const
    {
        barrier_wait(layout.values_full(values_at.stage), values_at.parity);
        if (params.attention.cu_seqlens_k && rows < Traits::BLOCK_N)
            clear_values(rows);
    }

    // In a packed tensor the rows past a sequence's end are another sequence's, or nobody's: their weight is 0, but
    // 0 * NaN is NaN. Every warpgroup clears them for itself, so none reads before it has cleared.
    __device__ void clear_values(int first_row) const
    {
        constexpr int CHUNKS_PER_ROW = SWIZZLE_BYTES / 16;
        unsigned char* values = shared + (layout.values(values_at.stage) - layout.base);
        for (int slab = 0; slab < Traits::SLABS; slab++)
            for (int i = first_row * CHUNKS_PER_ROW + threadIdx.x % WARPGROUP_THREADS;
                 i < Traits::BLOCK_N * CHUNKS_PER_ROW; i += WARPGROUP_THREADS)
                reinterpret_cast<uint4*>(values + slab * Traits::KEY_SLAB_BYTES)[i] = {0, 0, 0, 0};
        fence_shared_for_async_reads();
        named_barrier_wait(CLEAR_BARRIER + warpgroup, WARPGROUP_THREADS);
    }

    // Every warp releases for itself: wgmma_wait says nothing about the other warps of the warpgroup.
    __device__ static void release(unsigned barrier)
    {
        if (threadIdx.x % 32 == 0)
            barrier_arrive(barrier);
    }
    __device__ void release_keys()
    {
        release(layout.keys_empty(keys_at.stage));
        keys_at.advance();
    }
    __device__ void release_values()
    {
        release(layout.values_empty(values_at.stage));
        values_at.advance();
    }
    __device__ void release_queries()
    {
        release(layout.queries_empty(warpgroup, queries_at.stage));
        queries_at.advance();
    }

    static constexpr int TURN_BARRIER = 1; // hardware barriers, one a warpgroup; 0 is __syncthreads
    static constexpr int CLEAR_BARRIER = TURN_BARRIER + Traits::CONSUMERS;

    __device__ void await_turn() const
    {
        if constexpr (Traits::TAKES_TURNS)
            named_barrier_wait(TURN_BARRIER + warpgroup, 2 * WARPGROUP_THREADS);
    }
    __device__ void pass_turn() const
    {
        if constexpr (Traits::TAKES_TURNS) {
            const int next = warpgroup + 1 == Traits::CONSUMERS ? 0 : warpgroup + 1;
            named_barrier_report(TURN_BARRIER + next, 2 * WARPGROUP_THREADS);
        }
    }

    const WgmmaParams& params;
    unsigned char* shared;
    SharedLayout<Traits> layout;
    int warpgroup;
    ScoreScale scale;
    unsigned tiles = 0; // received so far, the end included
    RingPosition<Traits::STAGES> keys_at;
    RingPosition<Traits::STAGES> values_at;
    RingPosition<Traits::QUERY_STAGES> queries_at;
};

} // namespace warptile
