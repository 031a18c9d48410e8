// Asynchronous copies, barriers for a subset of warps, and overlapping launches, as functions that work on every GPU
// and on both hosts. PTX ISA 9.0, sections 9.7.9.25, 9.7.13.1 and 9.7.13.13.
#pragma once
#include "common.cuh"
#include "hopper.cuh"

// Whether the copies and barriers of hopper.cuh are available.
#if (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900) || defined(BEFORE_SM_90)  // the CPU host may request either
constexpr bool BULK_COPIES = false;
#else
constexpr bool BULK_COPIES = true;
#endif

#ifdef __CUDACC__
// 16 bytes from global to shared memory, both aligned to 16. Before sm_80 the thread waits for them.
__device__ __forceinline__ void async_copy16(void* to, const void* from) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
#else
    *(uint4*)to = *(const uint4*)from;
#endif
}

// Commit the copies that this thread began since the last call as one group.
__device__ __forceinline__ void async_commit() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait for this thread's groups except the last PENDING.
template <int PENDING>
__device__ __forceinline__ void async_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Barrier `id` (1 … 15) of a number of threads, in whole warps: arrive; `sync` also waits for the others.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Let the next launch start, if it may overlap this one. It waits with the next function.
__device__ __forceinline__ void let_next_launch_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Wait until the previous launch has ended and its results can be read.
__device__ __forceinline__ void wait_for_last_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Order everything that is visible to this thread before the next operations of the copy engine: the initialization of
// barriers, and reads of shared memory. A barrier of threads does not: loads can still be in flight when a copy
// overwrites their source.
__device__ __forceinline__ void before_bulk_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
#else
TO_RUNNER void before_bulk_copies() { cuda_on_cpu::proxy_fence(); }
TO_RUNNER void async_copy16(void* to, const void* from) { cuda_on_cpu::copy_later(to, from, 16); }
TO_RUNNER void async_commit() { cuda_on_cpu::commit_copies(); }
template <int PENDING>
TO_RUNNER void async_wait() {
    cuda_on_cpu::wait_copies(PENDING);
}
TO_RUNNER void barrier_sync(int id, int threads) { cuda_on_cpu::sync_named(id, threads); }
TO_RUNNER void barrier_arrive(int id, int threads) { cuda_on_cpu::arrive_named(id, threads); }
inline void let_next_launch_start() {}
inline void wait_for_last_launch() {}
#endif
