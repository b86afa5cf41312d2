// The CTAs of a launch on Hopper at once. Each warp is one thread, which stands for the warp's first lane; one of them runs at a time,
// and which one is random, as is when copies and messages arrive. What follows from a seed is always the same.
//
// A launch fails, with a line that says why, where
// - no warp can go on and nothing is under way: who waits for which phase of which barrier is listed;
// - a wait is meant for a phase that its barrier has left behind by more than one, or has not reached yet: parity cannot tell these from the
//   phase that is meant, and another schedule may wait for ever, or not at all;
// - shared memory is read while something is on its way there, or written while a product or the copy engine reads it;
// - something arrives at a CTA that has ended, or a CTA ends before the launch ahead of it.
#pragma once
#include "scalar.h"

#include <cstdarg>
#include <deque>
#include <map>
#include <random>
#include <setjmp.h>
#include <string>
#include <ucontext.h>

struct Dim {
    unsigned x, y = 0;
};
inline Dim threadIdx, blockIdx, gridDim = {1, 1};

namespace emulation {

struct Range {
    unsigned begin, end;
    bool meets(Range other) const { return begin < other.end && other.begin < end; }
};

// Which phase of a barrier somebody means, counted from 0. That before the first has ended.
struct Phase {
    int number;
};

// A barrier in shared memory.
struct SharedBarrier {
    unsigned arrivals = 0; // of a phase; 0 before it is initialized
    unsigned missing = 0;
    long long bytes = 0; // expected and not there yet
    int ended = 0;       // phases
};

struct Cta;

// Memory that a product reads. Scores that nobody uses may be of anything: those of memory that was not there, or is written meanwhile,
// are NaN.
struct Product {
    Range range;
    float* scores = nullptr; // null: a product that counts
    int count = 0;
    bool is_wrong = false;
};

struct Warp {
    Cta* cta = nullptr;
    unsigned number = 0;
    double priority = 0;
    bool has_begun = false, has_ended = false;
    // What it waits for, if it does.
    bool (*test)(void*) = nullptr;
    void* of_test = nullptr;
    std::string waits_for;
    // Of its products: those not yet in a group, and each group under way.
    std::vector<Product> products;
    std::deque<std::vector<Product>> product_groups;
    // Boxes that the copy engine has not read yet: of those not yet in a group, and of each group.
    std::shared_ptr<int> stores = std::make_shared<int>(0);
    std::deque<std::shared_ptr<int>> store_groups;
    int messages = 0;                     // on their way to other CTAs
    std::map<unsigned, int> counted;      // by barrier: the last phase that it has waited for by parity
    ucontext_t beginning;
    jmp_buf here;
    std::unique_ptr<char[]> stack;
};

// Where some warps meet.
struct Meeting {
    int come = 0, times = 0;
};

struct Cta {
    static constexpr unsigned BASE = 1024, LARGEST = 232448;
    unsigned number = 0;
    std::vector<Warp*> warps;
    int running = 0;
    unsigned char* memory = nullptr; // addresses count from here
    std::unique_ptr<unsigned char[]> all_memory;
    std::vector<SharedBarrier> barriers;
    std::vector<Range> arriving; // where copies are on their way to
    std::vector<Range> leaving;  // that the copy engine has not read yet
    Meeting meetings[16];
    Meeting* cluster = nullptr;
};

class Launch {
  public:
    // `body` as so many warps of so many CTAs, `cluster` of which are one. Why it failed, or nothing.
    std::string run(unsigned ctas, unsigned warps, unsigned cluster, unsigned seed, const std::function<void()>& body)
    {
        engine.seed(seed);
        what = &body;
        in_cluster = cluster;
        warps_of_cta = warps;
        under_way.clear();
        failure.clear();
        has_predecessor = true;
        gridDim = {ctas, 1};
        // Some are always the same: the order in which whoever can goes on. Elsewhere anybody does.
        by_priority = engine() % 4 != 0;
        change_every = 1u << (4 + engine() % 7);
        const std::vector<Meeting> none(ctas / cluster + 1);
        clusters = none;
        all.resize(ctas);
        if (fibers.size() < ctas * warps) fibers.resize(ctas * warps);
        for (unsigned i = 0; i < ctas; i++) start(all[i], i, warps);
        after(chance() < 0.5 ? 1 : chance(), [this] {
            has_predecessor = false;
            if (at_predecessors_end) at_predecessors_end();
        });
        if (!_setjmp(outside)) loop(ctas * warps);
        return failure;
    }

