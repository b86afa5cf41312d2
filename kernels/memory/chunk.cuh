// Chunks of a row in registers: one move of 16 bytes where the tensor's rows are aligned, else element by element.
#pragma once

#include "base/abi.cuh"
#include "base/element.cuh"

namespace warptile {

static_assert(CHUNK_BYTES == abi::CHUNK_BYTES, "as the host knows it");

template <class Element> union Chunk {
    uint4 bits;
    Element elements[CHUNK<Element>];
    __device__ Chunk() : bits() {}
};

// Returns true if every row of the tensor starts on a 16-byte boundary. The host sets the stride of a dimension of size 1 to 0.
template <class Element> __device__ inline bool in_chunks(const Tensor& tensor)
{
    const long long steps = tensor.batch | tensor.row | tensor.head;
    return ((unsigned long long)tensor.address | (unsigned long long)steps * sizeof(Element)) % CHUNK_BYTES == 0;
}

// The first element of a row of a head.
template <class Element> __device__ inline Element* row_of(const Tensor& tensor, long long batch, long long row, int head)
{
    return static_cast<Element*>(tensor.address) + batch * tensor.batch + row * tensor.row + head * tensor.head;
}

// The first `count` elements from `source` on; zeros follow. `whole`: a chunk, and aligned to 16 bytes.
template <class Element> __device__ inline Chunk<Element> load_chunk(const Element* source, bool whole, int count)
{
    Chunk<Element> chunk;
    if (whole) {
        chunk.bits = *reinterpret_cast<const uint4*>(source);
    } else {
#pragma unroll
        for (int i = 0; i < CHUNK<Element>; ++i)
            if (i < count) chunk.elements[i] = source[i];
    }
    return chunk;
}

template <class Element>
__device__ inline void store_chunk(Element* destination, const Chunk<Element>& chunk, bool whole, int count)
{
    if (whole) {
        *reinterpret_cast<uint4*>(destination) = chunk.bits;
    } else {
#pragma unroll
        for (int i = 0; i < CHUNK<Element>; ++i)
            if (i < count) destination[i] = chunk.elements[i];
    }
}

} // namespace warptile
