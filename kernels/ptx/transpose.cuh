// Words that change places among the lanes of a warp. "Data Movement and Conversion Instructions: shfl.sync".
#pragma once

namespace warptile {

// Lane i of four neighbours gets word i of each, in their order. The warp is whole.
__device__ inline void transpose_among_four(unsigned (&words)[4])
{
    const auto exchange = [&](unsigned& low, unsigned& high, int apart) {
        const bool is_high = threadIdx.x & apart;
        const unsigned got = __shfl_xor_sync(0xffffffff, is_high ? low : high, apart);
        (is_high ? low : high) = got;
    };
    exchange(words[0], words[1], 1);
    exchange(words[2], words[3], 1);
    exchange(words[0], words[2], 2);
    exchange(words[1], words[3], 2);
}

} // namespace warptile
