// Hopper's asynchronous instructions on the CPU. The schedule (runner.hpp) determines when a copy or a product
// completes: at once, or as late as the waits allow. A barrier is a pointer to the runner's Phases in the kernel's 8
// bytes; a product reads its operand's bytes through the same swizzle.
#pragma once
#include "cuda_on_cpu.hpp"

struct MBarrier {
    cuda_on_cpu::Phases* phases;  // of this block; recreated by init
};

TO_RUNNER void mbarrier_init(MBarrier* b, int arrivals) { b->phases = cuda_on_cpu::phases(b, arrivals); }
TO_RUNNER void mbarrier_init_done() {
    cuda_on_cpu::proxy_fence();
    __syncthreads();
}
TO_RUNNER void mbarrier_arrive(MBarrier* b) { cuda_on_cpu::arrive(b->phases, 0); }
TO_RUNNER void mbarrier_wait(MBarrier* b, int parity) { cuda_on_cpu::wait_phase(b->phases, parity); }
TO_RUNNER void mbarrier_expect(MBarrier* b, int bytes) { cuda_on_cpu::arrive(b->phases, bytes); }
TO_RUNNER void bulk_copy(void* to, const void* from, int bytes, MBarrier* b) {
    cuda_on_cpu::bulk_copy(to, from, bytes, b->phases);
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
TO_RUNNER void wgmma_commit() { cuda_on_cpu::commit_products(); }
template <int PENDING>
TO_RUNNER void wgmma_wait() {
    cuda_on_cpu::wait_products(PENDING);
}
template <int COUNT>
void wgmma_ready(float (&)[COUNT]) {}

struct WgmmaLane {
    const uint32_t* a;
    float* d;
    bool done;
};
typedef float SixteenRows __attribute__((vector_size(64)));

template <bool ADD, int COUNT>
void wgmma_of_warp(const cuda_on_cpu::WarpProduct& p) {
    SixteenRows rows[16];  // of a, by k
    for (int l = 0; l < 32; ++l)
        for (int i = 0; i < 4; ++i)
            for (int high = 0; high < 2; ++high)
                rows[l % 4 * 2 + i / 2 * 8 + high][l / 4 + i % 2 * 8] = half_to_float((uint16_t)(p.a[l][i] >> 16 * high));
    for (int column = 0; column < 2 * COUNT; ++column) {
        uint16_t halves[16];
        for (int k = 0; k < 16; k += 8) {
            const uintptr_t at = (uintptr_t)p.b + column * 128 + 2 * k;
            memcpy(&halves[k], (const void*)(at ^ (at >> 7 & 7) << 4), 16);
        }
        const int first = column / 8 * 4 + column % 2;
        SixteenRows sums = {};
        if (ADD)
            for (int row = 0; row < 16; ++row) sums[row] = p.d[row % 8 * 4 + column % 8 / 2][first + row / 8 * 2];
        for (int k = 0; k < 16; ++k) sums += rows[k] * half_to_float(halves[k]);
        for (int row = 0; row < 16; ++row) p.d[row % 8 * 4 + column % 8 / 2][first + row / 8 * 2] = sums[row];
    }
}

// A lane passes the location of its registers. The first lane of its warp to resume issues the product for all.
template <bool ADD, int COUNT>
void wgmma(float (&d)[COUNT], const uint32_t (&a)[4], SharedMatrix b) {
    WgmmaLane own{a, d, false};
    const uint64_t* given = cuda_on_cpu::gather((uint64_t)(uintptr_t)&own);
    if (own.done) return;
    cuda_on_cpu::WarpProduct product{&wgmma_of_warp<ADD, COUNT>, {}, {}, b.start, 0};
    for (int l = 0; l < 32; ++l) {
        WgmmaLane* lane = (WgmmaLane*)(uintptr_t)given[l];
        product.a[l] = lane->a, product.d[l] = lane->d;
        lane->done = true;
    }
    cuda_on_cpu::multiply(product);
}
