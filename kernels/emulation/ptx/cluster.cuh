#pragma once
// The CTAs of a cluster run one after the other, twice: the second time they read what the first time has left in their shared memory.
namespace warptile {
inline std::vector<unsigned char> parts_of_cta[8];
// Arrivals and waits of each thread. All threads of a cluster must arrive equally often, and once before each wait.
inline int cluster_arrivals[256], cluster_waits[256];
inline void cluster_arrive()
{
    if (cluster_arrivals[threadIdx.x]++ != cluster_waits[threadIdx.x]) end("a thread arrives at a cluster's barrier twice\n");
}
inline void cluster_wait()
{
    if (++cluster_waits[threadIdx.x] != cluster_arrivals[threadIdx.x]) end("a thread waits at a cluster's barrier without arriving\n");
    __syncthreads();
}
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
