#pragma once
// A barrier is a word of shared memory: those who are still to come (16 bits), as many as a phase has (16 bits), and the phases that have
// ended.
namespace warptile {
constexpr int BARRIER_BYTES = 8;
inline std::atomic_ref<unsigned long long> barrier_word(unsigned barrier) { return std::atomic_ref<unsigned long long>(*(unsigned long long*)(shared + barrier)); }
inline void barrier_init(unsigned barrier, unsigned arrivals) { barrier_word(barrier) = arrivals | (unsigned long long)arrivals << 16; }
inline void barrier_arrive(unsigned barrier)
{
    auto word = barrier_word(barrier);
    unsigned long long old = word, next;
    do {
        if ((old & 0xffff) == 0) abort();
        next = old - 1;
        if ((next & 0xffff) == 0) next = (next | (next >> 16 & 0xffff)) + (1ull << 32);
    } while (!word.compare_exchange_weak(old, next));
    if (next >> 32 != old >> 32) word.notify_all();
}
inline bool has_ended(unsigned long long word, unsigned parity) { return (word >> 32 & 1) != parity; }
inline bool barrier_test(unsigned barrier, unsigned parity) { return has_ended(barrier_word(barrier), parity); }
inline bool barrier_try_wait(unsigned barrier, unsigned parity) { return barrier_test(barrier, parity); }
inline void barrier_wait(unsigned barrier, unsigned parity)
{
    auto word = barrier_word(barrier);
    for (unsigned long long now = word; !has_ended(now, parity); now = word) word.wait(now);
}
}
