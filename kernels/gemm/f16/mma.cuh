// The tensor cores' product of 16 × 16 and 16 × 8 halves, added to float32 sums, held by a warp: with g = l/4 and c =
// l%4, lane l has two halves per word of row g (and g + 8) of A and of column g of B.
//
//     a[0] row g, k = 2c, 2c+1    a[1] row g + 8, likewise    a[2] row g, k = 2c+8, 2c+9    a[3] row g + 8, likewise
//     b[0] k = 2c, 2c+1           b[1] k = 2c+8, 2c+9
//     d[0], d[1] row g, columns 2c and 2c+1                     d[2], d[3] row g + 8
#pragma once
#include "../../common.cuh"

#ifdef __CUDACC__
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else  // sm_75 has half of it: 8 values of k
#pragma unroll
    for (int half = 0; half < 2; ++half)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}
#else
struct HalfMmaLane {
    const uint32_t *a, *b;
    float* d;
    bool done;
};

// A lane passes the location of its registers. The first lane to resume computes for all; sums are rounded to float32.
inline void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    HalfMmaLane own{a, b, d, false};
    const uint64_t* lanes = cuda_on_cpu::gather((uint64_t)(uintptr_t)&own);
    if (own.done) return;
    float rows[16][16], columns[8][16];
    for (int l = 0; l < 32; ++l) {
        const HalfMmaLane& lane = *(const HalfMmaLane*)(uintptr_t)lanes[l];
        for (int high = 0; high < 2; ++high) {
            for (int i = 0; i < 4; ++i)
                rows[l / 4 + i % 2 * 8][l % 4 * 2 + i / 2 * 8 + high] =
                    half_to_float((uint16_t)(lane.a[i] >> 16 * high));
            for (int i = 0; i < 2; ++i)
                columns[l / 4][l % 4 * 2 + i * 8 + high] = half_to_float((uint16_t)(lane.b[i] >> 16 * high));
        }
    }
    for (int l = 0; l < 32; ++l) {
        HalfMmaLane& lane = *(HalfMmaLane*)(uintptr_t)lanes[l];
        for (int i = 0; i < 4; ++i) {
            const float *row = rows[l / 4 + i / 2 * 8], *column = columns[l % 4 * 2 + i % 2];
            for (int k = 0; k < 16; ++k) lane.d[i] += row[k] * column[k];
        }
        lane.done = true;
    }
}
#endif
