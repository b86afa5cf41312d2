// Register reallocation that ptxas honours: the launch bounds fix the register count at entry.
#include "sample.cuh"

SAMPLE_RECORD(Instance);

extern "C" __global__ void __launch_bounds__(384, 1) WARPTILE_ENTRY(const __grid_constant__ Params params)
{
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        params.lse[threadIdx.x] = params.scoring.scale;
    }
}
