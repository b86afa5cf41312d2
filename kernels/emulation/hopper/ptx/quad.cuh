#pragma once
namespace warptile {
enum { QUAD_LANES = 4 };
// Those of all lanes of the first lane's quad.
class QuadNumbers {
  public:
    template <class Number> void fill(Number number)
    {
        for (int i = 0; i < QUAD_LANES; i++) values[i] = number(i);
    }
    unsigned operator[](int i) const { return values[i]; }

  private:
    unsigned values[QUAD_LANES];
};
class QuadWords {
  public:
    template <class Words> void fill(Words of_lane)
    {
        for (int i = 0; i < QUAD_LANES; i++) {
            const uint4 own = of_lane(i);
            const unsigned row[] = {own.x, own.y, own.z, own.w};
            for (int j = 0; j < QUAD_LANES; j++) words[i][j] = row[j];
        }
    }
    void transpose()
    {
        for (int i = 0; i < QUAD_LANES; i++)
            for (int j = 0; j < i; j++) std::swap(words[i][j], words[j][i]);
    }
    unsigned& operator[](int i) { return words[0][i]; }
    const unsigned& operator[](int i) const { return words[0][i]; }

  private:
    unsigned words[QUAD_LANES][QUAD_LANES]; // of each lane
};
}
