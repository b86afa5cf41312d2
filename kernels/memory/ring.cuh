// Where one stands in a ring of buffers.
#pragma once

namespace warptile {

// A ring of STAGES buffers: which one is next, and the parity of its barriers' current phase. kernels/emulation counts laps instead, and
// tells which phase is waited for.
template <int STAGES> struct RingPosition {
    int stage = 0;
    unsigned parity = 0;

    __device__ void advance()
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

} // namespace warptile
