// Writes new keys and values into a cache, and rotates queries and keys on the way: rotary position embedding.
//
// Nobody has validated slots, lengths, page numbers and positions that lie on the device. A row that would go outside of the
// cache goes nowhere; a position outside of the tables counts as the nearest inside. Queries are rotated all the same.
#pragma once

#include "base/e4m3.cuh"
#include "memory/chunk.cuh"
#include "ops/traits.cuh"
#include "work/order.cuh"

namespace warptile {

// A cache of the elements of the new rows.
template <class Element_> struct SameCache {
    using Element = Element_;
    using Block = Append;
    using Scale = void*; // of no meaning
    static constexpr unsigned FEATURES = 0;

    __device__ static const Append& append(const Block& block) { return block; }
    __device__ static Scale key_scale(const Block&, int) { return nullptr; }
    __device__ static Scale value_scale(const Block&, int) { return nullptr; }
    __device__ static Element stored(Element_ x, Scale) { return x; }
};

// A cache in e4m3: of each number the nearest to it divided by its head's scale.
template <class Element_> struct E4m3Cache {
    using Element = E4m3;
    using Block = AppendE4m3;
    using Scale = float;
    static constexpr unsigned FEATURES = FEATURE_E4M3;

    __device__ static const Append& append(const Block& block) { return block.append; }
    __device__ static Scale key_scale(const Block& block, int head) { return block.scales.k[head * block.scales.k_step]; }
    __device__ static Scale value_scale(const Block& block, int head) { return block.scales.v[head * block.scales.v_step]; }
    __device__ static Element stored(Element_ x, Scale scale) { return to_e4m3(__fdiv_rn(widen(x), scale)); }
};

template <class Element_, int WARPS_, class Cache_> struct AppendTraits : RowTraits<Element_, WARPS_, ROLE_APPEND> {
    using Cache = Cache_;
    static constexpr unsigned FEATURES = FEATURE_UNALIGNED | Cache::FEATURES;
};

struct Angle {
    float cos, sin;
};

// By what a pair is turned. Computed angles are products of whole numbers modulo 2^64, whose wrapping drops whole turns: they
// are as exact at position 2^30 as at 1.
template <class Element> __device__ inline Angle angle_of(const Rotary& rotary, long long position, int pair)
{
    Angle angle;
    if (rotary.cos) {
        const long long at = position * rotary.table_row + pair;
        if (rotary.float_tables) {
            angle.cos = static_cast<const float*>(rotary.cos)[at];
            angle.sin = static_cast<const float*>(rotary.sin)[at];
        } else {
            angle.cos = widen(static_cast<const Element*>(rotary.cos)[at]);
            angle.sin = widen(static_cast<const Element*>(rotary.sin)[at]);
        }
        return angle;
    }
    const unsigned long long turns = (unsigned long long)position * rotary.turns[pair];
    const float half_turns = (float)(int)(turns >> 32) * (1.0f / 2147483648.0f); // from -1 to 1
    sincospif(half_turns, &angle.sin, &angle.cos);
    return angle;
}

template <class Element> __device__ inline void turn(Element& first, Element& second, Angle angle)
{
    const float x = widen(first), y = widen(second);
    first = narrow<Element>(fmaf(x, angle.cos, -(y * angle.sin)));
    second = narrow<Element>(fmaf(x, angle.sin, y * angle.cos));
}

// Half a chunk: of a lane's pairs the first or the second elements.
template <class Element> union HalfChunk {
    uint2 bits;
    Element elements[CHUNK<Element> / 2];
    __device__ HalfChunk() : bits() {}
};

// The elements of `source` that are there, `count` of them.
template <class Element> __device__ inline HalfChunk<Element> load_half(const Element* source, bool whole, int count)
{
    HalfChunk<Element> half;
    if (whole) {
        half.bits = *reinterpret_cast<const uint2*>(source);
    } else {
#pragma unroll
        for (int i = 0; i < CHUNK<Element> / 2; ++i)
            if (i < count) half.elements[i] = source[i];
    }
    return half;
}

template <class Element>
__device__ inline void store_half(Element* destination, const HalfChunk<Element>& half, bool whole, int count)
{
    if (whole) {
        *reinterpret_cast<uint2*>(destination) = half.bits;
    } else {
#pragma unroll
        for (int i = 0; i < CHUNK<Element> / 2; ++i)
            if (i < count) destination[i] = half.elements[i];
    }
}

// Elements of a row as `Cache` holds them, `count` of them at `to`. `whole`: at once.
template <class Cache, class Element>
__device__ inline void store_each(typename Cache::Element* to, const Element* elements, int most, int count, typename Cache::Scale scale)
{
#pragma unroll
    for (int i = 0; i < most; ++i)
        if (i < count) to[i] = Cache::stored(elements[i], scale);
}
template <class Cache, class Element> __device__ inline unsigned four_stored(const Element* elements, typename Cache::Scale scale)
{
    unsigned word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) word |= (unsigned)Cache::stored(elements[i], scale).bits << 8 * i;
    return word;
}
template <class Cache, class Element>
__device__ inline void store_as(typename Cache::Element* to, const Chunk<Element>& chunk, bool whole, int count, typename Cache::Scale scale)
{
    if constexpr (Cache::FEATURES == 0)
        store_chunk(to, chunk, whole, count);
    else if (whole)
        *reinterpret_cast<uint2*>(to) = {four_stored<Cache>(chunk.elements, scale), four_stored<Cache>(chunk.elements + 4, scale)};
    else
        store_each<Cache>(to, chunk.elements, CHUNK<Element>, count, scale);
}
template <class Cache, class Element>
__device__ inline void store_as(typename Cache::Element* to, const HalfChunk<Element>& half, bool whole, int count, typename Cache::Scale scale)
{
    if constexpr (Cache::FEATURES == 0)
        store_half(to, half, whole, count);
    else if (whole)
        *reinterpret_cast<unsigned*>(to) = four_stored<Cache>(half.elements, scale);
    else
        store_each<Cache>(to, half.elements, CHUNK<Element> / 2, count, scale);
}

