// F32: a weight is a float of 32 bits. Its products have a definition too: activations stay as they are, and a product is
// part of a fused multiply-add.
#pragma once
#include "../common.cuh"

struct F32 {
    float bits;
    __device__ float value() const { return bits; }
    __device__ static float round(float x) { return x; }
};
