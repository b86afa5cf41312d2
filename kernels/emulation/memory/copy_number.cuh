#pragma once
#include "guarded.h"
// cp.async as late as it may be: nothing arrives before the wait that makes sure of it, and until then what was asked for is garbage, as
// NaN and as a number. So a stage that is read while its keys are under way, or loaded while it is read, shows in the result.
namespace warptile {
struct Copies {
    struct Copy {
        unsigned char* to;
        unsigned char bytes[16];
        int size;
    };
    std::vector<Copy> asked;       // in order; those of groups first
    std::vector<size_t> groups;    // how many copies each has
    size_t committed = 0;          // copies in groups
    void ask(void* to, const void* from, int size, bool valid)
    {
        // Numbers may be read ahead, as they are asked for again; queries, keys and values may not.
        if (size == 16 && valid && at_predecessors_end && !has_waited[threadIdx.x]) end("a thread reads what the launch before may still write\n");
        if (size == 16 && valid && reinterpret_cast<size_t>(from) % 16 != 0) end("a copy of 16 bytes does not begin at a multiple of them\n");
        Copy copy = {static_cast<unsigned char*>(to), {}, size};
        if (valid) memcpy(copy.bytes, from, size);
        memset(to, 0xff, size);
        asked.push_back(copy);
    }
    void commit()
    {
        groups.push_back(asked.size() - committed);
        committed = asked.size();
    }
    void wait(size_t pending)
    {
        size_t arrived = 0;
        while (groups.size() > pending) {
            arrived += groups.front();
            groups.erase(groups.begin());
        }
        for (size_t i = 0; i < arrived; i++) memcpy(asked[i].to, asked[i].bytes, asked[i].size);
        asked.erase(asked.begin(), asked.begin() + arrived);
        committed -= arrived;
    }
};
inline Copies copies[256]; // of each thread
// Of a CTA that has ended: what arrives afterwards could hide what was written there meanwhile.
inline void expect_no_copies()
{
    for (const Copies& of : copies)
        if (!of.asked.empty()) end("a thread ends before its copies have arrived\n");
}
inline void cp_async_4(void* shared, const void* source, bool valid) { copies[threadIdx.x].ask(shared, source, 4, valid); }
}
