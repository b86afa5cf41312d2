// Numbers that the lanes of a warp hold for each other. "Data Movement and Conversion Instructions: shfl.sync".
#pragma once

namespace warptile {

constexpr int LANES = 32;

// The warp is whole wherever it is used.
class Lanes {
  public:
    // Lane i gets number(i).
    template <class Number> __device__ void fill(Number number) { value = number((int)(threadIdx.x % LANES)); }
    // The calling lane's number.
    __device__ int own(int) const { return value; }
    // The number of `lane`, which must be the same in all lanes of the warp.
    __device__ int operator[](int lane) const { return __shfl_sync(0xffffffff, value, lane); }
    // Bit i is set if lane i's number is not 0.
    __device__ unsigned not_zero() const { return __ballot_sync(0xffffffff, value != 0); }

  private:
    int value;
};

} // namespace warptile
