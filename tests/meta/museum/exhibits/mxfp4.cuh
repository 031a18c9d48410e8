// Values and scales of MXFP4.
#pragma once

#include "museum.cuh"

// Twice the values of E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6; and half of 2^(e - 127).
__device__ inline int twice(int q) {
    const int magnitude = q & 7, v = magnitude < 4 ? magnitude : magnitude < 6 ? 2 * magnitude - 4 : 4 * magnitude - 16;
    return q & 8 ? -v : v;
}
__device__ inline float half_scale(int e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (u32)(e - 1) << 23); }
