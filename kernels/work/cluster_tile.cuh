// Which keys a CTA reads, for kernels whose tiles each have a cluster, or several: of the keys that its tile sees, an equal share of
// blocks. Its part of the result stays in its shared memory, where the other CTAs of its cluster read it. That takes less time than parts
// in memory. It is for few tiles: not all multiprocessors can be in clusters of this size at the same time.
//
// Where a tile has several clusters, which is the grid's second dimension, the CTA of one rank in each adds up the same rows and columns
// and leaves their sum in the workspace, and of these CTAs the last to come adds up the sums in the clusters' order. So no CTA adds up
// more than an eighth of a tile, however many clusters have read it, and no CTA waits for another cluster.
//
// The length of the tile's sequence, if it lies on the device, is read ahead as in work/share.cuh.
#pragma once

#include "memory/copy_number.cuh"
#include "work/one_tile.cuh"
#include "work/quotient.cuh"

namespace warptile {

template <class Traits> class ClusterTile {
  public:
    static constexpr bool SHARES_KEYS = false;
    static constexpr unsigned SCHEDULE = SCHEDULE_CLUSTER_TILE;
    static constexpr int CLUSTER = abi::CLUSTER_CTAS;

    // Same interface as `Share`.
    __device__ static bool can_read_ahead(const Forward& params) { return BEGINS_EARLY && params.sequences.ragged & READ_AHEAD; }
    __device__ bool reads_ahead() const { return BEGINS_EARLY && state.reads_ahead; }
    // The first thread has described the tile by then.
    __device__ void ask_again() const
    {
        if (has_length_to_check()) cp_async_4(&state.length_again, params.sequences.key_lengths + state.batch, true);
    }
    __device__ bool was_right() const
    {
        return !has_length_to_check() || clamped_length(state.length_again, params.sequences.key_len) == state.length;
    }
    __device__ void note_wrong() const { state.was_wrong = true; }
    __device__ bool was_wrong() const { return state.was_wrong; }

    __device__ ClusterTile(const Forward& params, int group, unsigned char* shared, bool reads_ahead)
        : params(params), tile(params, group, blockIdx.x / CLUSTER, reads_ahead), state(*reinterpret_cast<State*>(shared))
    {
        if (threadIdx.x == 0) {
            state.reads_ahead = reads_ahead;
            state.was_wrong = false;
            // An impossible length, for CTAs without a tile.
            state.batch = 0;
            state.length = -1;
        }
    }

    // This CTA's part of the tile, perhaps without keys; then the end.
    __device__ Segment next()
    {
        Segment segment;
        segment.batch = Segment::END;
        if (taken) return segment;
        taken = true;
        segment = tile.segment();
        if (segment.is_end()) return segment;
        state.batch = segment.batch;
        state.length = segment.k.len;
        const int first = segment.first_key / Traits::BLOCK_N, end = (segment.end_key + Traits::BLOCK_N - 1) / Traits::BLOCK_N;
        const unsigned blocks = max(end - first, 0), cta = CLUSTER * blockIdx.y + blockIdx.x % CLUSTER;
        // The first CTAs have one more.
        const unsigned ctas = CLUSTER * clusters(), each = clusters() == 1 ? blocks / CLUSTER : quotient(blocks, ctas);
        const unsigned more = blocks - each * ctas;
        const int own = first + each * cta + min(cta, more);
        segment.first_key = max(segment.first_key, own * Traits::BLOCK_N);
        segment.end_key = min(segment.end_key, (own + (int)(each + (cta < more))) * Traits::BLOCK_N);
        return segment;
    }

    // --- Of a tile that several clusters have ---

    __device__ static unsigned clusters() { return gridDim.y; }
    // Semaphore that counts the finished CTAs of this CTA's rank.
    __device__ static unsigned semaphore() { return blockIdx.x; }
    // Where this CTA leaves its sum, and where that of its rank in the tile's cluster `index` lies.
    __device__ static unsigned own_place() { return place(blockIdx.y); }
    __device__ static unsigned place(unsigned index) { return index * gridDim.x + blockIdx.x; }
    // A word that the CTA may use between two barriers.
    __device__ unsigned& scratch() const { return state.scratch; }

  private:
    struct State {
        unsigned scratch;
        int batch;
        int length, length_again; // of keys, as it has been read, and as it was when the launch before had ended
        bool reads_ahead, was_wrong;
    };

    __device__ bool has_length_to_check() const { return params.sequences.key_lengths && threadIdx.x == 0; }

    const Forward& params;
    const OneTile<Traits, true> tile;
    bool taken = false;
    State& state;

  public:
    static constexpr int SHARED_BYTES = sizeof(State);
};

} // namespace warptile
