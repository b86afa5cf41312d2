#pragma once
namespace warptile {
constexpr int PREFETCHED_BYTES = 128;
// The address has to be one.
inline void prefetch_to_l2(const void* address) { (void)*static_cast<const volatile unsigned char*>(address); }
}
