// Memory that nobody may touch outside of its bounds, and how the program ends if something does.
#pragma once
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace warptile {

// What runs, for those that end it.
inline char running[200] = "";

inline void end(const char* why)
{
    // Nothing else may be called by what handles a signal.
    const auto say = [](const char* text) { (void)!write(STDOUT_FILENO, text, strlen(text)); };
    say(running);
    say(why);
    _exit(1);
}

// Memory between two pages that nobody may touch, and which end the process: it ends where the second begins. What lies before it is
// marked.
template <class T> class Guarded {
  public:
    explicit Guarded(const std::vector<T>& from) : count(from.size())
    {
        const size_t page = sysconf(_SC_PAGESIZE), bytes = count * sizeof(T), inner = (bytes + page - 1) / page * page;
        all = inner + 2 * page;
        base = static_cast<unsigned char*>(mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (base == MAP_FAILED || (inner && mprotect(base + page, inner, PROT_READ | PROT_WRITE))) end("no memory\n");
        marks = base + page;
        values = reinterpret_cast<T*>(base + page + inner - bytes);
        memset(marks, MARK, inner - bytes);
        std::copy(from.begin(), from.end(), values);
    }
    Guarded(const Guarded&) = delete;
    ~Guarded() { munmap(base, all); }

    T* data() const { return values; }
    size_t size() const { return count; }
    T& operator[](size_t i) const { return values[i]; }
    void fill(T value) { std::fill_n(values, count, value); }
    bool is_unharmed() const
    {
        return std::all_of(marks, reinterpret_cast<unsigned char*>(values), [](unsigned char mark) { return mark == MARK; });
    }

  private:
    static constexpr unsigned char MARK = 0xa5;
    size_t count, all;
    unsigned char *base, *marks;
    T* values;
};

template <class T> using Memory = std::unique_ptr<Guarded<T>>;
template <class T> Memory<T> guarded(const std::vector<T>& from) { return std::make_unique<Guarded<T>>(from); }

} // namespace warptile
