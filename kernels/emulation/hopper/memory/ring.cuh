#pragma once
#include "ptx/mbarrier.cuh"
// Laps of a ring. The kernels count only their parity; with the whole number a wait names the phase it means.
namespace warptile {
struct Lap {
    int number = 0;
    operator Phase() const { return {number}; }
    // The phase before, which has the other parity and whose buffers this lap takes.
    Phase operator^(int) const { return {number - 1}; }
};
template <int STAGES> struct RingPosition {
    int stage = 0;
    Lap parity;
    void advance()
    {
        if (++stage < STAGES) return;
        stage = 0;
        parity.number++;
    }
};
}
