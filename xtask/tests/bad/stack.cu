// A local array indexed by a run-time value lives in local memory.
#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    float values[32] = {};
    for (int i = 0; i < params.heads; ++i) values[params.sequences.query_offsets[i] & 31] += params.lse[i];
    for (int i = 0; i < 32; ++i) params.lse[i] = values[i];
}