    std::function<void()> at_predecessors_end;
    std::function<std::string(unsigned)> name_of_barrier;
    bool has_predecessor = false;

    Warp& warp() { return *current; }
    Cta& cta() { return *current->cta; }
    Cta& cta_of(unsigned rank) { return all[cta().number / in_cluster * in_cluster + rank]; }
    unsigned rank() { return cta().number % in_cluster; }
    unsigned cluster_size() const { return in_cluster; }
    unsigned warps() const { return warps_of_cta; }
    double chance() { return (engine() >> 8) * 0x1p-24; }

    [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* format, ...)
    {
        char text[400];
        va_list list;
        va_start(list, format);
        vsnprintf(text, sizeof text, format, list);
        va_end(list);
        failure = text;
        _longjmp(outside, 1);
    }

    // Others may come first.
    void step()
    {
        if (engine() % 2) give_way();
    }
    template <class Test> void wait_until(const std::string& what, Test test)
    {
        step();
        if (test()) return;
        current->waits_for = what;
        current->of_test = &test;
        current->test = [](void* test) { return (*static_cast<Test*>(test))(); };
        give_way();
        current->test = nullptr;
    }

    // Does something some time later.
    template <class Action> void after(double priority, Action action) { under_way.push_back({priority, action}); }
    template <class Action> void later(Action action) { after(chance(), action); }

    // --- Shared memory of a CTA

    std::string place(const Cta& cta, Range range) const
    {
        char text[80];
        snprintf(text, sizeof text, "bytes %u to %u of CTA %u", range.begin - Cta::BASE, range.end - Cta::BASE, cta.number);
        return text;
    }
    bool is_there(const Cta& cta, Range range) const
    {
        for (const Range& other : cta.arriving)
            if (other.meets(range)) return false;
        return true;
    }
    void must_be_there(const Cta& cta, Range range)
    {
        if (!is_there(cta, range)) fail("%s are read while something is on its way there", place(cta, range).c_str());
    }
    void must_be_free(const Cta& cta, Range range)
    {
        for (const Range& other : cta.arriving)
            if (other.meets(range)) fail("%s are written while something is on its way there", place(cta, range).c_str());
        for (const Range& other : cta.leaving)
            if (other.meets(range)) fail("%s are written while the copy engine reads them", place(cta, range).c_str());
        for (Warp* warp : cta.warps) {
            must_not_be_read(cta, *warp, warp->products, range);
            for (auto& group : warp->product_groups) must_not_be_read(cta, *warp, group, range);
        }
    }
    void must_live(const Cta& cta)
    {
        if (cta.running == 0) fail("something arrives at CTA %u, which has ended", cta.number);
    }

    // --- Barriers

