#pragma once
// Boxes come as late as they may: see mbarrier.cuh. Until then what was asked for is garbage.
#include "base/abi.cuh"
#include "ptx/mbarrier.cuh"
namespace warptile {
// What a map of the host's says, in place of the 128 bytes that the driver encodes. Of 2-byte elements.
struct RowsMap {
    const unsigned char* address;
    long long row, head, batch;   // bytes
    int rows, heads, batches;     // extents
    int columns, slabs, box_rows; // of a box; a slab's columns are next to those of the one before
};
static_assert(sizeof(RowsMap) <= sizeof(TensorMap));
inline void prefetch_map(const TensorMap&) {}
inline void fence_barrier_init() {}
inline void fence_shared_for_async() {}
inline void barrier_arrive_expect_bytes(unsigned barrier, unsigned bytes)
{
    deliveries[barrier].bytes += bytes;
    barrier_arrive(barrier);
}
inline void copy_rows_box(unsigned destination, const TensorMap& map, unsigned barrier, int row, int head, int batch)
{
    RowsMap of;
    memcpy(&of, &map, sizeof of);
    if (destination % 1024 != 0) abort();
    const int row_bytes = 2 * of.columns, bytes = of.slabs * of.box_rows * row_bytes;
    std::vector<unsigned char> box(bytes);
    for (int slab = 0; slab < of.slabs; slab++)
        for (int i = 0; i < of.box_rows; i++) {
            const int at = row + i;
            if (at < 0 || at >= of.rows || head < 0 || head >= of.heads || batch < 0 || batch >= of.batches) continue;
            const unsigned char* from = of.address + at * of.row + head * of.head + batch * of.batch + slab * row_bytes;
            for (int chunk = 0; chunk < row_bytes / 16; chunk++)
                memcpy(&box[(slab * of.box_rows + i) * row_bytes + (chunk ^ i % 8) * 16], from + chunk * 16, 16);
        }
    memset(shared + destination, 0xff, bytes);
    deliveries[barrier].boxes.push_back([=] {
        memcpy(shared + destination, box.data(), bytes);
        return (long long)bytes;
    });
}
}
