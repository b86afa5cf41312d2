// Which keys a CTA reads, for kernels whose CTAs share the keys of all sequences evenly.
//
// A tile is BLOCK_M rows of one key/value head of one sequence; a row is a query with one of the heads that share the key/value
// head. The blocks of keys that a sequence's tiles see are numbered through all tiles of all sequences, and CTA c of G takes those from
// c * all / G on. So a tile is computed by neighbouring CTAs, and a CTA has at most two tiles that it shares with others: its
// first and its last. A tile without keys counts one block, so that somebody writes its zeros.
//
// Lengths on the device may change during the launch, and then CTAs disagree: about what they compute, not about what they may
// touch. Every number of a CTA or a slot below follows from the CTA's own view and lies in range.
#pragma once

#include "rule/mask.cuh"
#include "work/lengths.cuh"

namespace warptile {

// What a CTA computes of one tile.
struct Segment {
    int batch; // END after the last one
    int kv_head;
    int first_row; // of the tile, counted through the queries and heads of this key/value head
    Extent q;
    Extent k;
    int first_block; // of keys; none where first_block == end_block
    int end_block;
    int owner;  // the first CTA that has a part of the tile
    int owners; // how many have; 1: nothing to be merged
    int slot;   // of this CTA's partial result
    bool owner_has_more; // the first owner's part of this tile is its last, not its first

