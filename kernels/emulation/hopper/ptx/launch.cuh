#pragma once
namespace warptile {
constexpr bool BEGINS_EARLY = true;
inline void grid_dependency_launch() {}
inline void grid_dependency_wait()
{
    emulation::launch.wait_until("the launch before", [] { return !emulation::launch.has_predecessor; });
}
inline void named_barrier_wait(int id, int threads)
{
    emulation::launch.meet("hardware barrier " + std::to_string(id), emulation::launch.cta().meetings[id], threads / 32);
}
inline unsigned increment_and_wrap(unsigned* counter, unsigned last)
{
    emulation::launch.step();
    return atomicInc(counter, last);
}
}
