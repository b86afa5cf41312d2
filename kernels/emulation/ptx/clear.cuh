// kernels/ptx/clear.cuh.
#pragma once

namespace warptile {

__device__ inline void clear_unless(bool is_kept, float& x) { x *= is_kept ? 1.0f : 0.0f; }

} // namespace warptile