// Returns true if a lane's share of every row of the cache is aligned for one store.
template <class Cache, class Element> __device__ inline bool stores_chunks(const Tensor& tensor)
{
    using Stored = typename Cache::Element;
    constexpr int BYTES = CHUNK<Element> * (int)sizeof(Stored);
    const long long steps = tensor.batch | tensor.row | tensor.head;
    return ((unsigned long long)tensor.address | (unsigned long long)steps * sizeof(Stored)) % BYTES == 0;
}

// Copies the lane's share of a row, and rotates what is to be rotated: as many elements as a chunk has, neighbours, or those of the
// same pairs where the two of a pair lie apart. `from` and `to` may be one row: each element is read and written by one thread.
template <class Cache, class Element>
__device__ inline void copy_rotated(const Rotary& rotary, long long position, const Element* from, typename Cache::Element* to,
                                    bool aligned, int head_dim, int lane, typename Cache::Scale scale)
{
    constexpr int SPAN = CHUNK<Element>, PAIRS = SPAN / 2;
    const int first = lane * SPAN, pair = first / 2;
    const int count = min(SPAN, head_dim - first);
    if (count <= 0) return;
    if (first >= rotary.size) {
        const bool whole = aligned && count == SPAN;
        store_as<Cache>(to + first, load_chunk(from + first, whole, count), whole, count, scale);
        return;
    }

    const int pairs_there = min(PAIRS, rotary.size / 2 - pair);
    Chunk<Element> chunk; // of neighbours
    HalfChunk<Element> low, high;
    const bool whole = aligned && (rotary.interleaved ? count == SPAN : rotary.size % SPAN == 0);
    if (rotary.interleaved) {
        chunk = load_chunk(from + first, whole, count);
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) low.elements[i] = chunk.elements[2 * i], high.elements[i] = chunk.elements[2 * i + 1];
    } else {
        low = load_half(from + pair, whole, pairs_there);
        high = load_half(from + rotary.size / 2 + pair, whole, pairs_there);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; ++i)
        if (i < pairs_there) turn(low.elements[i], high.elements[i], angle_of<Element>(rotary, position, pair + i));
    if (rotary.interleaved) {
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) chunk.elements[2 * i] = low.elements[i], chunk.elements[2 * i + 1] = high.elements[i];
        store_as<Cache>(to + first, chunk, whole, count, scale);
    } else {
        store_as<Cache>(to + pair, low, whole, pairs_there, scale);
        store_as<Cache>(to + rotary.size / 2 + pair, high, whole, pairs_there, scale);
        // Elements of the chunk that follow the rotated ones.
#pragma unroll 1
        for (int column = rotary.size; column < first + count; ++column) to[column] = Cache::stored(from[column], scale);
    }
}

// A row of a page of the cache.
struct CacheRow {
    long long page; // below 0: none
    int row;
};

__device__ inline CacheRow slot_of(const Append& params, long long slot)
{
    const Pages& pages = params.pages;
    if (slot < 0 || slot >= (long long)pages.count * pages.rows) return {-1, 0};
    return {slot / pages.rows, (int)(slot % pages.rows)};
}

// The place of a sequence's row `position`.
__device__ inline CacheRow row_of_sequence(const Append& params, int batch, long long position)
{
    const Pages& pages = params.pages;
    if (position >= params.sequences.key_len) return {-1, 0};
    const int number = (int)position / pages.rows;
    const int page = pages.table ? pages.table[batch * pages.table_row + number] : batch;
    if (page < 0 || page >= pages.count) return {-1, 0};
    return {page, (int)position % pages.rows};
}

