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

// The low nibbles of four bytes at once. From 5 on the integer is more than the bits say: by 1, 2 and 5.
__device__ __forceinline__ int e2m1_word(uint32_t nibbles) {
    const uint32_t bit0 = nibbles & 0x01010101, bit1 = nibbles >> 1 & 0x01010101, bit2 = nibbles >> 2 & 0x01010101;
    const uint32_t magnitude =
        (nibbles & 0x07070707) + (bit0 & bit2) + 2 * (bit1 & bit2) + 2 * (bit0 & bit1 & bit2);
    const uint32_t negative = (nibbles >> 3 & 0x01010101) * 255;  // all bits of the bytes with a sign
    return subtract_bytes(magnitude & ~negative, magnitude & negative);
}