    static constexpr int END = -1;
    __device__ bool is_end() const { return batch == END; }
};

template <class Traits> class Share {
  public:
    __device__ explicit Share(const Forward& params) : params(params), group(params.heads / params.kv_heads) {}

    // Finds the CTA's first block. All threads call it; afterwards `next` is the first thread's alone.
    __device__ void find(unsigned* scratch)
    {
        const Sequences& sequences = params.sequences;
        unsigned all = 0;
        if (reads_lengths(sequences)) {
            for (int batch = threadIdx.x; batch < sequences.batch; batch += Traits::THREADS)
                all += Sequence(params, group, batch).blocks();
            all = sum_of_all(all, scratch);
        } else {
            all = sequences.batch * Sequence(params, group, 0).blocks();
        }
        total = all;
        ctas = min(gridDim.x, total);
        if (blockIdx.x >= ctas) {
            left = 0;
            return;
        }
        begin = first_of(blockIdx.x);
        left = first_of(blockIdx.x + 1) - begin;
        find_sequence(scratch);
    }

    // The next segment.
    __device__ Segment next()
    {
        Segment segment = {};
        segment.batch = Segment::END;
        // Ends for good if lengths have shrunk meanwhile.
        while (left > 0 && at >= sequence.blocks()) {
            if (batch + 1 >= params.sequences.batch)
                left = 0;
            else
                enter(batch + 1, base + sequence.blocks(), 0);
        }
        if (left == 0)
            return segment;
        const unsigned tile = at / sequence.tile_blocks();
        const unsigned block = at - tile * sequence.tile_blocks();
        const unsigned take = min(sequence.tile_blocks() - block, left);
        const unsigned tile_begin = base + tile * sequence.tile_blocks();
        segment.batch = batch;
        segment.kv_head = tile / sequence.row_tiles;
        segment.first_row = (tile - segment.kv_head * sequence.row_tiles) * Traits::BLOCK_M;
        segment.q = sequence.q;
        segment.k = sequence.k;
        segment.first_block = sequence.first_block + min(block, sequence.seen_blocks);
        segment.end_block = sequence.first_block + min(block + take, sequence.seen_blocks);
        segment.owner = owner_of(tile_begin);
        segment.owners = owner_of(tile_begin + sequence.tile_blocks() - 1) - segment.owner + 1;
        segment.slot = slot_of(blockIdx.x, begin < tile_begin);
        segment.owner_has_more = first_of(segment.owner) < tile_begin;
        at += take;
        left -= take;
        return segment;
    }

    // Where a CTA leaves its part of a tile that it shares: of its last tile or of its first.
    __device__ static int slot_of(unsigned cta, bool of_last) { return 2 * cta + of_last; }

  private:
    // What one sequence asks for.
    struct Sequence {
        Extent q, k;
        int first_block;
        unsigned seen_blocks; // of each tile: what any of the sequence's queries sees
        unsigned row_tiles;
        unsigned tiles;

        __device__ Sequence(const Forward& params, int group, int batch)
            : q(queries_of(params.sequences, batch)), k(keys_of(params.sequences, batch))
        {
            const Mask mask(params.scoring, q.len, k.len);
            const int end = (mask.end_key(0, q.len) + Traits::BLOCK_N - 1) / Traits::BLOCK_N;
            first_block = mask.first_key(0) / Traits::BLOCK_N;
            seen_blocks = max(end - first_block, 0);
            row_tiles = ((unsigned)q.len * group + Traits::BLOCK_M - 1) / Traits::BLOCK_M;
            tiles = row_tiles * params.kv_heads;
        }
        __device__ unsigned tile_blocks() const { return max(seen_blocks, 1u); }
        __device__ unsigned blocks() const { return tiles * tile_blocks(); }
    };

    __device__ unsigned first_of(unsigned cta) const { return (unsigned long long)cta * total / ctas; }
    __device__ int owner_of(unsigned block) const
    {
        return min((unsigned)((((unsigned long long)block + 1) * ctas - 1) / total), ctas - 1);
    }

    __device__ void enter(int batch, unsigned base, unsigned at)
    {
        this->batch = batch;
        this->base = base;
        this->at = at;
        sequence = Sequence(params, group, batch);
    }

    // The sequence that block `begin` belongs to: THREADS sequences at a time.
    __device__ void find_sequence(unsigned* scratch)
    {
        if (!reads_lengths(params.sequences)) {
            const unsigned each = sequence_blocks();
            enter(begin / each, begin / each * each, begin % each);
            return;
        }
        unsigned before = 0;
        for (int first = 0; first < params.sequences.batch; first += Traits::THREADS) {
            const int mine = first + threadIdx.x;
            const unsigned blocks = mine < params.sequences.batch ? Sequence(params, group, mine).blocks() : 0;
            const unsigned end = before + running_sum(blocks, scratch);
            // One thread at most has it.
            if (blocks > 0 && end - blocks <= begin && begin < end) {
                scratch[Traits::WARPS] = mine;
                scratch[Traits::WARPS + 1] = end - blocks;
            }
            if (threadIdx.x == 0) scratch[Traits::WARPS + 2] = 0;
            __syncthreads();
            if (threadIdx.x == Traits::THREADS - 1) scratch[Traits::WARPS + 2] = end;
            __syncthreads();
            before = scratch[Traits::WARPS + 2];
            if (begin < before)
                break;
        }
        // Garbage if lengths have shrunk between the two readings.
        const int found = min(scratch[Traits::WARPS], (unsigned)params.sequences.batch - 1);
        const unsigned found_base = min(scratch[Traits::WARPS + 1], begin);
        enter(found, found_base, begin - found_base);
    }

    __device__ unsigned sequence_blocks() const { return Sequence(params, group, 0).blocks(); }

    __device__ static unsigned warp_running_sum(unsigned x)
    {
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const unsigned other = __shfl_up_sync(0xffffffff, x, step);
            if (threadIdx.x % 32 >= step) x += other;
        }
        return x;
    }

    // Of this thread's value and those of all threads before it. `scratch` holds a word a warp.
    __device__ static unsigned running_sum(unsigned x, unsigned* scratch)
    {
        const unsigned sum = warp_running_sum(x);
        __syncthreads(); // scratch has been read
        if (threadIdx.x % 32 == 31) scratch[threadIdx.x / 32] = sum;
        __syncthreads();
        unsigned before = 0;
        for (int warp = 0; warp < threadIdx.x / 32; warp++) before += scratch[warp];
        return before + sum;
    }

    __device__ static unsigned sum_of_all(unsigned x, unsigned* scratch)
    {
        running_sum(x, scratch);
        unsigned sum = 0;
        for (int warp = 0; warp < Traits::WARPS; warp++) sum += scratch[warp];
        return sum;
    }

    const Forward& params;
    const int group; // query heads a key/value head
    unsigned total;  // blocks
    unsigned ctas;   // that have any
    unsigned begin;  // first block of this CTA
    unsigned left = 0;
    int batch = 0;
    unsigned base = 0; // first block of the sequence in hand
    unsigned at = 0;   // next block, counted from there
    Sequence sequence{params, group, 0};
};

} // namespace warptile