struct NewRow {
    int batch;
    int number; // of the sequence's own; one that it does not have is to be skipped
};

// The row `of_all` of the grid. Of every sequence there are as many rows as the longest has or, if they are fewer, all packed rows and one
// more for each sequence, numbered as tiles of one row are (work/order.cuh).
__device__ inline NewRow new_row(const Sequences& sequences, unsigned of_all)
{
    const long long all = (long long)sequences.batch * sequences.query_len;
    if (sequences.query_offsets && all > (long long)sequences.query_rows + sequences.batch) {
        int first;
        const int batch = sequence_of<1>(sequences, of_all, 1, first);
        return {batch, (int)of_all - first};
    }
    return {(int)(of_all / sequences.query_len), (int)(of_all % sequences.query_len)};
}

template <class Traits> __device__ inline void append_rows(const typename Traits::Cache::Block& block)
{
    using Element = typename Traits::Element;
    using Cache = typename Traits::Cache;
    using Stored = typename Cache::Element;
    begin_in_order();
    const Append& params = Cache::append(block);
    const Sequences& sequences = params.sequences;
    const Rotary& rotary = params.rotary;
    const unsigned row_of_all = blockIdx.x / params.row_ctas;
    const unsigned item = blockIdx.x % params.row_ctas * Traits::THREADS + threadIdx.x;
    const int head = item / params.lanes, lane = item % params.lanes;
    if (head >= params.heads + 2 * params.kv_heads) return;
    const auto [batch, number] = new_row(sequences, row_of_all);
    const Extent rows = queries_of(sequences, batch);
    // Offsets that do not ascend may give any number.
    if (number < 0 || number >= rows.len) return;
    const int entry = sequences.query_offsets ? 0 : batch, row = rows.first + number;
    const long long of_all = (long long)entry * sequences.query_rows + row;

    // The sequence's rows so far, and this one's place among them.
    const long long before = sequences.key_lengths ? max(sequences.key_lengths[batch], 0) : 0;
    long long position = before + number;
    CacheRow place = {-1, 0};
    if (head >= params.heads)
        place = params.slots ? slot_of(params, params.slots[of_all]) : row_of_sequence(params, batch, position);

    const int value_head = head - params.heads - params.kv_heads;
    if (value_head >= 0) {
        const int first = lane * CHUNK<Element>, count = min(CHUNK<Element>, params.value_dim - first);
        if (place.page < 0 || count <= 0) return;
        const bool whole =
            count == CHUNK<Element> && in_chunks<Element>(params.v) && stores_chunks<Cache, Element>(params.v_pages);
        const Element* from = row_of<const Element>(params.v, entry, row, value_head) + first;
        Stored* to = row_of<Stored>(params.v_pages, place.page, place.row, value_head) + first;
        store_as<Cache>(to, load_chunk(from, whole, count), whole, count, Cache::value_scale(block, value_head));
        return;
    }

    if (rotary.positions)
        position = rotary.wide_positions ? static_cast<const long long*>(rotary.positions)[of_all]
                                         : static_cast<const int*>(rotary.positions)[of_all];
    position = min(max(position, 0ll), rotary.positions_end - 1);
    const bool is_query = head < params.heads;
    if (!is_query && place.page < 0) return;
    const int key_head = head - params.heads;
    const Tensor& from_tensor = is_query ? params.q : params.k;
    const Tensor& to_tensor = is_query ? params.q_out : params.k_pages;
    const Element* from = row_of<const Element>(from_tensor, entry, row, is_query ? head : key_head);
    if constexpr (Cache::FEATURES == 0) {
        Element* to = is_query ? row_of<Element>(to_tensor, entry, row, head)
                               : row_of<Element>(to_tensor, place.page, place.row, key_head);
        const bool aligned = in_chunks<Element>(from_tensor) && in_chunks<Element>(to_tensor);
        copy_rotated<Cache>(rotary, position, from, to, aligned, params.head_dim, lane, {});
    } else if (is_query) {
        Element* to = row_of<Element>(to_tensor, entry, row, head);
        const bool aligned = in_chunks<Element>(from_tensor) && in_chunks<Element>(to_tensor);
        copy_rotated<SameCache<Element>>(rotary, position, from, to, aligned, params.head_dim, lane, {});
    } else {
        Stored* to = row_of<Stored>(to_tensor, place.page, place.row, key_head);
        const bool aligned = in_chunks<Element>(from_tensor) && stores_chunks<Cache, Element>(to_tensor);
        copy_rotated<Cache>(rotary, position, from, to, aligned, params.head_dim, lane, Cache::key_scale(block, key_head));
    }
}

} // namespace warptile
