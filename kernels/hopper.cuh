// Hopper's asynchronous instructions (sm_90a), as functions for both hosts: bulk copies into shared memory, the
// barriers that they complete on, and products by a warpgroup (four warps). PTX ISA 9.0, sections 9.7.9.25, 9.7.13.15
// and 9.7.15.
#pragma once
#include "common.cuh"

#ifdef __CUDACC__
// Shared memory whose size the launch gives.
#define DYNAMIC_SHARED(NAME) extern __shared__ __align__(1024) uint8_t NAME[]

struct MBarrier {
    uint64_t word;
};

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void mbarrier_init(MBarrier* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}

// Called after the barriers are initialised, before anything else may use them, including the copy engine.
__device__ __forceinline__ void mbarrier_init_done() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
}

__device__ __forceinline__ void mbarrier_arrive(MBarrier* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

// Wait until the phase of this parity has ended.
__device__ __forceinline__ void mbarrier_wait(MBarrier* b, int parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra WAIT;\n}" ::"r"(shared_address(b)),
        "r"(parity)
        : "memory");
}

// One arrival at `b`, whose phase completes with the last of the bytes that `bulk_copy` brings.
__device__ __forceinline__ void mbarrier_expect(MBarrier* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}

// `bytes` (a multiple of 16) from global to shared memory, both aligned to 16.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, int bytes, MBarrier* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}

// A warpgroup releases registers, or acquires more.
template <int COUNT>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Fragments must be in their registers before `wgmma_begin`: the compiler does not know that it needs them.
__device__ __forceinline__ void pin(uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// A matrix [columns, 64 halves] in shared memory, aligned to 1024: rows of 128 bytes whose eight 16-byte chunks c are
// at c ^ (row % 8).
struct SharedMatrix {
    uint64_t descriptor;
};

__device__ __forceinline__ SharedMatrix shared_matrix(const void* p) {
    const uint64_t start = (shared_address(p) & 0x3FFFF) >> 4, rows_of_8 = 1024 >> 4, swizzle_128 = 1;
    return {start | 1ull << 16 | rows_of_8 << 32 | swizzle_128 << 62};
}

// From this row and half on; rows a multiple of 8, halves of 16.
__device__ __forceinline__ SharedMatrix part(SharedMatrix m, int row, int half) {
    return {m.descriptor + (uint64_t)((row * 128 + half * 2) >> 4)};
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The compiler must not move uses of d across a wait.
template <int COUNT>
__device__ __forceinline__ void wgmma_ready(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d (64, COLUMNS) = a (64, 16) · b (COLUMNS, 16)ᵀ, added to d if ADD; halves in, float32 out. Lane l of warp w has, with
// g = l / 4 and c = l % 4,
//     a[0], a[2]   row 16w + g, halves 2c, 2c+1 and 2c+8, 2c+9        a[1], a[3]   of row 16w + g + 8
//     d[4j + i]    column 8j + 2c + i % 2, row 16w + g + 8 (i / 2)
template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[8], const uint32_t (&a)[4], SharedMatrix b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7}, "
        "{%8,%9,%10,%11}, %12, %13, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "n"((int)ADD));
}
template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[16], const uint32_t (&a)[4], SharedMatrix b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
        "{%16,%17,%18,%19}, %20, %21, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "n"((int)ADD));
}
template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t (&a)[4], SharedMatrix b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, %36, %37, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
          "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "n"((int)ADD));
}
#else
#include "emulator/hopper_on_cpu.hpp"
#endif
