// Moving tiles between global and shared memory: cp.async where the tensor's alignment allows it, plain loads elsewhere.
#pragma once

#include "base/element.cuh"

namespace warptile {

// Copies 16 bytes from global to shared memory without passing through registers, or writes 16 zero bytes when `valid`
// is false; then `source` is not read and may lie anywhere. Both addresses are 16-byte aligned.
// PTX ISA, "Data Movement and Conversion Instructions: cp.async"; cache operator .cg (L2 only), src-size operand.
__device__ inline void cp_async_16(void* shared, const void* source, bool valid)
{
    const unsigned destination = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(destination), "l"(source), "r"(valid ? CHUNK_BYTES : 0)
                 : "memory");
}
// Variant that takes a shared-memory address. Converting a generic address reads special registers.
__device__ inline void cp_async_16(unsigned destination, const void* source, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(destination), "l"(source), "r"(valid ? CHUNK_BYTES : 0)
                 : "memory");
}

// Variant for data that is not read again soon: it is evicted from L2 first, so it does not push out data that is still to be used.
// PTX ISA, "createpolicy" and "Cache Eviction Priority Hints"; from sm_80 on.
__device__ inline void cp_async_16_once(unsigned destination, const void* source, bool valid)
{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                 :
                 : "r"(destination), "l"(source), "r"(valid ? CHUNK_BYTES : 0), "l"(policy)
                 : "memory");
}

// Closes the group of cp.async this thread has issued since the last call; an empty group counts as one.
// PTX ISA, "cp.async.commit_group".
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the `PENDING` newest groups of this thread are still in flight. What the other threads copied is
// visible only after a barrier that follows their own wait.
// PTX ISA, "cp.async.wait_group".
template <int PENDING> __device__ inline void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Rows of one head of one sequence in global memory.
template <class Element> struct Rows {
    Element* base;         // row 0, column 0
    long long stride;      // elements between neighbouring rows
    bool in_chunks;        // every row starts on a 16-byte boundary

    __device__ Rows(Element* base, long long stride)
        : base(base), stride(stride),
          in_chunks(((unsigned long long)base | (unsigned long long)stride * sizeof(Element)) % CHUNK_BYTES == 0)
    {
    }
};

// Reads one chunk element by element. `source` need only be aligned to its element.
template <class Element> __device__ inline uint4 load_chunk_by_element(const Element* source)
{
    union {
        uint4 bits;
        unsigned short halves[8];
        unsigned words[4];
    } chunk;
    if constexpr (sizeof(Element) == 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i) chunk.halves[i] = reinterpret_cast<const unsigned short*>(source)[i];
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) chunk.words[i] = reinterpret_cast<const unsigned*>(source)[i];
    }
    return chunk.bits;
}

// Starts the copy of rows [first_row, first_row + TILE_ROWS) to shared memory, by all THREADS threads of the CTA. Rows from
// `row_count` on and columns from `head_dim` on become zero: what lies there in global memory may be NaN or not exist.
// The copy has arrived after cp_async_commit, cp_async_wait and a barrier, whichever path it took.
template <int THREADS, int TILE_ROWS, int HEAD_DIM, int SHARED_STRIDE, class Element>
__device__ inline void copy_tile_async(Element* shared, const Rows<const Element>& rows, int first_row, int row_count,
                                       int head_dim)
{
    constexpr int CHUNKS_PER_ROW = HEAD_DIM / CHUNK<Element>;
    static_assert(HEAD_DIM % CHUNK<Element> == 0, "a row is a whole number of chunks");
    static_assert(SHARED_STRIDE % CHUNK<Element> == 0, "rows in shared memory start on a 16-byte boundary");
    // ACROSS neighbouring threads take neighbouring chunks of a row. Their number divides the chunks of a row, so a thread
    // stays in its columns and steps through the rows by a constant distance: one address per pass, not per chunk.
    constexpr int ACROSS = CHUNKS_PER_ROW % 8 == 0 ? 8 : CHUNKS_PER_ROW % 4 == 0 ? 4 : 2;
    constexpr int DOWN = THREADS / ACROSS;
    constexpr int SPAN = ACROSS * CHUNK<Element>; // columns between a thread's chunks
    static_assert(CHUNKS_PER_ROW % ACROSS == 0 && THREADS % ACROSS == 0);

    const int first = threadIdx.x / ACROSS;
    const int first_column = threadIdx.x % ACROSS * CHUNK<Element>;
    Element* to = shared + first * SHARED_STRIDE + first_column;
    const Element* from = rows.base + (first_row + first) * rows.stride + first_column;
    if (rows.in_chunks) {
#pragma unroll
        for (int row = 0; row < TILE_ROWS; row += DOWN) {
            if (TILE_ROWS % DOWN != 0 && row + first >= TILE_ROWS) break;
            const bool row_valid = first_row + first + row < row_count;
#pragma unroll
            for (int column = 0; column < HEAD_DIM; column += SPAN)
                cp_async_16(to + row * SHARED_STRIDE + column, from + column,
                            row_valid && first_column + column < head_dim);
            from += DOWN * rows.stride;
        }
    } else {
#pragma unroll 1
        for (int row = first; row < TILE_ROWS; row += DOWN) {
#pragma unroll 1
            for (int column = 0; column < HEAD_DIM; column += SPAN) {
                const bool valid = first_row + row < row_count && first_column + column < head_dim;
                *reinterpret_cast<uint4*>(to + column) =
                    valid ? load_chunk_by_element(from + column) : make_uint4(0, 0, 0, 0);
            }
            to += DOWN * SHARED_STRIDE;
            from += DOWN * rows.stride;
        }
    }
}

