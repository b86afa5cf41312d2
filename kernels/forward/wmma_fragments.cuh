// Additions to nvcuda::wmma: the placement of an accumulator's elements, and reductions over its rows.
//
// WMMA does not say which element of a tile a lane holds, and nothing here assumes it: an AccumulatorMap reads the
// placement off a probe at kernel start.
#pragma once

#include <mma.h>

#include "base/element.cuh"

namespace warptile {

namespace wmma = nvcuda::wmma;

constexpr int WARP_SIZE = 32;
constexpr int TILE = 16; // WMMA's m = n = k

using Accumulator = wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float>;
constexpr int LANE_ELEMENTS = TILE * TILE / WARP_SIZE; // elements of an accumulator that one lane holds
static_assert(Accumulator::num_elements == LANE_ELEMENTS);

// Row-major A operand: a tile of Q or P. B operands: a tile of K stored key by key is K^T by columns; V is as it lies.
template <class Element> using RowTile = wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, Element, wmma::row_major>;
template <class Element> using KeyTile = wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, Element, wmma::col_major>;
template <class Element> using ValueTile = wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, Element, wmma::row_major>;

// Where in its tile each of this lane's accumulator elements lies.
class AccumulatorMap {
    unsigned places[2]; // four elements each, a byte per element: row * 16 + column

    __device__ int place(int e) const { return places[e / 4] >> e % 4 * 8 & 255; }

  public:
    // In every lane, element 2i + 1 is element 2i's right neighbour and 2i's column is even, so the two make one word.
    bool pairs_adjacent;

    // `scratch` is one tile of floats in shared memory that this warp alone uses.
    __device__ explicit AccumulatorMap(float* scratch) : places()
    {
        for (int i = threadIdx.x % WARP_SIZE; i < TILE * TILE; i += WARP_SIZE) scratch[i] = (float)i;
        __syncwarp();
        Accumulator probe;
        wmma::load_matrix_sync(probe, scratch, TILE, wmma::mem_row_major);
#pragma unroll
        for (int e = 0; e < LANE_ELEMENTS; ++e) places[e / 4] |= (unsigned)probe.x[e] << e % 4 * 8;
        bool adjacent = true;
#pragma unroll
        for (int e = 0; e < LANE_ELEMENTS; e += 2)
            adjacent = adjacent && place(e + 1) == place(e) + 1 && column(e) % 2 == 0;
        pairs_adjacent = __all_sync(~0u, adjacent);
    }

    __device__ int row(int e) const { return place(e) / TILE; }
    __device__ int column(int e) const { return place(e) % TILE; }

    // An opaque copy of the map. It keeps the compiler from computing rows and columns of all elements before the main loop, which would
    // cost 16 registers although few tiles need them.
    __device__ AccumulatorMap on_the_spot() const
    {
        AccumulatorMap copy = *this;
        asm volatile("" : "+r"(copy.places[0]), "+r"(copy.places[1]));
        return copy;
    }

    // Offsets of elements 0, 2, 4 and 6 in a row-major tile.
    template <int STRIDE> __device__ void pair_offsets(int (&offsets)[LANE_ELEMENTS / 2]) const
    {
#pragma unroll
        for (int i = 0; i < LANE_ELEMENTS / 2; ++i) offsets[i] = row(2 * i) * STRIDE + column(2 * i);
    }

    // Gives each element the value of its row, from the lanes 2 * row and 2 * row + 1 that hold it.
    __device__ void spread(float row_value, float (&values)[LANE_ELEMENTS]) const
    {
#pragma unroll
        for (int e = 0; e < LANE_ELEMENTS; ++e) values[e] = __shfl_sync(~0u, row_value, 2 * row(e));
    }

