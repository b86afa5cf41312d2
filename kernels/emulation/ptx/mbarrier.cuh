#pragma once
// A barrier is a word of shared memory: those who are still to come (16 bits), as many as a phase has (16 bits), and the phases that have
// ended.
namespace warptile {
constexpr int BARRIER_BYTES = 8;
inline std::vector<unsigned> valid_barriers; // of the CTA
inline unsigned long long& barrier_word(unsigned barrier) { return *(unsigned long long*)(shared + barrier); }
inline void barrier_init(unsigned barrier, unsigned arrivals)
{
    if (std::count(valid_barriers.begin(), valid_barriers.end(), barrier)) end("a barrier is initialized twice\n");
    valid_barriers.push_back(barrier);
    barrier_word(barrier) = arrivals | (unsigned long long)arrivals << 16;
}
inline void barrier_invalidate(unsigned barrier)
{
    if (!std::erase(valid_barriers, barrier)) end("no barrier is invalidated\n");
}
inline void barrier_arrive(unsigned barrier)
{
    unsigned long long& word = barrier_word(barrier);
    if ((word & 0xffff) == 0) end("more arrivals than a barrier has\n");
    word--;
    if ((word & 0xffff) == 0) word = (word | (word >> 16 & 0xffff)) + (1ull << 32);
}
inline bool barrier_test(unsigned barrier, unsigned parity) { return (barrier_word(barrier) >> 32 & 1) != parity; }
inline bool barrier_try_wait(unsigned barrier, unsigned parity) { return barrier_test(barrier, parity); }
inline void barrier_wait(unsigned barrier, unsigned parity)
{
    Threads::wait_until([=] { return barrier_test(barrier, parity); });
}
}
