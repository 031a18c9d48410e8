// F16: a weight is a half. Its products also have a definition: activations are rounded to half, and a product is exact
// in float32.
#pragma once
#include "../common.cuh"

struct F16 {
    uint16_t bits;
    __device__ float value() const { return half_to_float(bits); }
    __device__ static float round(float x) { return half_to_float(float_to_half(x)); }
};
