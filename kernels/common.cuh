// What every kernel needs: integer types, half conversions, and the one rule by which a block's term is accumulated.
// No CUDA header is included, so that NVRTC needs no include path but this folder.
#pragma once

#ifdef __CUDACC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

// A half travels as its 16 bits: block structs stay plain old data with the file's alignment.
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
#include "host/cuda_on_cpu.hpp"
#endif

constexpr int QK = 32;  // values in a block, of every format here

// One block of 32 activations. The quants are sequential: qs[i] belongs to x[i].
struct alignas(4) Q8_1 {
    uint16_t d;      // half: max|x| / 127
    uint16_t s;      // half: sum of the 32 raw values
    int8_t qs[QK];
};
static_assert(sizeof(Q8_1) == 36, "Q8_1 is 36 bytes without padding");

// The declared order of semantics q8_1: blocks in ascending k, two fused multiply-adds each. d_w·d_a is a product of
// two 11-bit significands, so it is exact; so is m = -8·d_w. Kernels that keep this order agree in every bit.
template <class Format>
__device__ __forceinline__ float accumulate(float acc, float d_w, float m_w, float d_a, float s_a, int sum) {
    acc = __fmaf_rn(__fmul_rn(d_w, d_a), (float)sum, acc);
    if (Format::HAS_M) acc = __fmaf_rn(m_w, s_a, acc);
    return acc;
}
