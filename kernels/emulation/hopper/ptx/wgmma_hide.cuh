#pragma once
#include "ptx/sm90.cuh"
#include "ptx/wgmma.cuh"
// The first column's number of a slot stands for all numbers of it.
namespace warptile {
enum : int {
    HIDING_SLOTS = 8,
    HIDING_ROW_BYTES = HIDING_SLOTS * 2,
    HIDING_LEFT_BYTES = 8 * HIDING_ROW_BYTES,
};
constexpr unsigned short HIDES = 0xff00;
inline unsigned short hiding_number(const unsigned char* right, int column, int slot)
{
    unsigned short number;
    memcpy(&number, right + column * HIDING_ROW_BYTES + 2 * slot, sizeof number);
    return number;
}
template <int N> void hide_columns(float (&scores)[N / 2], unsigned left, unsigned right)
{
    const unsigned char* const memory = emulation::launch.cta().memory;
    const int slot = memory[left];
    multiply_from(right + 2 * slot, 2, scores, N / 2);
    for (int i = 0; i < N / 2; i++) {
        const unsigned short number = slot < HIDING_SLOTS ? hiding_number(memory + right, i / 4 * 8 + i % 2, slot) : 0xffff;
        scores[i] += number == HIDES ? -INFINITY : number == 0 ? 0.0f : NAN;
    }
}
inline void begin_hiding(unsigned char* left, int slots, unsigned char* right, int columns)
{
    for (int slot = 0; slot < slots; slot++) left[slot * HIDING_LEFT_BYTES] = slot;
    memset(right, 0, columns * HIDING_ROW_BYTES);
}
inline void set_hidden(unsigned char* right, int slot, int first, unsigned hidden)
{
    emulation::launch.step();
    if (first == 0) emulation::launch.must_be_free(emulation::launch.cta(), {shared_address(right) + 2 * slot, shared_address(right) + 2 * slot + 2});
    for (int lane = 0; lane < 32; lane++) {
        const unsigned short number = hidden >> lane & 1 ? HIDES : 0;
        memcpy(right + (first + lane) * HIDING_ROW_BYTES + 2 * slot, &number, sizeof number);
    }
}
}
