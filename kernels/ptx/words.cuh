// Four neighbouring words of shared memory.
#pragma once

namespace warptile {

__device__ inline void store_four_words(unsigned address, const unsigned (&words)[4])
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}
__device__ inline void load_four_words(unsigned (&words)[4], unsigned address)
{
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

} // namespace warptile
