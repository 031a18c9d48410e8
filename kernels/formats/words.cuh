// Reading a block's bytes as 32-bit words at the widest alignment that the block size grants. Blocks of 18, 22 and 34
// bytes start on 2-byte boundaries only: a 4-byte load from them is a misaligned address. Blocks of 17 bytes start
// anywhere.
#pragma once
#include "../common.cuh"

constexpr float HALF_NORMAL = 0x1p-14f;  // the smallest half that is not subnormal

__device__ __forceinline__ uint32_t load_word_1(const uint8_t* bytes, int j) {
    const uint8_t* p = bytes + 4 * j;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

__device__ __forceinline__ uint32_t load_word_2(const void* bytes, int j) {
    const uint16_t* p = (const uint16_t*)bytes + 2 * j;
    return (uint32_t)p[0] | (uint32_t)p[1] << 16;
}

__device__ __forceinline__ uint32_t load_word_4(const void* bytes, int j) { return ((const uint32_t*)bytes)[j]; }

// Four bytes a - b at once, without borrows between them: codes less their zero point. Bytes of a and b below 128.
__device__ __forceinline__ int subtract_bytes(uint32_t a, uint32_t b) {
    return (int)(((a | 0x80808080) - b) ^ 0x80808080);
}

// Bits 0..3 of `nibble` to bit 4 of the bytes 0..3: where the fifth bits of four Q5 codes belong.
__device__ __forceinline__ uint32_t spread_high_bits(uint32_t nibble) {
    return (nibble << 4 & 0x00000010) | (nibble << 11 & 0x00001000) | (nibble << 18 & 0x00100000) |
           (nibble << 25 & 0x10000000);
}

// Two halves a - b at once; exact where the kernels use it.
__device__ __forceinline__ uint32_t subtract_halves(uint32_t a, uint32_t b) {
#ifdef __CUDACC__
    uint32_t d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    uint32_t d = 0;
    for (int shift = 0; shift < 32; shift += 16)
        d |= (uint32_t)float_to_half(half_to_float((uint16_t)(a >> shift)) - half_to_float((uint16_t)(b >> shift))) << shift;
    return d;
#endif
}