    // Rounds an accumulator tile to the element type and writes it row-major, element by element.
    template <int STRIDE, class Element> __device__ void store(Element* tile, const Accumulator& values) const
    {
#pragma unroll
        for (int e = 0; e < LANE_ELEMENTS; ++e) tile[row(e) * STRIDE + column(e)] = narrow<Element>(values.x[e]);
    }
};

// AccumulatorMap::store in half the instructions, for a map whose pairs are adjacent. `offsets` are its pair_offsets.
template <class Element>
__device__ inline void store_pairs(Element* tile, const Accumulator& values, const int (&offsets)[LANE_ELEMENTS / 2])
{
#pragma unroll
    for (int i = 0; i < LANE_ELEMENTS / 2; ++i)
        *reinterpret_cast<unsigned*>(tile + offsets[i]) = narrow2<Element>(values.x[2 * i], values.x[2 * i + 1]);
}

// WARPS neighbouring warps that share row tiles. A group of one warp needs no barrier.
template <int WARPS> struct WarpGroup {
    int index; // of the group within the CTA
    int rank;  // of this warp within the group

    // Each group has a named barrier of its own; barrier 0 is __syncthreads'.
    __device__ void sync() const
    {
        if constexpr (WARPS == 1)
            __syncwarp();
        else
            asm volatile("barrier.cta.sync %0, %1;" ::"r"(index + 1), "n"(WARPS * WARP_SIZE) : "memory");
    }

    // Returns true if `condition` holds in any lane that takes part: the warp's, or with groups of several warps the CTA's; also a
    // barrier for them. All groups decide alike, so that all pass the same barriers in the same order: racecheck counts
    // the barriers a warp has passed, and where the counts differ by group it reports races that a barrier of the whole
    // CTA excludes.
    __device__ bool any(bool condition) const
    {
        if constexpr (WARPS == 1) {
            __syncwarp();
            return __any_sync(~0u, condition);
        } else {
            return __syncthreads_or(condition);
        }
    }
};

struct Max {
    static __device__ float combine(float a, float b) { return fmaxf(a, b); }
};
struct Sum {
    static __device__ float combine(float a, float b) { return a + b; }
};

// Floats between rows of a tile of partial results: pairs of columns in four rows touch 32 different banks.
constexpr int PARTIAL_STRIDE = TILE + 8;
constexpr int PARTIAL_BYTES = TILE * PARTIAL_STRIDE * (int)sizeof(float);

// Combines one value per element of a row tile, from all warps of the group, into one value per row, always in the same
// order; lanes 2 * row and 2 * row + 1 get the row's. `partials` has PARTIAL_BYTES for each warp of the group.
template <class Operation, int WARPS>
__device__ inline float reduce_rows(const float (&values)[LANE_ELEMENTS], float* partials, const WarpGroup<WARPS>& group)
{
    Accumulator tile;
#pragma unroll
    for (int e = 0; e < LANE_ELEMENTS; ++e) tile.x[e] = values[e];
    wmma::store_matrix_sync(partials + group.rank * TILE * PARTIAL_STRIDE, tile, PARTIAL_STRIDE, wmma::mem_row_major);
    group.sync();
    // The two lanes of a row take its columns in turns of four: eight lanes read 32 different banks.
    const int lane = threadIdx.x % WARP_SIZE;
    const float* row = partials + lane / 2 * PARTIAL_STRIDE + lane % 2 * 4;
    float4 all = *reinterpret_cast<const float4*>(row);
#pragma unroll
    for (int part = 1; part < 2 * WARPS; ++part) {
        const float4 more = *reinterpret_cast<const float4*>(row + part / 2 * TILE * PARTIAL_STRIDE + part % 2 * 8);
        all.x = Operation::combine(all.x, more.x);
        all.y = Operation::combine(all.y, more.y);
        all.z = Operation::combine(all.z, more.z);
        all.w = Operation::combine(all.w, more.w);
    }
    const float mine = Operation::combine(Operation::combine(all.x, all.y), Operation::combine(all.z, all.w));
    group.sync(); // `partials` may be overwritten from here on
    return Operation::combine(mine, __shfl_xor_sync(~0u, mine, 1));
}

} // namespace warptile
