#pragma once
namespace warptile {
// The address has to be one.
inline void prefetch_to_l1(const void* address) { (void)*static_cast<const volatile unsigned char*>(address); }
}
