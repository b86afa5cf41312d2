// The record each image carries, so that the host can read out of the compiled ELF what it is and what it takes.
#pragma once

#include "base/abi.cuh"

namespace warptile {

// The head size of values: that of queries and keys, unless the image has another.
template <class Traits> __device__ constexpr auto value_dim(int) -> decltype(Traits::VALUE_DIM) { return Traits::VALUE_DIM; }
template <class Traits> __device__ constexpr int value_dim(long) { return Traits::HEAD_DIM; }

// `Block` is the kernel's only argument.
template <class Traits, class Block> __device__ constexpr RecordWords image_record()
{
    static_assert(BLOCK_HASH<Block> != 0, "only blocks that the host knows can be launched with");
    RecordWords record = {};
    record.magic = RECORD_MAGIC;
    record.role = Traits::ROLE;
    record.schedule = Traits::SCHEDULE;
    record.features = Traits::FEATURES | (Traits::ROLE == ROLE_FORWARD ? FEATURE_VALUE_DIM : 0);
    record.abi_hash = BLOCK_HASH<Block>;
    record.param_bytes = sizeof(Block);
    record.element_bytes = sizeof(typename Traits::Element);
    record.block_m = Traits::BLOCK_M;
    record.block_n = Traits::BLOCK_N;
    record.head_dim = Traits::HEAD_DIM;
    record.value_dim = value_dim<Traits>(0);
    record.stages = Traits::STAGES;
    record.warps = Traits::WARPS;
    record.min_ctas = Traits::MIN_CTAS;
    record.k_stride = Traits::K_STRIDE;
    record.v_stride = Traits::V_STRIDE;
    record.shared_bytes = Traits::SHARED_BYTES;
    return record;
}

} // namespace warptile

// Makes the image: its record, and the entry, which the build names. That calls `__VA_ARGS__`, with `params`.
#define WARPTILE_IMAGE(...)                                                                                             \
    extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();     \
    extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)                                 \
        WARPTILE_ENTRY(const __grid_constant__ Params params)                                                           \
    {                                                                                                                   \
        __VA_ARGS__;                                                                                                    \
    }
