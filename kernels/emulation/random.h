// Random numbers that follow from a seed, and tensors of them.
#pragma once
#include "base/abi.cuh"
#include "base/e4m3.cuh"

#include <random>
#include <vector>

namespace warptile {

template <class T> T rounded(float x) { return narrow<T>(x); }
template <> inline E4m3 rounded<E4m3>(float x) { return to_e4m3(x); }

class Random {
  public:
    explicit Random(unsigned seed) : engine(seed) {}
    int between(int least, int most) { return least + (int)(engine() % (unsigned)(most - least + 1)); }
    bool one_in(int n) { return between(1, n) == 1; }
    int any() { return (int)engine(); }
    float normal() { return distribution(engine); }
    // Divided by `scale`, as values of T.
    template <class T> std::vector<T> normals(size_t count, float scale = 1)
    {
        std::vector<T> values(count);
        for (T& value : values) value = rounded<T>(normal() / scale);
        return values;
    }
    template <class T> void shuffle(std::vector<T>& list) { std::shuffle(list.begin(), list.end(), engine); }

  private:
    std::mt19937 engine;
    std::normal_distribution<float> distribution;
};

// One of the two diagonals that kernels know, or one that begins at any key: then the host moves the sides, which may be negative
// (`scoring` in crates/attention/src/gpu/block.rs).
inline void put_diagonal(Random& random, Scoring& scoring, int query_len, int key_len)
{
    const bool anywhere = random.one_in(3);
    scoring.align_top_left = anywhere || random.one_in(5);
    const int offset = anywhere ? random.between(-query_len, key_len) : 0;
    if (scoring.window_left != WINDOW_UNLIMITED) scoring.window_left = std::max(scoring.window_left - offset, -key_len);
    if (scoring.window_right != WINDOW_UNLIMITED) scoring.window_right = std::max(scoring.window_right + offset, -query_len);
}

// Strides of a tensor over scores, which may be one number for all batches, heads or queries; and how many elements it has up to its last.
inline size_t reach_of_scores(Random& random, const Forward& block, long long& of_batch, long long& of_head, long long& of_row, long long& of_key)
{
    of_key = random.one_in(4) ? 2 : 1;
    long long all = std::max(block.sequences.key_len, 1) * of_key, reach = all - of_key + 1;
    const auto along = [&](int extent, long long& stride) {
        stride = random.one_in(3) ? 0 : all;
        if (stride == 0) return;
        reach += (extent - 1) * stride;
        all *= std::max(extent, 1);
    };
    along(block.sequences.query_len, of_row);
    along(block.heads, of_head);
    along(block.sequences.batch, of_batch);
    return reach;
}

template <class T> const T NOT_A_NUMBER = rounded<T>(NAN);

} // namespace warptile