    SharedBarrier& barrier(Cta& cta, unsigned address)
    {
        if (address % 8 != 0 || address / 8 >= cta.barriers.size()) fail("a barrier at %u", address);
        return cta.barriers[address / 8];
    }
    SharedBarrier& initialized(Cta& cta, unsigned address)
    {
        SharedBarrier& barrier = this->barrier(cta, address);
        if (barrier.arrivals == 0) fail("%s of CTA %u has not been initialized", name_of_barrier(address).c_str(), cta.number);
        return barrier;
    }
    void arrive(Cta& cta, unsigned address, long long bytes = 0)
    {
        must_live(cta);
        SharedBarrier& barrier = initialized(cta, address);
        if (barrier.missing == 0) fail("%s of CTA %u: more arrivals than a phase has", name_of_barrier(address).c_str(), cta.number);
        barrier.missing--;
        barrier.bytes += bytes;
        turn(barrier);
    }
    void bring(Cta& cta, unsigned address, long long bytes)
    {
        must_live(cta);
        SharedBarrier& barrier = initialized(cta, address);
        barrier.bytes -= bytes;
        turn(barrier);
    }
    // What the hardware answers, which knows parities.
    bool has_ended(unsigned address, Phase phase)
    {
        const int ended = initialized(cta(), address).ended;
        if (ended > phase.number + 1)
            fail("%s waits for phase %d of %s, which is %d phases behind: parity makes it wait for another one", describe(*current).c_str(),
                 phase.number, name_of_barrier(address).c_str(), ended - phase.number);
        if (ended < phase.number)
            fail("%s waits for phase %d of %s, whose phase %d has not ended: parity lets it pass", describe(*current).c_str(), phase.number,
                 name_of_barrier(address).c_str(), ended);
        return ended > phase.number;
    }
    std::string describe_wait(unsigned address, Phase phase)
    {
        return "phase " + std::to_string(phase.number) + " of " + name_of_barrier(address);
    }
    // Of those who wait for every phase, one after the other.
    Phase next_phase(unsigned address, unsigned parity)
    {
        const auto found = current->counted.find(address);
        int number = found == current->counted.end() ? -1 : found->second;
        if ((number & 1) != (int)parity) number++;
        current->counted[address] = number;
        return {number};
    }

    // All of so many warps.
    void meet(const std::string& what, Meeting& meeting, unsigned warps)
    {
        const int times = meeting.times;
        if (++meeting.come == (int)warps) meeting.come = 0, meeting.times++;
        wait_until(what, [&meeting, times] { return meeting.times != times; });
    }

  private:
    struct Later {
        double priority;
        std::function<void()> action;
    };

    void must_not_be_read(const Cta& cta, const Warp& warp, std::vector<Product>& products, Range range)
    {
        for (Product& product : products) {
            if (!product.range.meets(range)) continue;
            if (!product.scores) fail("%s are written while a product of warp %u reads them", place(cta, range).c_str(), warp.number);
            product.is_wrong = true;
        }
    }
    static void turn(SharedBarrier& barrier)
    {
        if (barrier.missing != 0 || barrier.bytes != 0) return;
        barrier.ended++;
        barrier.missing = barrier.arrivals;
    }
    static std::string describe(const Warp& warp)
    {
        return "warp " + std::to_string(warp.number) + " of CTA " + std::to_string(warp.cta->number);
    }

    void start(Cta& cta, unsigned number, unsigned warps)
    {
        cta.number = number;
        cta.running = warps;
        if (!cta.memory) {
            cta.all_memory.reset(new unsigned char[Cta::LARGEST + 2 * Cta::BASE]);
            const size_t at = reinterpret_cast<size_t>(cta.all_memory.get());
            cta.memory = cta.all_memory.get() + (Cta::BASE - at % Cta::BASE) % Cta::BASE;
        }
        memset(cta.memory, 0xff, Cta::LARGEST + Cta::BASE);
        cta.barriers.assign((Cta::LARGEST + Cta::BASE) / 8, SharedBarrier());
        cta.arriving.clear();
        cta.leaving.clear();
        for (Meeting& meeting : cta.meetings) meeting = {};
        cta.cluster = &clusters[number / in_cluster];
        cta.warps.clear();
        for (unsigned i = 0; i < warps; i++) {
            std::unique_ptr<Warp>& warp = fibers[number * warps + i];
            std::unique_ptr<char[]> stack = warp ? std::move(warp->stack) : nullptr;
            warp = std::make_unique<Warp>();
            constexpr size_t BYTES = 128 << 10;
            warp->stack = stack ? std::move(stack) : std::unique_ptr<char[]>(new char[BYTES]);
            warp->cta = &cta;
            warp->number = i;
            warp->priority = chance();
            if (getcontext(&warp->beginning)) abort();
            warp->beginning.uc_stack = {warp->stack.get(), 0, BYTES};
            warp->beginning.uc_link = nullptr;
            makecontext(&warp->beginning, enter, 0);
            cta.warps.push_back(warp.get());
        }
    }

