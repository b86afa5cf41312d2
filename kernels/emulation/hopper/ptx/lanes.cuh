#pragma once
namespace warptile {
constexpr int LANES = 32;
// Those of all lanes.
class Lanes {
  public:
    template <class Number> void fill(Number number)
    {
        for (int lane = 0; lane < LANES; lane++) values[lane] = number(lane);
    }
    int operator[](int lane) const { return values[lane]; }
    int own(int lane) const { return values[lane]; }
    unsigned not_zero() const
    {
        unsigned bits = 0;
        for (int lane = 0; lane < LANES; lane++) bits |= (values[lane] != 0 ? 1u : 0u) << lane;
        return bits;
    }

  private:
    int values[LANES];
};
}
