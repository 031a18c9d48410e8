// Definitions for every kernel: integer types, half conversions, and the rule for accumulating a block's term. No CUDA
// header is included, so that NVRTC needs no include path other than this folder; nvcc compiles it too.
#pragma once

#ifdef __CUDACC__
#ifndef __CUDACC_RTC__
#include <cstdint>
#else
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#endif

// A half is passed as its 16 bits: block structs stay plain old data with the file's alignment.
__device__ __forceinline__ float half_to_float(uint16_t bits) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
}

__device__ __forceinline__ uint16_t float_to_half(float f) {  // round to nearest even, overflow to infinity
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f));
    return bits;
}
#else
#include "emulator/cuda_on_cpu.hpp"
using cuda_on_cpu::float_to_half;
using cuda_on_cpu::half_to_float;
#endif

constexpr int QK = 32;  // activations in a block of Q8_1, and weights in a slice: a block of weights is one or more slices

// One block of 32 activations. The quants are sequential: qs[i] belongs to x[i].
struct alignas(4) Q8_1 {
    uint16_t d;      // half: max|x| / 127
    uint16_t s;      // half: sum of the 32 raw values
    int8_t qs[QK];
};
static_assert(sizeof(Q8_1) == 36, "Q8_1 is 36 bytes without padding");

// The factor of the minimum m in w = d·q + m: none, the activations' stored s, or d_a times the sum of their codes
// (superblocks, which have a minimum for each 16 or 32 values). OFFSET: m is -d·ZERO and multiplied by s, with d
// factored out of both terms, as llama.cpp does (ggml-cuda/vecdotq.cuh, vec_dot_q4_0_q8_1_impl).
enum class Minimum { NONE, OFFSET, MEETS_S, MEETS_CODES };

// A weight format provides, for slice s (0 … VALUES/32-1) of its block:
//
//     VALUES, GROUP, MINIMUM        values in a block; values under one scale, 16 or 32; see above
//     ZERO                          the code that stands for zero, a power of two, where MINIMUM is OFFSET
//     unpack(s, q)                  the 32 codes in order
//     codes4(s, j, low, high)       codes of x[4j…4j+3] and of x[16+4j…], four to a word, j = 0…3
//     ENTRIES, entry(i),            of types whose codes are entries of a grid: how many entries it has; an entry as one
//     codes(s, grid, q)             word; all codes by grid[i], which gives such words: x[4j…4j+3] in q[j], j = 0…7
//     scale(s, h), minimum(s, h)    d and m of half h of the slice (the same for both halves where GROUP is 32)
//     value(d, m, q)                a decoded value, by the operations of llama.cpp's to_float
//     stored_scale(), stored_min()  for statistics: what the file holds, before it is multiplied out; STORES_M says whether
//                                   a minimum is; NORMAL is the smallest scale that is not a subnormal number

// The group's addend to d·Σ q_w·q_a, or the factor of its minimum: -ZERO·s, s, or d_a·Σ q_a. Each is exact in float32
// if d_a and s are halves.
//
//     d_a, s_a    of the activations' block                 codes       Σ q_a, read where MINIMUM is MEETS_CODES
template <class F>
__device__ __forceinline__ float z_of(float d_a, float s_a, float codes) {
    if constexpr (F::MINIMUM == Minimum::OFFSET) return __fmul_rn(-F::ZERO, s_a);
    if constexpr (F::MINIMUM == Minimum::MEETS_CODES) return __fmul_rn(d_a, codes);
    return s_a;
}

// The declared order of semantics q8_1: groups of 32 or 16 values in ascending k, one or two fused multiply-adds each.
// For formats with one half scale per block, d_w·d_a is a product of two 11-bit significands and exact; for others it
// is rounded once. Kernels that keep this order agree in every bit.
//
//     d_w, m_w    scale and minimum of the group            products    Σ q_w·q_a, an integer below 2^24
//     d_a         of the activations' block                 z           as above
template <class F>
__device__ __forceinline__ float add_term(float acc, float d_w, float m_w, float d_a, float z, float products) {
    if constexpr (F::MINIMUM == Minimum::OFFSET) {
        return __fmaf_rn(d_w, __fmaf_rn(d_a, products, z), acc);
    } else {
        acc = __fmaf_rn(__fmul_rn(d_w, d_a), products, acc);
        if constexpr (F::MINIMUM != Minimum::NONE) acc = __fmaf_rn(m_w, z, acc);
        return acc;
    }
}

// The same from s and the sum of the activations' codes.
template <class F>
__device__ __forceinline__ float add_group(float acc, float d_w, float m_w, float d_a, float s_a, float products,
                                           float codes) {
    return add_term<F>(acc, d_w, m_w, d_a, z_of<F>(d_a, s_a, codes), products);
}

// The scales and minima of a slice without its codes, as stored in a tile in shared memory.
template <class F>
struct Scales {
    static constexpr int GROUPS = F::GROUP == 16 ? 2 : 1;
    static constexpr bool MINIMA = F::MINIMUM == Minimum::MEETS_S || F::MINIMUM == Minimum::MEETS_CODES;
    float values[MINIMA ? 2 * GROUPS : GROUPS];

    __device__ void read(const F& w, int s) {
#pragma unroll
        for (int h = 0; h < GROUPS; ++h) {
            values[h] = w.scale(s, h);
            if constexpr (MINIMA) values[GROUPS + h] = w.minimum(s, h);
        }
    }
    __device__ float scale(int h) const { return values[h]; }
    __device__ float minimum(int h) const {
        if constexpr (MINIMA) return values[GROUPS + h];
        return 0.0f;
    }
};

// All groups of a slice.
//
//     sum[h]    Σ q_w·q_a of half h        codes[h]    Σ q_a of half h, read where MINIMUM is MEETS_CODES
template <class F>
__device__ __forceinline__ float accumulate(float acc, const Scales<F>& w, float d_a, float s_a, const int (&sum)[2],
                                            const int (&codes)[2]) {
#pragma unroll
    for (int h = 0; h < Scales<F>::GROUPS; ++h) {
        const int products = Scales<F>::GROUPS == 2 ? sum[h] : sum[0] + sum[1];
        const int total = Scales<F>::GROUPS == 2 ? codes[h] : codes[0] + codes[1];
        acc = add_group<F>(acc, w.scale(h), w.minimum(h), d_a, s_a, (float)products, (float)total);
    }
    return acc;
}

// The same of slice s of block w.
template <class F>
__device__ __forceinline__ float accumulate(float acc, const F& w, int s, float d_a, float s_a, const int (&sum)[2],
                                            const int (&codes)[2]) {
    Scales<F> scales;
    scales.read(w, s);
    return accumulate(acc, scales, d_a, s_a, sum, codes);
}

// An integer sum that starts at INTEGER_BASE is, as bits, the float 12582912 + s while |s| < 2^22, so an exact addition
// replaces a conversion, which runs at an eighth of its rate on a GPU. A slice's sums are below 32·2^14 = 2^19.
constexpr int INTEGER_BASE = 0x4B400000;
__device__ __forceinline__ float above_base(int sum) { return __fadd_rn(__uint_as_float((uint32_t)sum), -12582912.0f); }
