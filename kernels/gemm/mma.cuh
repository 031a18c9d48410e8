// The tensor cores' integer product of 16 × 32 and 32 × 8 codes, held by a warp: lane l has, for row l/4 (and l/4 + 8)
// of A and for column l/4 of B, the codes 4c … 4c+3 and 16+4c …, c = l%4, in one word each, and gets 4 sums.
//
//     a[0] row l/4, codes 4c…    a[1] row l/4 + 8, codes 4c…    a[2] row l/4, codes 16+4c…    a[3] row l/4 + 8, 16+4c…
//     b[0] codes 4c…             b[1] codes 16+4c…
//     d[0], d[1] row l/4, columns 2c and 2c+1                   d[2], d[3] row l/4 + 8
//
// Every sum starts at `start`. Codes are signed bytes. `mma_half` multiplies 16 codes: a[0] and a[1] or a[2] and a[3] by
// b[0] or b[1].
#pragma once
#include "../common.cuh"

#ifdef __CUDACC__
__device__ __forceinline__ void mma(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int start) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start));
#else  // sm_75 has a quarter of this instruction: 8 rows, 16 codes
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int e[2];
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %4};"
            : "=r"(e[0]), "=r"(e[1])
            : "r"(a[half]), "r"(b[0]), "r"(start));
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
            : "=r"(d[2 * half]), "=r"(d[2 * half + 1])
            : "r"(a[2 + half]), "r"(b[1]), "r"(e[0]), "r"(e[1]));
    }
#endif
}

__device__ __forceinline__ void mma_half(int (&d)[4], uint32_t upper, uint32_t lower, uint32_t b, int start) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(upper), "r"(lower), "r"(b), "r"(start));
#else
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %4};"
        : "=r"(d[0]), "=r"(d[1])
        : "r"(upper), "r"(b), "r"(start));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %4};"
        : "=r"(d[2]), "=r"(d[3])
        : "r"(lower), "r"(b), "r"(start));
#endif
}

// All 32 codes, added to d.
__device__ __forceinline__ void mma_add(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int i = 0; i < 4; ++i)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+r"(d[i % 2 * 2]), "+r"(d[i % 2 * 2 + 1])
            : "r"(a[i]), "r"(b[i / 2]));
#endif
}
#else
struct MmaLane {
    uint32_t a[4], b[2];
    int d[4];
    bool done;
};

// A lane passes the location of its registers. The first lane to resume computes for all.
inline void mma(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int start) {
    MmaLane own{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {}, false};
    const uint64_t* lanes = cuda_on_cpu::gather((uint64_t)(uintptr_t)&own);
    if (!own.done) {
        int8_t rows[16][32], columns[8][32];
        for (int l = 0; l < 32; ++l) {
            const MmaLane& lane = *(const MmaLane*)(uintptr_t)lanes[l];
            for (int i = 0; i < 4; ++i) memcpy(&rows[l / 4 + i % 2 * 8][l % 4 * 4 + i / 2 * 16], &lane.a[i], 4);
            for (int i = 0; i < 2; ++i) memcpy(&columns[l / 4][l % 4 * 4 + i * 16], &lane.b[i], 4);
        }
        for (int l = 0; l < 32; ++l) {
            MmaLane& lane = *(MmaLane*)(uintptr_t)lanes[l];
            for (int i = 0; i < 4; ++i) {
                const int8_t *row = rows[l / 4 + i / 2 * 8], *column = columns[l % 4 * 2 + i % 2];
                int sum = start;
                for (int k = 0; k < 32; ++k) sum += row[k] * column[k];
                lane.d[i] = sum;
            }
            lane.done = true;
        }
    }
    for (int i = 0; i < 4; ++i) d[i] = own.d[i];
}

inline void mma_half(int (&d)[4], uint32_t upper, uint32_t lower, uint32_t b, int start) {
    mma(d, {upper, lower, 0, 0}, {b, 0}, start);
}

inline void mma_add(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    int sums[4];
    mma(sums, a, b, 0);
    for (int i = 0; i < 4; ++i) d[i] += sums[i];
}
#endif
