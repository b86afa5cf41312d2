// The threads of a CTA, one of which runs at a time. They take turns where one waits for another.
#pragma once
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <ucontext.h>
#include <vector>

struct Dim { unsigned x, y = 0, z = 0; };
inline thread_local constinit Dim threadIdx{}; inline Dim blockIdx, blockDim = {1, 1, 1}, gridDim = {1, 1, 1};

class Threads {
  public:
    // Runs `body` as threads 0 to `count` - 1, in turns that follow from `seed`. Now and then a warp falls behind the others.
    static void run(int count, unsigned seed, const std::function<void()>& body)
    {
        if (fibers.size() < (size_t)count) fibers.resize(count);
        what = &body;
        std::mt19937 engine(seed);
        for (int i = 0; i < count; i++) fibers[i].start();
        int running = count, slow_warp = -1, turns = 0;
        while (running > 0) {
            if (turns-- == 0) {
                turns = engine() % 4096; // some groups of keys
                slow_warp = engine() % 4 ? (int)(engine() % (count / 32)) : -1;
            }
            progress = false;
            const unsigned first = engine() % count;
            for (int i = 0; i < count; i++) {
                const unsigned index = (first + i) % count;
                if (fibers[index].has_ended || fibers[index].is_blocked() || (int)index / 32 == slow_warp) continue;
                threadIdx.x = index;
                if (!__builtin_setjmp(caller)) fibers[index].go_on();
                running -= fibers[index].has_ended;
                progress |= fibers[index].has_ended;
            }
            // The others wait for the slow warp.
            if (!progress) turns = 0, slow_warp = -1;
        }
    }
    template <class Condition> static void wait_until(Condition condition)
    {
        while (!condition())
            if (!__builtin_setjmp(fibers[threadIdx.x].here)) go_back();
        progress = true;
    }
    // The same for a number that is not what it was, which is looked at without giving this thread its turn.
    static void wait_for_change(const unsigned& number, unsigned from)
    {
        Fiber& fiber = fibers[threadIdx.x];
        fiber.number = &number;
        fiber.from = from;
        wait_until([&] { return number != from; });
        fiber.number = nullptr;
    }

  private:
    // `setcontext` begins one; the compiler's `longjmp` is many times faster, as it leaves signals alone.
    struct Fiber {
        ucontext_t beginning;
        void* here[5];
        std::unique_ptr<char[]> stack;
        bool has_begun = false, has_ended = false;
        const unsigned* number = nullptr;
        unsigned from = 0;

        bool is_blocked() const { return number && *number == from; }
        void start()
        {
            constexpr size_t BYTES = 256 << 10;
            if (!stack) stack.reset(new char[BYTES]);
            if (getcontext(&beginning)) abort();
            beginning.uc_stack = {stack.get(), 0, BYTES};
            beginning.uc_link = nullptr;
            has_begun = has_ended = false;
            makecontext(&beginning, enter, 0);
        }
        void go_on()
        {
            if (has_begun) jump(here);
            has_begun = true;
            setcontext(&beginning);
        }
    };
    // As functions of their own: a function that jumps must not be one that is jumped to.
    [[noreturn, gnu::noinline]] static void jump(void** to) { __builtin_longjmp(to, 1); }
    [[noreturn, gnu::noinline]] static void go_back() { jump(caller); }
    static void enter()
    {
        (*what)();
        fibers[threadIdx.x].has_ended = true;
        go_back();
    }

    static inline bool progress; // of some thread, since all had their turn
    static inline void* caller[5];
    static inline std::vector<Fiber> fibers;
    static inline const std::function<void()>* what;
};

// Called whenever all threads of a CTA have met, before they go on.
inline std::function<void()> at_barrier;

// Where some threads of a CTA meet.
class Barrier {
  public:
    Barrier(unsigned threads, bool is_of_cta) : threads(threads), is_of_cta(is_of_cta) {}
    void arrive_and_wait()
    {
        arrive_and_wait([] {});
    }
    // The last to arrive does `last` before the others go on.
    template <class Last> void arrive_and_wait(Last last)
    {
        const unsigned mine = phase;
        if (++arrived < threads) return Threads::wait_for_change(phase, mine);
        if (is_of_cta && at_barrier) at_barrier();
        last();
        arrived = 0;
        phase++;
    }

  private:
    const unsigned threads;
    const bool is_of_cta;
    unsigned arrived = 0, phase = 0;
};
