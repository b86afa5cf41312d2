// Where the rows of keys and values lie: in a dense or packed tensor one after the other, in a paged one where the table says.
//
// Nobody has validated a table on the device: page numbers are clamped to the pages there are, and entries for keys that do not
// exist are not read.
#pragma once

#include "work/lengths.cuh"

namespace warptile {

// The number in its sequence of the page of a key; `Pages::of` in crates/spec/src/abi.rs says why it is exact.
__device__ inline int page_number(const Pages& pages, int key)
{
    return (int)(__umulhi(2 * (unsigned)key, pages.rows_inverse) >> pages.rows_log);
}

// The rows of one key/value head of one sequence. `PAGED`: which may lie in pages. `PACKED`: and which may follow another sequence's in
// one tensor.
template <class Element, bool PAGED = true, bool PACKED = true> class KeyRows {
  public:
    // Returns true if a key is located without a branch. The page passed for a tensor without pages is then ignored.
    __device__ static constexpr bool is_branchless() { return PAGED && !PACKED; }

    KeyRows() = default;
    __device__ KeyRows(const Forward& params, int batch, int kv_head, Extent keys)
        : first(keys.first), entry(batch), head(kv_head),
          table(PAGED && params.pages.table ? params.pages.table + times(batch, params.pages.table_row) : nullptr)
    {
    }

    __device__ bool is_paged() const { return PAGED && table; }
    // Where the table has the page of a key.
    __device__ const int* page_of(const Forward& params, int key) const { return table + page_number(params.pages, key); }

    // Offset of a key that lies in page `page`. A dense batch entry is one page.
    __device__ long long offset(const Forward& params, const Tensor& tensor, int key, int page) const
    {
        int row = first + key;
        if constexpr (is_branchless()) {
            // Without a table a page has 0 rows: `Pages::default` in crates/spec/src/abi.rs.
            row = key - page_number(params.pages, key) * params.pages.rows;
            page = is_paged() ? min(max(page, 0), params.pages.count - 1) : entry;
        } else if (is_paged()) {
            row = key - page_number(params.pages, key) * params.pages.rows;
            page = min(max(page, 0), params.pages.count - 1);
        } else {
            page = entry;
        }
        return times(page, tensor.batch) + times(row, tensor.row) + times(head, tensor.head);
    }

  private:
    // Product of two non-negative numbers; the unsigned product takes fewer instructions.
    __device__ static long long times(int number, long long stride) { return (unsigned)number * (unsigned long long)stride; }

    int first;
    int entry;
    int head;
    const int* table;
};

} // namespace warptile
