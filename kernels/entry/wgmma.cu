// One image of the wgmma family. The build passes the element type, the tiling, the entry's name and, for a variant, its name.
#include "base/record.cuh"
#include "forward/wgmma.cuh"

#if defined(WARPTILE_VARIANT_SOFTCAP)
constexpr warptile::Variant VARIANT = warptile::Variant::SOFTCAP;
#elif defined(WARPTILE_VARIANT_SERVING)
constexpr warptile::Variant VARIANT = warptile::Variant::SERVING;
#elif defined(WARPTILE_VARIANT_SERVING_GROUPS)
constexpr warptile::Variant VARIANT = warptile::Variant::SERVING_GROUPS;
#elif defined(WARPTILE_VARIANT_PAIRS)
constexpr warptile::Variant VARIANT = warptile::Variant::PAIRS;
#elif defined(WARPTILE_VARIANT_GROUPS)
constexpr warptile::Variant VARIANT = warptile::Variant::GROUPS;
#elif defined(WARPTILE_VARIANT_TENSORS)
constexpr warptile::Variant VARIANT = warptile::Variant::TENSORS;
#elif defined(WARPTILE_VARIANT_DROPOUT)
constexpr warptile::Variant VARIANT = warptile::Variant::DROPOUT;
#elif defined(WARPTILE_VARIANT_BLOCKS)
constexpr warptile::Variant VARIANT = warptile::Variant::BLOCKS;
#elif defined(WARPTILE_VARIANT_KEYMASK)
constexpr warptile::Variant VARIANT = warptile::Variant::KEYMASK;
#elif defined(WARPTILE_VARIANT_BIAS)
constexpr warptile::Variant VARIANT = warptile::Variant::BIAS;
#elif defined(WARPTILE_VARIANT_MASK)
constexpr warptile::Variant VARIANT = warptile::Variant::MASK;
#elif defined(WARPTILE_VARIANT_ALIBI)
constexpr warptile::Variant VARIANT = warptile::Variant::ALIBI;
#else
constexpr warptile::Variant VARIANT = warptile::Variant::PLAIN;
#endif

// Values have the head size of keys unless the row names another one.
#ifndef WARPTILE_VALUE_DIM
#define WARPTILE_VALUE_DIM WARPTILE_HEAD_DIM
#endif

#ifdef WARPTILE_VARIANT_DROPOUT
using Params = warptile::ForwardTmaDropout;
#elif defined(WARPTILE_VARIANT_BLOCKS)
using Params = warptile::ForwardTmaBlocks;
#elif defined(WARPTILE_VARIANT_BIAS) || defined(WARPTILE_VARIANT_MASK)
using Params = warptile::ForwardTmaBoxes;
#else
using Params = warptile::ForwardTma;
#endif
using Instance = warptile::WgmmaTraits<WARPTILE_ELEMENT, WARPTILE_HEAD_DIM, WARPTILE_VALUE_DIM, WARPTILE_BLOCK_M, WARPTILE_BLOCK_N,
                                       WARPTILE_WARPS, WARPTILE_STAGES, VARIANT>;

extern "C" __device__ const warptile::RecordWords warptile_record = warptile::image_record<Instance, Params>();

extern "C" __global__ void __launch_bounds__(Instance::THREADS, Instance::MIN_CTAS)
    WARPTILE_ENTRY(const __grid_constant__ Params params)
{
#if defined(WARPTILE_VARIANT_DROPOUT) || defined(WARPTILE_VARIANT_BLOCKS) || defined(WARPTILE_VARIANT_BIAS) || defined(WARPTILE_VARIANT_MASK)
    warptile::wgmma_attention<Instance>(params.tma);
#else
    warptile::wgmma_attention<Instance>(params);
#endif
}
