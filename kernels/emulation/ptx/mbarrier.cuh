#pragma once
// A barrier is a word of shared memory: those who are still to come (16 bits), as many as a phase has (16 bits), and the phases that have
// ended. Bytes that a phase waits for besides are counted elsewhere; they come when somebody looks whether the phase has ended, and no sooner.
#include <map>
namespace warptile {
constexpr int BARRIER_BYTES = 8;
struct Delivery {
    long long bytes = 0; // expected, less those that have come
    std::vector<std::function<long long()>> boxes; // on their way; each says how many bytes it brought
};
inline std::map<unsigned, Delivery> deliveries; // by barrier
inline unsigned long long& barrier_word(unsigned barrier) { return *(unsigned long long*)(shared + barrier); }
inline void barrier_init(unsigned barrier, unsigned arrivals) { barrier_word(barrier) = arrivals | (unsigned long long)arrivals << 16; }
inline void barrier_end(unsigned barrier)
{
    if (deliveries.count(barrier)) abort();
    barrier_word(barrier) = ~0ull;
}
inline void end_phase_if_complete(unsigned barrier)
{
    unsigned long long& word = barrier_word(barrier);
    const auto found = deliveries.find(barrier);
    if ((word & 0xffff) != 0 || (found != deliveries.end() && (found->second.bytes != 0 || !found->second.boxes.empty()))) return;
    if (found != deliveries.end()) deliveries.erase(found);
    word = (word | (word >> 16 & 0xffff)) + (1ull << 32);
}
inline void barrier_arrive(unsigned barrier)
{
    unsigned long long& word = barrier_word(barrier);
    if ((word & 0xffff) == 0) abort();
    word--;
    end_phase_if_complete(barrier);
}
inline bool barrier_test(unsigned barrier, unsigned parity)
{
    const auto found = deliveries.find(barrier);
    if (found != deliveries.end() && (barrier_word(barrier) & 0xffff) == 0) {
        for (const auto& box : found->second.boxes) found->second.bytes -= box();
        found->second.boxes.clear();
        end_phase_if_complete(barrier);
    }
    return (barrier_word(barrier) >> 32 & 1) != parity;
}
inline bool barrier_try_wait(unsigned barrier, unsigned parity) { return barrier_test(barrier, parity); }
inline void barrier_wait(unsigned barrier, unsigned parity)
{
    Threads::wait_until([=] { return barrier_test(barrier, parity); });
}
}