// Writes the fp32 tile in shared memory to rows [first_row, row_count) of `rows`, by all threads of the CTA. Rows from
// `row_count` on and columns from `head_dim` on are not touched.
template <int THREADS, int TILE_ROWS, int HEAD_DIM, int SHARED_STRIDE, class Element>
__device__ inline void store_tile(const float* shared, const Rows<Element>& rows, int first_row, int row_count,
                                  int head_dim)
{
    constexpr int CHUNKS_PER_ROW = HEAD_DIM / CHUNK<Element>;
    constexpr int CHUNKS = TILE_ROWS * CHUNKS_PER_ROW;
    union Chunk {
        uint4 bits;
        Element elements[CHUNK<Element>];
        __device__ Chunk() : bits() {}
    };
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < CHUNKS; chunk += THREADS) {
        const int row = chunk / CHUNKS_PER_ROW;
        const int column = chunk % CHUNKS_PER_ROW * CHUNK<Element>;
        if (first_row + row >= row_count || column >= head_dim) continue;
        Chunk rounded;
#pragma unroll
        for (int i = 0; i < CHUNK<Element>; ++i)
            rounded.elements[i] = narrow<Element>(shared[row * SHARED_STRIDE + column + i]);
        Element* destination = rows.base + (first_row + row) * rows.stride + column;
        if (rows.in_chunks) {
            *reinterpret_cast<uint4*>(destination) = rounded.bits;
        } else {
#pragma unroll
            for (int i = 0; i < CHUNK<Element>; ++i) destination[i] = rounded.elements[i];
        }
    }
}

// Writes rows of elements from shared memory to rows [first_row, row_count) of `rows`. THREADS threads share the work; the caller's
// index is `thread`. Rows from `row_count` on and columns from `head_dim` on are not touched.
template <int THREADS, int TILE_ROWS, int HEAD_DIM, int SHARED_STRIDE, class Element>
__device__ inline void store_rows(const Element* shared, const Rows<Element>& rows, int first_row, int row_count,
                                  int head_dim, int thread)
{
    constexpr int CHUNKS_PER_ROW = HEAD_DIM / CHUNK<Element>;
#pragma unroll 1
    for (int chunk = thread; chunk < TILE_ROWS * CHUNKS_PER_ROW; chunk += THREADS) {
        const int row = chunk / CHUNKS_PER_ROW;
        const int column = chunk % CHUNKS_PER_ROW * CHUNK<Element>;
        if (first_row + row >= row_count || column >= head_dim) continue;
        const Element* source = shared + row * SHARED_STRIDE + column;
        Element* destination = rows.base + (first_row + row) * rows.stride + column;
        if (rows.in_chunks) {
            *reinterpret_cast<uint4*>(destination) = *reinterpret_cast<const uint4*>(source);
        } else {
#pragma unroll
            for (int i = 0; i < CHUNK<Element>; ++i) destination[i] = source[i];
        }
    }
}

} // namespace warptile
