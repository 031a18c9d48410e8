// F32: a weight is a 32-bit float. Its products also have a definition: activations stay unchanged, and a product is
// part of a fused multiply-add.
#pragma once
#include "../common.cuh"

struct F32 {
    float bits;
    __device__ float value() const { return bits; }
    __device__ static float round(float x) { return x; }
};
