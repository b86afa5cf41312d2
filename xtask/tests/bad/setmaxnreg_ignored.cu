// Without launch bounds ptxas does not know the register count at entry and drops setmaxnreg.
#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        params.lse[threadIdx.x] = params.scoring.scale;
    }
}
