// E2M1, the 4-bit float of MXFP4 and NVFP4, as an integer: twice its value.
//
//   3    │ 2 1      │ 0           bits 2…0:  0  1  2  3  4  5  6  7
//   sign │ exponent │ mantissa    integer:   0  1  2  3  4  6  8 12
#pragma once
#include "../common.cuh"
#include "words.cuh"

__device__ __forceinline__ int e2m1(int nibble) {
    const int m = nibble & 7, magnitude = m < 2 ? m : (2 | (m & 1)) << ((m >> 1) - 1);
    return nibble & 8 ? -magnitude : magnitude;
}

static const __device__ int8_t E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The low nibbles of four bytes, and the high ones.
__device__ __forceinline__ void e2m1_words(uint32_t nibbles, int& low, int& high) { look_up(E2M1, nibbles, low, high); }
