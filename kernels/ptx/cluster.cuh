// Synchronization within a cluster, from sm_90 on. PTX ISA 8.7, "Parallel Synchronization and Communication Instructions:
// barrier.cluster", "Data Movement and Conversion Instructions: mapa, ld".
#pragma once

#include "ptx/load.cuh"

namespace warptile {

// Says that this thread has come to the cluster's next barrier: who waits for it sees what this thread has written. Every thread of the
// cluster does, and waits before it does so again.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Where CTA `rank` of the cluster has what this one has at `address`; both in shared memory.
__device__ inline unsigned address_in_cta(unsigned address, unsigned rank)
{
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// From the shared memory of any CTA of the cluster.
WARPTILE_LOADS_OF_FLOATS("shared::cluster", "r", load_two_of_cluster, unsigned, load_four_of_cluster, unsigned)

} // namespace warptile
