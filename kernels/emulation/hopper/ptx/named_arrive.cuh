#pragma once
namespace warptile {
inline void named_barrier_arrive(int id, int threads)
{
    emulation::launch.step();
    emulation::Meeting& meeting = emulation::launch.cta().meetings[id];
    if (++meeting.come == threads / 32) meeting.come = 0, meeting.times++;
}
}
