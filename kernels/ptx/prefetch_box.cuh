// Boxes on their way to L2. PTX ISA 8.7, "Data Movement and Conversion Instructions: cp.async.bulk.prefetch.tensor".
#pragma once

#include "base/abi.cuh"

namespace warptile {

// What `copy_box` would copy comes to L2, and nothing waits for it.
__device__ inline void prefetch_box(const TensorMap& map, int column, int row, int head, int batch)
{
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

} // namespace warptile
