// The bug the project began with: WMMA reads memory that other threads share, so a local array gives it garbage.
#include <mma.h>

#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void __launch_bounds__(32 * Instance::WARPS) WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    using namespace nvcuda;
    const auto* q = static_cast<const Instance::Element*>(params.q.address);
    Instance::Element rows[256];
    for (int i = 0; i < 256; ++i) rows[i] = q[i * params.head_dim];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, Instance::Element, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, Instance::Element, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    wmma::load_matrix_sync(a, rows, 16);
    wmma::load_matrix_sync(b, static_cast<const Instance::Element*>(params.k.address), 16);
    wmma::mma_sync(sum, a, b, sum);
    wmma::store_matrix_sync(params.lse, sum, 16, wmma::mem_row_major);
}
