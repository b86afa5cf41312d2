#pragma once
namespace warptile {
// Elements are f16.
inline unsigned at_least(unsigned numbers, unsigned) { return numbers; }
}
