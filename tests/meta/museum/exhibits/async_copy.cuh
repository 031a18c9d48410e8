// Copies of four bytes from global to shared memory that go on while the thread does other things. On the CPU they
// happen as late as the waits allow, which is what a GPU may do.
#pragma once
#include "museum.cuh"

// A kernel says ASYNC_COPIES once, before its first copy.
#ifdef __CUDACC__
#define ASYNC_COPIES
__device__ inline void async_copy4(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}
__device__ inline void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait for this thread's groups except the last PENDING.
#define async_wait(PENDING) asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory")
#else
// This thread's copies that are on their way, by group.
struct AsyncCopies {
    struct { u32* to; const u32* from; int group; } left[32];
    int n = 0, group = 0;
};
#define ASYNC_COPIES AsyncCopies copies
#define async_copy4(TO, FROM) (copies.left[copies.n++] = {(u32*)(TO), (const u32*)(FROM), copies.group})
#define async_commit() (++copies.group)
#define async_wait(PENDING)                                                       \
    do {                                                                          \
        int kept = 0;                                                             \
        for (int c = 0; c < copies.n; ++c)                                        \
            if (copies.left[c].group + (PENDING) < copies.group) *copies.left[c].to = *copies.left[c].from; \
            else copies.left[kept++] = copies.left[c];                            \
        copies.n = kept;                                                          \
    } while (0)
#endif
