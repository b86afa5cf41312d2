// kernels/ptx/clear.cuh. What is compared is a word of halves, all bits of which are set if it is kept.
#pragma once

namespace warptile {

template <class Element> struct KeptByBytes {
    enum : unsigned { HIGH = 1 };
    static unsigned least(unsigned threshold) { return 0x100 + threshold; }
    static unsigned compared(unsigned numbers, unsigned least)
    {
        const auto half = [](unsigned number, unsigned least) { return number >= least ? 0xffffu : 0; };
        return half(numbers & 0xffff, least & 0xffff) | half(numbers >> 16, least >> 16) << 16;
    }
    static unsigned kept(unsigned numbers, unsigned compared) { return numbers & compared; }
};

} // namespace warptile
