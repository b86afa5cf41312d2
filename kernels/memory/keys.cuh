// Where the rows of keys and values lie: in a dense or packed tensor one after the other, in a paged one where the table says.
//
// Nobody has validated a table on the device: page numbers are clamped to the pages there are, and entries for keys that do not
// exist are not read.
#pragma once

#include "work/lengths.cuh"

namespace warptile {

// The rows of one key/value head of one sequence.
template <class Element> class KeyRows {
  public:
    KeyRows() = default;
    __device__ KeyRows(const Forward& params, int batch, int kv_head, Extent keys)
        : first(keys.first), end(keys.len), entry(batch),
          table(params.pages.table ? params.pages.table + batch * params.pages.table_row : nullptr), head(kv_head)
    {
    }

    // Which page a key is in, and which row of it. A dense batch entry is one page.
    struct Place {
        int page, row;
    };
    __device__ Place place(const Forward& params, int key) const
    {
        if (!table) return {entry, first + key};
        const unsigned index = (unsigned)key / (unsigned)params.pages.rows;
        const int page = key < end ? table[index] : 0;
        return {min(max(page, 0), params.pages.count - 1), key - (int)index * params.pages.rows};
    }
    __device__ const Element* row(const Tensor& tensor, Place at) const
    {
        return static_cast<const Element*>(tensor.address) + at.page * tensor.batch + at.row * tensor.row + head * tensor.head;
    }

  private:
    int first, end;
    int entry;
    const int* table;
    int head;
};

} // namespace warptile
