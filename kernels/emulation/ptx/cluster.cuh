#pragma once
// The CTAs of a cluster run one after the other, twice: the second time they read what the first time has left in their shared memory.
namespace warptile {
inline std::vector<unsigned char> parts_of_cta[8];
inline void cluster_arrive() {}
inline void cluster_wait() { __syncthreads(); }
inline unsigned address_in_cta(unsigned address, unsigned rank) { return address | rank << 24; }
template <class T> T load_of_cluster(unsigned from)
{
    T value = {};
    const auto& part = parts_of_cta[from >> 24];
    if ((from & 0xffffff) + sizeof(T) <= part.size()) memcpy(&value, part.data() + (from & 0xffffff), sizeof(T));
    return value;
}
inline float2 load_two_of_cluster(unsigned from) { return load_of_cluster<float2>(from); }
inline float4 load_four_of_cluster(unsigned from) { return load_of_cluster<float4>(from); }
}
