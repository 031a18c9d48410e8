// Hopper's asynchronous instructions on the CPU: a copy is done at once, a barrier is a Barrier of cuda_on_cpu.hpp beside
// the kernel's 8 bytes, a product reads its operand's bytes through the same swizzle.
#pragma once
#include "cuda_on_cpu.hpp"

struct MBarrier {
    cuda_on_cpu::Barrier* barrier;  // of this block; made anew by init
    int pending;                    // bytes that are expected
};

inline void mbarrier_init(MBarrier* b, int arrivals) {
    b->pending = 0;
    b->barrier = &(cuda_on_cpu::runner->mbarriers[b] = cuda_on_cpu::Barrier{arrivals});
}
inline void mbarrier_init_done() { __syncthreads(); }
inline void mbarrier_arrive(MBarrier* b) { b->barrier->arrive(); }
inline void mbarrier_wait(MBarrier* b, int parity) {
    // the phase of parity p has ended once an odd (p = 0) or even number of phases has, the first at least
    while ((int)(b->barrier->generation & 1) == parity) cuda_on_cpu::runner->sleep(*b->barrier);
}
inline void mbarrier_expect(MBarrier* b, int bytes) { b->pending += bytes; }
inline void bulk_copy(void* to, const void* from, int bytes, MBarrier* b) {
    memcpy(to, from, (size_t)bytes);
    if (!(b->pending -= bytes)) b->barrier->arrive();
}
template <int>
void fewer_registers() {}
template <int>
void more_registers() {}

struct SharedMatrix {
    const uint8_t* start;
};
inline SharedMatrix shared_matrix(const void* p) { return {(const uint8_t*)p}; }
inline SharedMatrix part(SharedMatrix m, int row, int half) { return {m.start + row * 128 + half * 2}; }

inline void wgmma_begin() {}
template <class A>
void pin(A&) {}
inline void wgmma_commit() {}
template <int>
void wgmma_wait() {}
template <int COUNT>
void wgmma_ready(float (&)[COUNT]) {}

struct WgmmaLane {
    const uint32_t* a;
    float* d;
    bool done;
};
typedef float SixteenRows __attribute__((vector_size(64)));

// A lane gives where its registers are. The last one of its warp to come goes on first, and computes for all.
template <bool ADD, int COUNT>
void wgmma(float (&d)[COUNT], const uint32_t (&a)[4], SharedMatrix b) {
    WgmmaLane own{a, d, false};
    const uint64_t* given = cuda_on_cpu::runner->gather((uint64_t)(uintptr_t)&own);
    if (own.done) return;
    WgmmaLane* lanes[32];
    for (int l = 0; l < 32; ++l) lanes[l] = (WgmmaLane*)(uintptr_t)given[l];
    SixteenRows rows[16];  // of a, by k
    for (int l = 0; l < 32; ++l)
        for (int i = 0; i < 4; ++i)
            for (int high = 0; high < 2; ++high)
                rows[l % 4 * 2 + i / 2 * 8 + high][l / 4 + i % 2 * 8] = half_to_float((uint16_t)(lanes[l]->a[i] >> 16 * high));
    for (int column = 0; column < 2 * COUNT; ++column) {
        uint16_t halves[16];
        for (int k = 0; k < 16; k += 8) {
            const uintptr_t at = (uintptr_t)b.start + column * 128 + 2 * k;
            memcpy(&halves[k], (const void*)(at ^ (at >> 7 & 7) << 4), 16);
        }
        const int first = column / 8 * 4 + column % 2;
        SixteenRows sums = {};
        if (ADD)
            for (int row = 0; row < 16; ++row) sums[row] = lanes[row % 8 * 4 + column % 8 / 2]->d[first + row / 8 * 2];
        for (int k = 0; k < 16; ++k) sums += rows[k] * half_to_float(halves[k]);
        for (int row = 0; row < 16; ++row) lanes[row % 8 * 4 + column % 8 / 2]->d[first + row / 8 * 2] = sums[row];
    }
    for (WgmmaLane* lane : lanes) lane->done = true;
}
