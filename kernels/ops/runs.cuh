// The sequences whose key mask shows their first keys and no others, as with padding behind them. A kernel without key masks computes
// these, faster, and one with key masks the others.
//
// One CTA does it. Where there are fewer sequences than half of its warps, several warps share the keys of a sequence.
#pragma once

#include "base/abi_runs.cuh"
#include "memory/chunk.cuh"
#include "ops/traits.cuh"

namespace warptile {

// The shown keys of a part of a sequence.
struct ShownPart {
    int end; // behind the last one; 0 if there is none
    int count;

    __device__ void add(const ShownPart& other)
    {
        end = max(end, other.end);
        count += other.count;
    }
};

template <class Element, int WARPS_> struct RunTraits : RowTraits<Element, WARPS_, ROLE_KEY_RUNS> {
    static constexpr int SHARED_BYTES = WARPS_ * (int)sizeof(ShownPart);
};

// The keys that a warp's lanes find in every `pieces`th piece of a sequence, from `piece` on.
__device__ inline ShownPart find_shown(const KeyRuns& params, int sequence, int piece, int pieces)
{
    constexpr int KEYS = CHUNK<unsigned char>;
    const unsigned char* const row = params.key_mask + sequence * params.mask_batch;
    const bool aligned = params.mask_key == 1 && reinterpret_cast<unsigned long long>(row) % CHUNK_BYTES == 0;
    ShownPart part = {0, 0};
#pragma unroll 1
    for (int key = (piece * 32 + threadIdx.x % 32) * KEYS; key < params.key_len; key += pieces * 32 * KEYS) {
        const int keys = min(KEYS, params.key_len - key);
        Chunk<unsigned char> chunk;
        if (aligned && keys == KEYS) {
            chunk = load_chunk(row + key, true, KEYS);
        } else {
#pragma unroll
            for (int i = 0; i < KEYS; ++i)
                if (i < keys) chunk.elements[i] = row[(key + i) * params.mask_key];
        }
        unsigned shown = 0; // a bit for each key
#pragma unroll
        for (int i = 0; i < KEYS; ++i) shown |= (chunk.elements[i] != 0) << i;
        if (shown) part.add({key + 32 - __clz(shown), __popc(shown)});
    }
    for (int apart = 16; apart > 0; apart /= 2)
        part.add({__shfl_xor_sync(0xffffffff, part.end, apart), __shfl_xor_sync(0xffffffff, part.count, apart)});
    return part;
}

// The numbers of a sequence for the kernels that follow. Returns 1 if the first one computes it.
__device__ inline int write_run(const KeyRuns& params, int sequence, const ShownPart& shown)
{
    const bool is_run = shown.count == shown.end;
    params.key_lengths[sequence] = is_run ? shown.count : 0;
    params.other_queries[sequence] = is_run ? 0 : params.query_len;
    return is_run;
}

template <class Traits> __device__ inline void find_runs(const KeyRuns& params)
{
    constexpr int WARPS = Traits::WARPS;
    static_assert((WARPS & WARPS - 1) == 0 && WARPS <= 32, "sequences have equal numbers of warps, and a lane each of the first warp");
    extern __shared__ __align__(128) unsigned char shared[];
    ShownPart* const parts = reinterpret_cast<ShownPart*>(shared); // of warps
    begin_in_order();
    int pieces = 1; // of a sequence
    while (2 * pieces * params.batch <= WARPS) pieces *= 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Several warps have one sequence at most.
    int runs = 0;
    ShownPart part = {0, 0};
#pragma unroll 1
    for (int sequence = warp / pieces; sequence < params.batch; sequence += WARPS / pieces) {
        part = find_shown(params, sequence, warp % pieces, pieces);
        if (pieces == 1 && lane == 0) runs += write_run(params, sequence, part);
    }
    if (lane == 0) parts[warp] = pieces == 1 ? ShownPart{0, runs} : part;
    __syncthreads();
    if (warp != 0) return;
    // Lane by lane a warp's count of runs, or a sequence.
    runs = 0;
    if (pieces == 1) {
        if (lane < WARPS) runs = parts[lane].count;
    } else if (lane < params.batch) {
        ShownPart shown = parts[lane * pieces];
        for (int piece = 1; piece < pieces; ++piece) shown.add(parts[lane * pieces + piece]);
        runs = write_run(params, lane, shown);
    }
    for (int apart = 16; apart > 0; apart /= 2) runs += __shfl_xor_sync(0xffffffff, runs, apart);
    if (lane != 0) return;
    *params.run_counter = runs == 0 ? params.no_runs : 0;
    *params.other_counter = runs == params.batch ? params.no_others : 0;
}

} // namespace warptile
