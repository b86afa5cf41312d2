#pragma once
namespace warptile { inline void prefetch_box(const TensorMap&, int, int, int, int) {} }
