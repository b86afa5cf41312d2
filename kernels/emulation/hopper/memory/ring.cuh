#pragma once
#include "ptx/mbarrier.cuh"
// Laps of a ring, of which the kernels know parities: so a wait says which phase it means.
namespace warptile {
struct Lap {
    int number = 0;
    operator Phase() const { return {number}; }
    // Of the other parity: the phase before, whose buffers the lap takes.
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
