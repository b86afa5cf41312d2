#pragma once
#include <map>
#include "ptx/mbarrier.cuh"
// Copies end when they are asked for. A barrier that expects bytes is arrived at when they are there.
namespace warptile {
inline std::map<unsigned, long long> expected_bytes; // by barrier
inline void barrier_arrive_expect_bytes(unsigned barrier, unsigned bytes) { expected_bytes[barrier] += bytes; }
inline void bytes_came(unsigned barrier, unsigned bytes)
{
    long long& left = expected_bytes[barrier];
    if ((left -= bytes) < 0) end("more bytes come than a barrier expects\n");
    if (left == 0) barrier_arrive(barrier);
}
inline void copy_bytes(unsigned to, const void* from, unsigned bytes, unsigned barrier)
{
    memcpy(shared + to, from, bytes);
    bytes_came(barrier, bytes);
}
inline void store_bytes(void* to, unsigned from, unsigned bytes) { memcpy(to, shared + from, bytes); }
inline void add_bytes(void* to, unsigned from, unsigned bytes)
{
    for (unsigned i = 0; i < bytes / 4; i++) static_cast<float*>(to)[i] += reinterpret_cast<const float*>(shared + from)[i];
}
inline void commit_stores() {}
template <int PENDING> void wait_for_store_reads() {}
inline void wait_for_stores() {}
inline void fence_global_for_async() {}
inline unsigned turns_given_up = 0;
inline void wait_for_turn(const unsigned* turns, unsigned turn, unsigned& polls)
{
    unsigned left = polls / 64; // rounds are slow
    Threads::wait_until([&] { return *turns == turn || left-- == 0; });
    if (*turns == turn) return;
    polls = 0;
    turns_given_up++;
}
inline void pass_turn(unsigned* turns) { ++*turns; }
}
