// Clearing by a multiplication.
#pragma once

namespace warptile {

// Replaces a finite number by 0. It does not take the unit of selections.
// PTX ISA, "Predicated Execution".
__device__ inline void clear_unless(bool is_kept, float& x)
{
    asm("{\n\t.reg .pred clear;\n\tsetp.eq.u32 clear, %1, 0;\n\t@clear mul.f32 %0, %0, 0f00000000;\n\t}"
        : "+f"(x)
        : "r"((unsigned)is_kept));
}

} // namespace warptile
