// BF16: a weight is a bfloat16, the high half of a float. Its products also have a definition: activations are rounded
// to bfloat16, and a product is exact in float32.
#pragma once
#include "../common.cuh"

struct BF16 {
    uint16_t bits;
    __device__ float value() const { return __uint_as_float((uint32_t)bits << 16); }
    __device__ static float round(float x) {  // to nearest even; NaN stays NaN
        uint32_t u = __float_as_uint(x);
        if ((u & 0x7FFFFFFF) > 0x7F800000) return x;  // gguf-verify: unreachable because activations are finite
        u += 0x7FFF + (u >> 16 & 1);
        return __uint_as_float(u & 0xFFFF0000);
    }
};
