// Does not compile.
#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ Params params) { params.lse = missing; }
