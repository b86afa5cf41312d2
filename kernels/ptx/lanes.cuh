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

  private:
    int value;
};

} // namespace warptile
