// Numbers that the lanes of a warp hold for each other. "Data Movement and Conversion Instructions: shfl.sync".
#pragma once

namespace warptile {

constexpr int LANES = 32;

// The warp is whole wherever it is used.
class Lanes {
  public:
    // Lane i gets number(i).
    template <class Number> __device__ void fill(Number number) { value = number((int)(threadIdx.x % LANES)); }
    // That of the calling lane, which knows its number.
    __device__ int own(int) const { return value; }
    // That of any lane; all of them ask for the same one.
    __device__ int operator[](int lane) const { return __shfl_sync(0xffffffff, value, lane); }
    // Bit i: whether lane i's number is another than 0.
    __device__ unsigned not_zero() const { return __ballot_sync(0xffffffff, value != 0); }

  private:
    int value;
};

} // namespace warptile
