// The unit of work of a CTA of the mma kernels: a range of keys of one tile.
//
// A tile is BLOCK_M rows of one key/value head of one sequence; a row is a query with one of the heads that share the key/value
// head.
#pragma once

#include "ptx/launch.cuh"
#include "rule/mask.cuh"
#include "work/lengths.cuh"

namespace warptile {

// The units say which part of the tile it is, where CTAs share tiles (work/share.cuh).
struct Segment {
    int batch; // END after the last one
    int kv_head;
    int first_query; // of the tile's first row, ...
    int first_head;  // ... and its head among those of this key/value head
    Extent q;
    Extent k;
    int first_key; // of those it reads; none where first_key >= end_key
    int end_key;
    unsigned unit; // its first
    unsigned units;
    unsigned tile_unit; // the tile's first
    unsigned tile_units;
    unsigned first_split; // the number of the tile's first unit, counted from key 0

    static constexpr int END = -1;
    __device__ bool is_end() const { return batch == END; }
    __device__ bool is_whole_tile() const { return units == tile_units; }
};

} // namespace warptile
