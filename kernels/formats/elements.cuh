// Weights that are not quantized: F32, F16, BF16, one value each. Their products have definitions too: the activations are
// rounded to the weights' type, products are exact in float32 (of 11 or 8 bits) or part of a fused multiply-add.
#pragma once
#include "../common.cuh"

struct F32 {
    float bits;
    __device__ float value() const { return bits; }
    __device__ static float round(float x) { return x; }
};

struct F16 {
    uint16_t bits;
    __device__ float value() const { return half_to_float(bits); }
    __device__ static float round(float x) { return half_to_float(float_to_half(x)); }
};

struct BF16 {
    uint16_t bits;
    __device__ float value() const { return __uint_as_float((uint32_t)bits << 16); }
    __device__ static float round(float x) {  // to nearest even; NaN stays NaN
        uint32_t u = __float_as_uint(x);
        if ((u & 0x7FFFFFFF) > 0x7F800000) return x;
        u += 0x7FFF + (u >> 16 & 1);
        return __uint_as_float(u & 0xFFFF0000);
    }
};
static_assert(sizeof(ELEMENT) == BLOCK_BYTES, "the harness and the kernels disagree about the size of an element");
