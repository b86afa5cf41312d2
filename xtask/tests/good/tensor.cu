// One WMMA product from shared memory: passes the gate for HMMA.
#include <mma.h>

#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void __launch_bounds__(32 * Instance::WARPS) WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    using namespace nvcuda;
    extern __shared__ Instance::Element tile[];
    tile[threadIdx.x] = static_cast<const Instance::Element*>(params.q.address)[threadIdx.x];
    __syncthreads();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, Instance::Element, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, Instance::Element, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    wmma::load_matrix_sync(a, tile, 16);
    wmma::load_matrix_sync(b, tile, 16);
    wmma::mma_sync(sum, a, b, sum);
    wmma::store_matrix_sync(params.lse, sum, 16, wmma::mem_row_major);
}
