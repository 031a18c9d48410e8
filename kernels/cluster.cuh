// Thread blocks of a cluster run at the same time and write each other's shared memory (sm_90 or later; PTX ISA 9.0,
// sections 9.7.9.22, mapa, and 9.7.13.4, barrier.cluster). Here they share work whose result every block needs: a block
// computes one of CLUSTER shares and stores it in every block.
#pragma once
#include "common.cuh"

#ifndef CLUSTER
#define CLUSTER 1
#endif

#if defined(__CUDACC__) && CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_CLUSTERS
#endif

// A share is computed by one of SHARERS blocks: those of a cluster, or a single block. A block must not store to
// another one before `others_run`, nor read what others stored before `meet`. The CPU runs blocks one after another:
// there, each computes all shares and stores them only in its own memory.
template <int SHARERS>
struct Sharers {
    static_assert(SHARERS == 1 || SHARERS == CLUSTER, "all blocks of a cluster share");
    static constexpr int SHARES = SHARERS;
#ifdef __CUDACC__
    static constexpr int COPIES = SHARERS;

    static __device__ __forceinline__ int first_share() {
        if (SHARERS == 1) return 0;
        uint32_t rank;
        asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        return (int)rank;
    }
    static __device__ __forceinline__ int last_share() { return first_share(); }

    // The address in a block of the cluster that corresponds to `p` in this one.
    template <class T>
    static __device__ __forceinline__ T* in(T* p, int block) {
        if (SHARERS == 1) return p;
        uint64_t there;
        asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(block));
        return (T*)there;
    }

    static __device__ __forceinline__ void begin() {
        if (SHARERS > 1) asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    }
    static __device__ __forceinline__ void others_run() {
        if (SHARERS > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    }
    // Also a barrier of this block's threads.
    static __device__ __forceinline__ void meet() {
        if (SHARERS == 1) {
            __syncthreads();
        } else {
            asm volatile("barrier.cluster.arrive.release;" ::: "memory");
            asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
        }
    }
#else
    static constexpr int COPIES = 1;
    static int first_share() { return 0; }
    static int last_share() { return SHARERS - 1; }
    template <class T>
    static T* in(T* p, int) {
        return p;
    }
    static void begin() {}
    static void others_run() {}
    static void meet() { __syncthreads(); }
#endif
};
