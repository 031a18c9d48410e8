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

template <bool ADD, int COUNT>
void wgmma(float (&d)[COUNT], const uint32_t (&a)[4], SharedMatrix b) {
    float rows[2][16];  // of this lane's two rows, from its quad
    const int lane = cuda_on_cpu::runner->lane(), c = lane % 4;
    for (int pair = 0; pair < 2; ++pair) {
        const uint64_t* all = cuda_on_cpu::runner->gather(a[2 * pair] | (uint64_t)a[2 * pair + 1] << 32);
        for (int other = 0; other < 4; ++other) {
            const uint64_t word = all[(lane & ~3) + other];
            for (int row = 0; row < 2; ++row)
                for (int i = 0; i < 2; ++i)
                    rows[row][8 * pair + 2 * other + i] = half_to_float((uint16_t)(word >> (32 * row + 16 * i)));
        }
    }
    for (int j = 0; j < COUNT / 4; ++j) {
        for (int i = 0; i < 2; ++i) {
            float column[16];
            for (int k = 0; k < 16; ++k) {
                const uintptr_t at = (uintptr_t)b.start + (8 * j + 2 * c + i) * 128 + 2 * k;
                uint16_t bits;
                memcpy(&bits, (const void*)(at ^ (at >> 7 & 7) << 4), 2);
                column[k] = half_to_float(bits);
            }
            for (int row = 0; row < 2; ++row) {
                float sum = ADD ? d[4 * j + 2 * row + i] : 0.0f;
                for (int k = 0; k < 16; ++k) sum += rows[row][k] * column[k];
                d[4 * j + 2 * row + i] = sum;
            }
        }
    }
}
