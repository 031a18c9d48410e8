// CUDA's <cuda_pipeline.h> for foreign kernels, on both hosts: asynchronous copies of 4, 8 or 16 bytes from global to
// shared memory, in groups (CUDA Programming Guide, "Pipeline Primitives Interface"). The last `zeros` bytes are not
// copied but become 0. On a GPU before sm_80 a thread waits for its copies.
#pragma once

#ifdef __CUDACC__
__device__ __forceinline__ void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    const unsigned at = (unsigned)__cvta_generic_to_shared(to), taken = (unsigned)(bytes - zeros);
    if (bytes == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(taken) : "memory");
    else if (bytes == 8) asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at), "l"(from), "r"(taken) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(taken) : "memory");
#else
    for (size_t i = 0; i < bytes; ++i) ((char*)to)[i] = i < bytes - zeros ? ((const char*)from)[i] : 0;
#endif
}
__device__ __forceinline__ void __pipeline_commit() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Wait for this thread's groups except the last `pending`, which must be a constant; values above 7 are treated as 7.
__device__ __forceinline__ void __pipeline_wait_prior(size_t pending) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    switch (pending) {
        case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
        case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
        case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
        case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
        case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
        case 5: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
        case 6: asm volatile("cp.async.wait_group 6;" ::: "memory"); break;
        default: asm volatile("cp.async.wait_group 7;" ::: "memory");
    }
#endif
}
#else
#include "cuda_on_cpu.hpp"

TO_RUNNER void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
    cuda_on_cpu::copy_later(to, from, bytes, zeros);
}
TO_RUNNER void __pipeline_commit() { cuda_on_cpu::commit_copies(); }
TO_RUNNER void __pipeline_wait_prior(size_t pending) { cuda_on_cpu::wait_copies((unsigned)pending); }
#endif
