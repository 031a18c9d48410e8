// The quantizer of semantics q8_1 (llama.cpp v0.5.0, ggml-cuda/quantize.cu, quantize_q8_1): d = max|x|/127,
// q = round-half-away(x/d) with d before its rounding to half, s = half(Σ x) of the raw values.
//
// The order of the sum is part of the semantics: values 16 apart are added, then 8, 4, 2 and 1 apart, as lanes of a
// warp with a value each would. Here four lanes share a block, and lane c has the values 4c…4c+3 and 16+4c…16+4c+3: two
// 16-byte loads. Each addition is done by one lane, where that warp would do it 32, 16, 8, 4, 2 times.
//
// In addition to llama.cpp, so that every input has defined codes: NaN and values over a zero d give code 0, and codes
// are clamped to ±127 (only a subnormal d can need it).
#pragma once
#include "common.cuh"

// Codes of a lane's eight values, as floats; d before it is rounded to half.
struct Quantized {
    float q[8], d, s;
};

__device__ __forceinline__ float exact_code(float v, float d) {
    const float q = d > 0.0f ? roundf(__fdiv_rn(v, d)) : 0.0f;
    return q == q ? (float)(int8_t)fminf(fmaxf(q, -127.0f), 127.0f) : 0.0f;
}

// All 32 lanes of a warp must call it.
__device__ __forceinline__ Quantized quantized(const float4 (&x)[2], int c) {
    const float v[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
    Quantized out;
    float amax = fabsf(v[0]);
#pragma unroll
    for (int i = 1; i < 8; ++i) amax = fmaxf(amax, fabsf(v[i]));  // NaN is ignored, unless there is nothing else
    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFF, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFF, amax, 2));

    float far[4];  // 16 apart
#pragma unroll
    for (int i = 0; i < 4; ++i) far[i] = __fadd_rn(v[i], v[4 + i]);
    // 8 apart: of four sums, lanes 0 and 1 make the first two; 4 apart: lane c makes sum c
    const bool upper = c & 2, odd = c & 1;
    float sum = __fadd_rn(upper ? far[2] : far[0], __shfl_xor_sync(0xFFFFFFFF, upper ? far[0] : far[2], 2));
    const float next = __fadd_rn(upper ? far[3] : far[1], __shfl_xor_sync(0xFFFFFFFF, upper ? far[1] : far[3], 2));
    sum = __fadd_rn(odd ? next : sum, __shfl_xor_sync(0xFFFFFFFF, odd ? sum : next, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFF, sum, 2));
    out.s = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFF, sum, 1));
    out.d = __fdiv_rn(amax, 127.0f);

    // One division per block, not one per value. With u = 2^-24, x·(1/d) and the rounded quotient are each within 2u
    // and u of x/d, relative, so at most 3·127·u < 2^-15 apart: if the first is not that close to a half-integer, both
    // round to the same integer, which is found by adding and subtracting 1.5·2^23. It is at most 127. A NaN among the
    // values shows in the sum.
    const float over_d = __fdiv_rn(1.0f, out.d), integers = 12582912.0f;
    float worst = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float t = __fmul_rn(v[i], over_d);
        out.q[i] = __fadd_rn(__fadd_rn(t, integers), -integers);
        worst = fmaxf(worst, fabsf(__fadd_rn(t, -out.q[i])));
    }
    if (!(worst < 0.5f - 0x1p-15f && out.d > 0x1p-100f && out.d < 0x1p100f && out.s == out.s)) {
#pragma unroll
        for (int i = 0; i < 8; ++i) out.q[i] = exact_code(v[i], out.d);
    }
    return out;
}

// Four codes as signed bytes: the lowest byte of an integer above 1.5·2^23.
__device__ __forceinline__ uint32_t four_bytes(const float* q) {
    uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(__fadd_rn(q[i], 12582912.0f));
    return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
}
