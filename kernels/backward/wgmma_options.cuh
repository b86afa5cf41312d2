// Variants of the backward kernels on wgmma: dropout, and options of scores that take registers, one a variant.
//
// With ALiBi distances are added to the products before exp2. With a softcap the products with queries begin at 0, and the derivative joins the
// weights that gradients of scores are made of.
#pragma once

#include "backward/wgmma_dropout.cuh"
#include "base/after.cuh"
#include "base/math.cuh"
#include "rule/softcap.cuh"

namespace warptile {

// Traits of kernels with an option of scores more.
template <class Plain, unsigned OPTION> struct GradientsWith : Plain {
    static constexpr unsigned FEATURES = Plain::FEATURES | OPTION;
};
template <class Traits> __device__ constexpr bool caps() { return Traits::FEATURES & FEATURE_SOFTCAP; }
template <class Traits> __device__ constexpr bool has_distances() { return Traits::FEATURES & FEATURE_ALIBI; }

// The variants of an image, each with one option more than the plain one; `Dropping`: the traits with dropout.
enum class GradientVariant { PLAIN, DROPOUT, SOFTCAP, ALIBI };
template <class Plain, template <class> class Dropping, GradientVariant> struct GradientImage {
    using Traits = Plain;
    using Params = BackwardTma;
};
template <class Plain, template <class> class Dropping> struct GradientImage<Plain, Dropping, GradientVariant::DROPOUT> {
    using Traits = Dropping<Plain>;
    using Params = BackwardTmaDropout;
};
template <class Plain, template <class> class Dropping> struct GradientImage<Plain, Dropping, GradientVariant::SOFTCAP> {
    using Traits = GradientsWith<Plain, FEATURE_SOFTCAP>;
    using Params = BackwardTma;
};
template <class Plain, template <class> class Dropping> struct GradientImage<Plain, Dropping, GradientVariant::ALIBI> {
    using Traits = GradientsWith<Plain, FEATURE_ALIBI>;
    using Params = BackwardTma;
};
__device__ inline const BackwardTma& plain_block(const BackwardTma& block) { return block; }
__device__ inline const BackwardTma& plain_block(const BackwardTmaDropout& block) { return block.tma; }

// The argument of tanh for a product of 1.
template <class Traits> __device__ inline float bend_argument(const Scoring& scoring)
{
    return caps<Traits>() ? scoring.scale / softcap_of(scoring) : 0;
}
// Products -> tanh of their arguments: by a polynomial if none of the warp's is large. `bent` may be the products themselves, where registers
// suffice for that: they are wgmma's. `zero`: as `tanh_of_small` takes it.
template <int COUNT> __device__ inline void bend(float (&bent)[COUNT], const float (&products)[COUNT], float argument, int zero)
{
    unsigned seen = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        bent[i] = products[i] * argument;
        seen |= __float_as_uint(fmaf(bent[i], bent[i], 1.0f));
    }
    if (uniform(__any_sync(0xffffffff, is_large(seen)))) {
        constexpr int AT_ONCE = 2;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            bent[i] = tanh_approximate(i < AT_ONCE ? bent[i] : after(bent[i], bent[i - AT_ONCE], zero));
    } else
        tanh_of_small<4>(bent, zero);
}

// The slope of a head's distances, in units of products: 0 times infinity would not be a number.
template <class Traits> __device__ inline float product_slope(const Scoring& scoring, int batch, int head)
{
    if (!has_distances<Traits>() || !scoring.slopes) return 0;
    const float scale = computed_here(scoring.scale); // else its inverse would stay in a register
    return fminf(fmaxf(scoring.slopes[batch * scoring.slopes_batch + head] / -scale, -1e30f), 1e30f);
}

// Adds the distances of queries and keys to a thread's products. `distance`: that of its first query and its first key, from the key to the
// query, bottom-right wherever the mask's diagonal is. TRANSPOSED: keys down and queries across.
template <bool TRANSPOSED, int COUNT> __device__ inline void add_distances(float (&products)[COUNT], int distance, float slope)
{
    const float first = distance;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const int across = j / 4 * 8 + j % 2, down = j % 4 / 2 * 8;
        products[j] = fmaf(fabsf(first + (float)(TRANSPOSED ? across - down : down - across)), slope, products[j]);
    }
}

} // namespace warptile
