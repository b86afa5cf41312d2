#pragma once
namespace warptile {
inline unsigned exchange(unsigned* number, unsigned by)
{
    emulation::launch.step();
    const unsigned before = *number;
    *number = by;
    return before;
}
inline void pause() {}
inline unsigned load_in_order(const unsigned* number)
{
    emulation::launch.step();
    return *number;
}
}
