// The record each image carries, so that tests can read the tiling and the parameter layout out of the compiled ELF.
#pragma once

#include "base/params.cuh"

namespace warptile {

// Byte offset of a member, as a pointer value: NVRTC has no constexpr offsetof, but it folds this address in a constant
// initializer.
#define WARPTILE_OFFSET(type, member) ((const void*)&(((type*)0)->member))

constexpr unsigned RECORD_MAGIC = 0x57545231; // "WTR1"

struct TilingRecord {
    unsigned magic;
    unsigned block_m;
    unsigned block_n;
    unsigned head_dim;
    unsigned stages;
    unsigned warps;        // all warps of the CTA, producers included
    unsigned k_stride;     // elements between neighbouring rows of K in shared memory
    unsigned v_stride;     // elements between neighbouring rows of V in shared memory
    unsigned element_bytes;
    unsigned shared_bytes; // dynamic shared memory the launch must ask for
    unsigned param_bytes;  // size of the kernel's parameter block
    unsigned min_ctas;     // CTAs per SM the kernel was compiled for
};

struct ParamsRecord {
    const void* offsets[36];
};

struct ImageRecord {
    TilingRecord tiling;
    ParamsRecord params;
};

template <class Traits, class Params> __device__ constexpr TilingRecord tiling_record()
{
    return {RECORD_MAGIC,     Traits::BLOCK_M,  Traits::BLOCK_N,  Traits::HEAD_DIM,
            Traits::STAGES,   Traits::WARPS,    Traits::K_STRIDE, Traits::V_STRIDE,
            (unsigned)sizeof(typename Traits::Element), Traits::SHARED_BYTES, (unsigned)sizeof(Params),
            Traits::MIN_CTAS};
}

// Every member of AttentionParams in order of declaration; strides by their three members.
#define WARPTILE_PARAMS_RECORD(type, path)                                                                             \
    {{WARPTILE_OFFSET(type, path q), WARPTILE_OFFSET(type, path k), WARPTILE_OFFSET(type, path v),                     \
      WARPTILE_OFFSET(type, path out), WARPTILE_OFFSET(type, path lse), WARPTILE_OFFSET(type, path cu_seqlens_q),      \
      WARPTILE_OFFSET(type, path cu_seqlens_k), WARPTILE_OFFSET(type, path alibi_slopes),                              \
      WARPTILE_OFFSET(type, path tile_counter), WARPTILE_OFFSET(type, path q_stride.batch),                            \
      WARPTILE_OFFSET(type, path q_stride.row), WARPTILE_OFFSET(type, path q_stride.head),                             \
      WARPTILE_OFFSET(type, path k_stride.batch), WARPTILE_OFFSET(type, path k_stride.row),                            \
      WARPTILE_OFFSET(type, path k_stride.head), WARPTILE_OFFSET(type, path v_stride.batch),                           \
      WARPTILE_OFFSET(type, path v_stride.row), WARPTILE_OFFSET(type, path v_stride.head),                             \
      WARPTILE_OFFSET(type, path out_stride.batch), WARPTILE_OFFSET(type, path out_stride.row),                        \
      WARPTILE_OFFSET(type, path out_stride.head), WARPTILE_OFFSET(type, path lse_batch_stride),                       \
      WARPTILE_OFFSET(type, path lse_head_stride), WARPTILE_OFFSET(type, path alibi_batch_stride),                     \
      WARPTILE_OFFSET(type, path batch), WARPTILE_OFFSET(type, path heads), WARPTILE_OFFSET(type, path kv_heads),      \
      WARPTILE_OFFSET(type, path head_dim), WARPTILE_OFFSET(type, path query_len),                                     \
      WARPTILE_OFFSET(type, path key_len), WARPTILE_OFFSET(type, path query_tiles),                                    \
      WARPTILE_OFFSET(type, path window_left), WARPTILE_OFFSET(type, path window_right),                               \
      WARPTILE_OFFSET(type, path align_top_left), WARPTILE_OFFSET(type, path scale),                                   \
      WARPTILE_OFFSET(type, path softcap)}}

} // namespace warptile
