#pragma once
namespace warptile {
using emulation::Phase;
constexpr int BARRIER_BYTES = 8;
inline void barrier_init(unsigned barrier, unsigned arrivals)
{
    emulation::launch.barrier(emulation::launch.cta(), barrier) = {arrivals, arrivals, 0, 0};
}
inline void barrier_arrive(unsigned barrier)
{
    emulation::launch.step();
    emulation::launch.arrive(emulation::launch.cta(), barrier);
}
inline bool barrier_test(unsigned barrier, Phase phase)
{
    emulation::launch.step();
    return emulation::launch.has_ended(barrier, phase);
}
inline void barrier_wait(unsigned barrier, Phase phase)
{
    emulation::launch.wait_until(emulation::launch.describe_wait(barrier, phase), [=] { return emulation::launch.has_ended(barrier, phase); });
}
// A wait of a thread that waits for every phase of the barrier.
inline void barrier_wait(unsigned barrier, unsigned parity) { barrier_wait(barrier, emulation::launch.next_phase(barrier, parity)); }
}
