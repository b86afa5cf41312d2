// Words that the four lanes of a quad load for each other, so that a load has neighboring bytes of a row. "Data Movement and Conversion
// Instructions: shfl.sync".
#pragma once

namespace warptile {

enum { QUAD_LANES = 4 }; // a variable would be a symbol in all images

// A number of each lane of a quad. The warp is whole wherever it is used.
class QuadNumbers {
  public:
    // Lane i of the quad gets number(i).
    template <class Number> __device__ void fill(Number number) { value = number((int)(threadIdx.x % QUAD_LANES)); }
    // The number of lane i of the quad.
    __device__ unsigned operator[](int i) const { return __shfl_sync(0xffffffff, value, i, QUAD_LANES); }

  private:
    unsigned value;
};

// Four words of each lane of a quad. The warp is whole wherever it is used.
class QuadWords {
  public:
    // Lane i of the quad gets words(i).
    template <class Words> __device__ void fill(Words of_lane)
    {
        const uint4 own = of_lane((int)(threadIdx.x % QUAD_LANES));
        words[0] = own.x, words[1] = own.y, words[2] = own.z, words[3] = own.w;
    }

    // Lane j's word i becomes lane i's word j.
    __device__ void transpose()
    {
        exchange(words[0], words[2], 2);
        exchange(words[1], words[3], 2);
        exchange(words[0], words[1], 1);
        exchange(words[2], words[3], 1);
    }

    // The calling lane's.
    __device__ unsigned& operator[](int i) { return words[i]; }
    __device__ const unsigned& operator[](int i) const { return words[i]; }

  private:
    // `high` of the lane without `bit` for `low` of the lane with it.
    __device__ static void exchange(unsigned& low, unsigned& high, unsigned bit)
    {
        const bool has_bit = threadIdx.x & bit;
        const unsigned other = __shfl_xor_sync(0xffffffff, has_bit ? low : high, bit);
        low = has_bit ? other : low;
        high = has_bit ? high : other;
    }

    unsigned words[QUAD_LANES];
};

} // namespace warptile
