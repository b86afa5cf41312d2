// Packed rows: those of all heads that share a key/value head, whatever their number, one query after the other.
#pragma once

#include "forward/wgmma_layout.cuh"
#include "work/quotient.cuh"

namespace warptile {

// Heads that share a key/value head.
__device__ inline int group_size(const Forward& params) { return (int)quotient(params.heads, params.kv_heads); }

// Packed rows from one of a sequence on: row 0 is the first head of query 0, and all heads of a query come before the next one.
struct PackedRows {
    int group = 1;
    int first_query = 0, first_head = 0; // of the first of them; the head among those of the group

    __device__ PackedRows() {}
    __device__ PackedRows(const Forward& params, int first_row)
        : group(group_size(params)), first_query((unsigned)first_row / (unsigned)group), first_head(first_row - first_query * group)
    {
    }
    // Of one of the rows that follow, fewer than a tile's.
    __device__ int query(int row) const { return first_query + queries_before(row); }
    __device__ int head(int row) const { return first_head + row - queries_before(row) * group; }

  private:
    __device__ int queries_before(int row) const { return (int)quotient(first_head + row, group); }
};

// Queries one after the other: those of some rows.
struct QueryRange {
    int first, count;
};

// Those of `rows` rows from `first_row` on, which a tile counts as it does its first one.
template <class Traits> __device__ QueryRange queries_of_rows(const Forward& params, int first_row, int rows)
{
    if constexpr (Traits::packs_rows()) {
        const PackedRows packed(params, max(first_row, 0));
        return {packed.first_query, packed.query(rows - 1) - packed.first_query + 1};
    }
    return {first_row, rows};
}

// Rows that a sequence's queries are.
template <class Traits> __device__ int rows_of_queries(const Forward& params, int query_len)
{
    if constexpr (Traits::packs_rows()) return query_len * group_size(params);
    return query_len;
}

} // namespace warptile
