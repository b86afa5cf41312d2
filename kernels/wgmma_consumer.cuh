// A computing warpgroup: 64 query rows of every tile. The next block's scores are multiplied while this block's weights
// wait for their product with the values, and the softmax runs under both:
//
//     scores(0); softmax(0)
//     for each block:  issue scores(next);  issue output += weights(this) values(this);  softmax(next)
//
// "Next" runs on into the next tile, so the tensor cores see no end of a tile. The warpgroups of a CTA are not synchronized
// with each other: while one waits for its products or computes its softmax, the others keep the tensor cores busy.
#pragma once

#include "wgmma_epilogue.cuh"

namespace warptile {

template <class Traits> class Consumer {
  public:
    using Element = typename Traits::Element;

    __device__ Consumer(const WgmmaParams& params, unsigned char* shared, SharedLayout<Traits> layout, int warpgroup)
        : params(params.attention), shared(shared), layout(layout), warpgroup(warpgroup), scale(params.attention)
    {
    }

    __device__ void run()
    {
#pragma unroll
        for (int i = 0; i < Traits::HEAD_DIM / 2; i++)
            output[i] = 0; // never used, but wgmma reads it formally
        receive_tile();
        while (!uniform(tile().is_end())) {
            if (uniform(tile().is_empty())) {
                write_empty_tile();
                release_queries();
                receive_tile();
            } else
                compute_tiles();
        }
    }

  private:
    // The tile in hand and all that follow it, up to one without keys or the end; that one is then in hand.
    __device__ void compute_tiles()
    {
        start_tile();
        first_scores();
        for (;;) {
            if (add_output && block * Traits::BLOCK_N <= common_end)
                while (block > plain_floor) {
                    block--;
                    step<true>(0);
                }

            const int keys_left = tile().key_len - block * Traits::BLOCK_N;
            const bool last = block == last_block;
            float inverse[ROWS_PER_THREAD] = {};
            if (last) {
                finish_rows(inverse);
                receive_tile();
                if (uniform(tile().is_end() || tile().is_empty())) {
                    finish_output(keys_left);
                    write_finished_tile(inverse);
                    return;
                }
                start_tile();
            } else
                block--;
            step<false>(keys_left);
            add_output = !last;
            if (last)
                write_finished_tile(inverse);
            // Without this the compiler is not sure that the warp is together again, and computes ring stages and
            // descriptors in ordinary registers: twice the instructions around each product.
            __syncwarp();
        }
    }

    __device__ const Tile& tile() const { return layout.tile(shared, tiles - 1); }

    __device__ void receive_tile()
    {
        barrier_wait(layout.queries_full(warpgroup, queries_at.stage), queries_at.parity);
        tiles++;
    }

    __device__ void write_empty_tile() const
    {
        const OutputRows<Traits> rows(params, tile(), warpgroup);
        rows.write_zeros(params);
        rows.write_lse({negative_infinity(), negative_infinity()});
    }

    // Of the tile before the one in hand.
    __device__ void write_finished_tile(const float (&inverse)[ROWS_PER_THREAD]) const
    {
        OutputRows<Traits>(params, layout.tile(shared, tiles - 2), warpgroup).write(params, output, inverse);
    }

    __device__ void start_tile()
    {
        block = uniform(tile().end_block) - 1;
        last_block = uniform(tile().first_block);

        const Mask mask(params, tile().query_len, tile().key_len);
        const int first_row = tile().first_query + warpgroup * MMA_ROWS;
        common_end = uniform(mask.end_key(first_row, 1));
        const int common_begin = uniform(first_row + MMA_ROWS - 1 + mask.shift - mask.left);
        const int first_common_block = (common_begin + Traits::BLOCK_N - 1) / Traits::BLOCK_N;
        plain_floor = Traits::SOFTCAP && scale.has_softcap() ? block : max(last_block, first_common_block);
        state.reset();
    }

    // The scores of the first block of all, with nothing to overlap.
    __device__ void first_scores()
    {
        wait_for_keys();
        issue_scores();
        wgmma_wait<0>();
        pin(scores);
        release_keys();
        if (block == last_block)
            release_queries();
        soften<false>();
        convert();
        add_output = false;
    }

    // The scores of `block`, and the output of the one before it. A PLAIN step needs nothing special: both blocks belong to
    // one tile, no key is masked, no softcap, and the output adds to what is there. `keys_left` are the sequence's keys
    // from the first of the block before on.
    template <bool PLAIN> __device__ void step(int keys_left)
    {
        if (!(PLAIN && keys_ready))
            wait_for_keys();
        issue_scores();
        if ((PLAIN || add_output) && state.must_rescale)
            rescale();
        if (!(PLAIN && values_ready))
            wait_for_values();
        if constexpr (!PLAIN)
            clear_values_behind(keys_left);
        issue_output(PLAIN || add_output);

        wgmma_wait<1>();
        pin(scores);
        release_keys();
        if (block == last_block)
            release_queries();
        soften<PLAIN>();
        state.keep_before_here();

        // Asked early, so that the answers are there when the next step begins.
        keys_ready = barrier_test(layout.keys_full(keys_at.stage), keys_at.parity);
        wgmma_wait<0>();
        pin(output);
        pin(weights);
        release_values();
        values_ready = barrier_test(layout.values_full(values_at.stage), values_at.parity);
        convert();
    }

    __device__ void finish_rows(float (&inverse)[ROWS_PER_THREAD]) const
    {
        float lse[ROWS_PER_THREAD];
        state.finish(inverse, lse, scale);
        OutputRows<Traits>(params, tile(), warpgroup).write_lse(lse);
    }

    // The last product before a tile without keys or the end, with nothing to overlap.
    __device__ void finish_output(int keys_left)
    {
        wait_for_values();
        clear_values_behind(keys_left);
        if (add_output && state.must_rescale)
            rescale();
        issue_output(add_output);
        wgmma_wait<0>();
        pin(output);
        release_values();
    }

    // scores = queries keys^T
    __device__ void issue_scores()
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
    __device__ void issue_output(bool add)
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
    template <bool PLAIN> __device__ void soften()
    {
        if constexpr (!PLAIN) {
            if (Traits::SOFTCAP && scale.has_softcap())
                scale.cap(scores);
            apply_mask<Traits>(scores, params, tile(), warpgroup, block);
        }
        state.update(scores, scale);
    }

    __device__ void convert()
    {
#pragma unroll
        for (int i = 0; i < Traits::BLOCK_N / 4; i++)
            weights[i] = pack<Element>(scores[2 * i], scores[2 * i + 1]);
    }

    __device__ void rescale()
    {
#pragma unroll
        for (int i = 0; i < Traits::HEAD_DIM / 2; i++)
            output[i] *= state.rescale[i % 4 / 2];
    }

    __device__ void wait_for_keys() const { barrier_wait(layout.keys_full(keys_at.stage), keys_at.parity); }
    __device__ void wait_for_values() const { barrier_wait(layout.values_full(values_at.stage), values_at.parity); }

    // In a packed tensor the rows past a sequence's end are another sequence's, or nobody's: their weight is 0, but
    // 0 * NaN is NaN. Every warpgroup clears them for itself, so none reads before it has cleared.
    __device__ void clear_values_behind(int rows) const
    {
        if (!params.cu_seqlens_k || rows >= Traits::BLOCK_N)
            return;
        constexpr int CHUNKS_PER_ROW = SWIZZLE_BYTES / 16;
        unsigned char* values = shared + (layout.values(values_at.stage) - layout.base);
        for (int slab = 0; slab < Traits::SLABS; slab++)
            for (int i = rows * CHUNKS_PER_ROW + thread_index() % WARPGROUP_THREADS; i < Traits::BLOCK_N * CHUNKS_PER_ROW;
                 i += WARPGROUP_THREADS)
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

    static constexpr int CLEAR_BARRIER = 1; // hardware barriers, one a warpgroup; 0 is __syncthreads

    const AttentionParams& params;
    unsigned char* shared;
    SharedLayout<Traits> layout;
    int warpgroup;
    ScoreScale scale;

    float scores[Traits::BLOCK_N / 2];     // of `block`, then its weights in fp32
    unsigned weights[Traits::BLOCK_N / 4]; // packed, waiting for their product
    float output[Traits::HEAD_DIM / 2];
    RowState<Traits> state;
    bool keys_ready = false; // the next block is known to be in shared memory
    bool values_ready = false;
    bool add_output; // whether the waiting weights add to `output` or are the tile's first

    unsigned tiles = 0; // received so far, the end included
    int block;          // of keys, counting down in a tile
    int last_block;
    int plain_floor; // steps to blocks from here on that end by `common_end` are plain
    int common_end;  // keys from here on are hidden from some row of the warpgroup
    RingPosition<Traits::STAGES> keys_at;
    RingPosition<Traits::STAGES> values_at;
    RingPosition<Traits::QUERY_STAGES> queries_at;
};

} // namespace warptile