    void loop(unsigned count)
    {
        unsigned running = count;
        while (running > 0) {
            if (by_priority && engine() % change_every == 0) fibers[engine() % count]->priority = chance() < 0.3 ? 0 : chance();
            // Whoever goes on: a warp, or what is under way.
            Warp* next = nullptr;
            int action = -1;
            double highest = -1;
            for (unsigned i = 0; i < count; i++) {
                Warp* const warp = fibers[i].get();
                const double priority = by_priority ? warp->priority : chance();
                if (warp->has_ended || priority <= highest) continue;
                current = warp;
                if (warp->test && !warp->test(warp->of_test)) continue;
                next = warp;
                highest = priority;
            }
            for (size_t i = 0; i < under_way.size(); i++) {
                const double priority = by_priority ? under_way[i].priority : chance();
                if (priority <= highest) continue;
                highest = priority;
                action = (int)i;
            }
            if (action >= 0) {
                const std::function<void()> now = std::move(under_way[action].action);
                under_way[action] = std::move(under_way.back());
                under_way.pop_back();
                now();
            } else if (next) {
                current = next;
                threadIdx.x = next->number * 32;
                blockIdx.x = next->cta->number;
                if (!_setjmp(caller)) go_on(*next);
                if (next->has_ended) {
                    running--;
                    end(*next);
                }
            } else {
                list_waiting(count);
            }
        }
        // What is under way has nowhere to arrive.
        while (!under_way.empty()) {
            const std::function<void()> now = std::move(under_way.back().action);
            under_way.pop_back();
            now();
        }
    }
    void end(Warp& warp)
    {
        if (--warp.cta->running > 0) return;
        // What comes after this launch may count on that.
        if (has_predecessor) fail("CTA %u has ended before the launch ahead of it", warp.cta->number);
        if (!warp.cta->arriving.empty()) fail("CTA %u has ended while a copy is on its way to it", warp.cta->number);
        if (!warp.cta->leaving.empty()) fail("CTA %u has ended while the copy engine reads its shared memory", warp.cta->number);
    }
    [[noreturn]] void list_waiting(unsigned count)
    {
        std::string text = "it waits for ever:";
        int listed = 0;
        for (unsigned i = 0; i < count && listed < 6; i++)
            if (!fibers[i]->has_ended) {
                text += (listed++ ? ", " : " ") + describe(*fibers[i]) + " for " + fibers[i]->waits_for;
            }
        fail("%s", text.c_str());
    }
    void give_way()
    {
        if (!_setjmp(current->here)) _longjmp(caller, 1);
    }
    static void go_on(Warp& warp)
    {
        if (warp.has_begun) _longjmp(warp.here, 1);
        warp.has_begun = true;
        setcontext(&warp.beginning);
    }
    static void enter();

    std::mt19937 engine;
    const std::function<void()>* what = nullptr;
    unsigned in_cluster = 1, warps_of_cta = 1, change_every = 16;
    bool by_priority = true;
    std::deque<Cta> all;
    std::vector<Meeting> clusters;
    std::vector<std::unique_ptr<Warp>> fibers;
    std::vector<Later> under_way;
    Warp* current = nullptr;
    jmp_buf caller, outside;
    std::string failure;
};

inline Launch launch;

inline void Launch::enter()
{
    (*launch.what)();
    launch.current->has_ended = true;
    _longjmp(launch.caller, 1);
}

} // namespace emulation

// Of the first lane alone: the others' values are as its own.
template <class T> T __shfl_sync(unsigned, T x, int) { return x; }
template <class T> T __shfl_xor_sync(unsigned, T x, int) { return x; }
inline bool __any_sync(unsigned, bool x) { return x; }
inline bool __all_sync(unsigned, bool x) { return x; }
inline void __syncwarp() {}
inline void __syncthreads() { emulation::launch.meet("__syncthreads", emulation::launch.cta().meetings[0], emulation::launch.warps()); }
inline float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
